"""`Diagnostic`s become the message of an error: the cause, the user's line, what to do about it.

Messages name rtcompile's options as Python does; `spelled` rewrites them for a command line or a
notebook cell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from rtcompile import styling
from rtcompile.diagnostic import Diagnostic, location_of
from rtcompile.errors import CompileError, RtcompileError
from rtcompile.messages.diagnostics import line_in_source
from rtcompile.request import cxx
from rtcompile.styling import Piece, Styled, printable

_MOST_NOTES = 3
_MOST_OTHER_ERRORS = 4


def render(
    diagnostics: Sequence[Diagnostic],
    *,
    source: str = "",
    name: str = "",
    width: int = 100,
    color: bool = False,
) -> str:
    """Return a failed build's message: the cause, the user's line or the excerpt, the hint, the rest."""
    return styling.painted(
        rendered_diagnostics(diagnostics, source=source, name=name, width=width), color
    )


def html(diagnostics: Sequence[Diagnostic], *, source: str = "", name: str = "") -> str:
    """Return what `render` shows as one HTML ``<pre>``, every message escaped."""
    return styling.as_html(rendered_diagnostics(diagnostics, source=source, name=name))


def rendered_diagnostics(
    diagnostics: Sequence[Diagnostic], *, source: str = "", name: str = "", width: int = 100
) -> Styled:
    """Return what `render` shows as pieces of styled text."""
    if not diagnostics:
        return ()
    first, source = diagnostics[0], cxx.readable(source)
    if first.severity == "note":  # the log is in no known format and is shown unchanged
        pieces = [("", printable(first.message))]
        if first.hint:
            pieces += [("", "\n"), ("hint", _wrapped("hint: ", first.hint, width))]
        return tuple(pieces)
    pieces = _headline(_in_source(first, source, name))
    pieces += _user_line(first, source, name, width)
    for note in [n for n in first.notes if not _is_frame(n)][:_MOST_NOTES]:
        pieces += [("dim", f"\n  {_one_line(str(note), 3 * width)}")]
    others = [d for d in diagnostics[1:] if d.is_error]
    hint = first.hint or next((other.hint for other in others if other.hint), "")
    if hint:
        pieces += [("", "\n"), ("hint", _wrapped("hint: ", hint, width))]
    for other in others[:_MOST_OTHER_ERRORS]:
        pieces += [("dim", "\n  also: "), ("", _one_line(str(other), 3 * width))]
    if len(others) > _MOST_OTHER_ERRORS:
        more = len(others) - _MOST_OTHER_ERRORS
        pieces += [
            (
                "dim",
                f"\n  … {more} more error{'s' * (more > 1)}; `.log` has the compiler's whole text",
            )
        ]
    if diagnostics[-1].severity == "note":
        for line in diagnostics[-1].message.split("\n")[:_MOST_NOTES]:
            pieces += [("dim", f"\n  {_one_line(line, 3 * width)}")]
    return tuple(pieces)


def _in_source(first: Diagnostic, source: str, name: str) -> Diagnostic:
    """Return the first error with its line and column in the program as the user sees it."""
    lines = source.split("\n")
    at = line_in_source(first, source, name) if name else 0
    if at:
        return replace(first, column=_column_in(lines[at - 1], first))
    line = 0
    if first.file == "At end of source":
        line = max((number for number, text in enumerate(lines, 1) if text.strip()), default=0)
    elif first.file.endswith("ptx input"):
        line = _asm_line(first, lines)
    return replace(first, file=name, line=line, column=0) if name and line else first


def _headline(first: Diagnostic) -> list[Piece]:
    severity = {"fatal": "fatal error"}.get(first.severity, first.severity)
    style = "error" if first.is_error else "warning"
    return [
        ("location", printable(location_of(first))),
        (style, f"{severity}: "),
        ("", _one_line(first.message, 1000)),
    ]


def _user_line(first: Diagnostic, source: str, name: str, width: int) -> list[Piece]:
    """Return the line of the user's program where the error is, or which led to it."""
    lines = source.split("\n")
    at = line_in_source(first, source, name) if name else 0
    if not at and name:
        for cause in reversed(first.notes):
            at_cause = line_in_source(cause, source, name)
            if at_cause:
                return [
                    ("dim", f"\n  from {location_of(cause)}{_one_line(cause.message, 2 * width)}"),
                    *_excerpt(lines[at_cause - 1], cause.line, 0, width),
                ]
    if at:
        text = lines[at - 1]
        return _excerpt(text, first.line, _column_in(text, first), width)
    asm = _asm_line(first, lines)
    if asm:
        return _excerpt(lines[asm - 1], asm, 0, width)
    if first.excerpt:
        return _excerpt(first.excerpt.split("\n")[0], first.line, first.column, width)
    return []


def _asm_line(first: Diagnostic, source: list[str]) -> int:
    """Return the line of the asm statement that ptxas rejected: its line numbers refer to the PTX."""
    if not first.file.endswith("ptx input"):
        return 0
    for word in re.findall(r"'([\w.:]{3,})'", first.message):
        for number, text in enumerate(source, 1):
            if word in text:
                return number
    return 0


def _column_in(text: str, diagnostic: Diagnostic) -> int:
    """Return the caret's column in the user's line: nvcc prints it with macros expanded."""
    printed = diagnostic.excerpt.partition("\n")[0]
    # gcc's columns are right, but it prints the "#line" that rtcompile adds instead of the line.
    if printed in ("", text) or printed.startswith("#line "):
        return diagnostic.column
    after = printed[diagnostic.column - 1 :]
    return len(text) - len(after) + 1 if after and text.endswith(after) else 0


def _excerpt(text: str, line: int, column: int, width: int) -> list[Piece]:
    gutter = f"{line:5d} | "
    room = max(20, width - len(gutter))
    start = max(0, column - 1 - room // 2) if len(text) > room and column > room // 2 else 0
    shown = text[start : start + room].replace("\t", "    ")
    pieces = [("dim", f"\n{gutter}"), ("", printable(shown))]
    if 0 < column <= len(text) + 1:
        before = text[start : column - 1].replace("\t", "    ")
        word = re.match(r"\w*", text[column - 1 : start + room])
        marks = "^" + "~" * (len(word[0]) - 1 if word else 0)
        pieces += [("dim", f"\n{'':5} | "), ("caret", " " * len(before) + marks)]
    return pieces


def _is_frame(note: Diagnostic) -> bool:
    return note.message.startswith(("instantiation", "included from", "[ ", "In ", "At "))


def _one_line(text: str, longest: int) -> str:
    text = printable(" ".join(text.split()))
    if len(text) <= longest:
        return text
    return f"{text[: longest // 2]} … {text[-longest // 2 :]}"


def _wrapped(label: str, text: str, width: int) -> str:
    return styling.filled(text, max(40, width), f"  {label}", "  " + " " * len(label))


# The spelling in Python, in a shell, and in a ``%%cuda`` line.
_ROWS = (
    (r"backend='auto'", "--backend auto", "--backend auto"),
    (r"backend='nvrtc', fallback='always'", "--backend nvcc", "--backend nvcc"),
    (r"backend='(\w+)'", r"--backend \1", r"--backend \1"),
    (r"fallback='(\w+)'", r"RTCOMPILE_FALLBACK=\1", r"RTCOMPILE_FALLBACK=\1"),
    (r"\barch='(\w+)'", r"--arch \1", r"--arch \1"),
    (r"\barch=(?![\w'])", "--arch", "--arch"),
    (r"target='(\w+)'", r"--target \1", "rtcompile.compile"),
    (r"name_expressions=\['([^']*)'\]", r"-n '\1'", r"-n '\1'"),
    (r"\bname_expressions\b=?", "-n", "-n"),
    (r"\blink=(?:\[\.\.\.\])?", "--link", "RawModule's link="),
    (r"\btimeout=(?=')", "--timeout ", "RTCOMPILE_TIMEOUT="),
    (r"\btimeout=(?!\w)", "--timeout", "RTCOMPILE_TIMEOUT"),
    (r"\bmemory_limit=(?=')", "--memory-limit ", "RTCOMPILE_MEMORY_LIMIT="),
    (r"\bmemory_limit=(?!\w)", "--memory-limit", "RTCOMPILE_MEMORY_LIMIT"),
    (r"recompile=True asks the compiler again", *["`rtcompile cache clear` forgets it"] * 2),
    (r"more in \.errors\b", "more; `--json` shows all", "more in `sys.last_value.errors`"),
    (r"`\.log` has", "`--json` shows", "`sys.last_value.log` has"),
)
_SPELLINGS = tuple((re.compile(pattern), {"command": a, "cell": b}) for pattern, a, b in _ROWS)


def spelled(text: str, frontend: str) -> str:
    """Return a message with rtcompile's options as `frontend` spells them: "python", "command" or "cell"."""
    if frontend != "python":
        for pattern, spellings in _SPELLINGS:
            text = pattern.sub(spellings[frontend], text)
    return text


def render_error(error: RtcompileError, frontend: str, *, width: int = 100) -> Styled:
    """Return an error's message, hints and advice with options as `frontend` spells them."""
    pieces = error.styled()
    if isinstance(error, CompileError) and error.diagnostics:
        cause = rendered_diagnostics(
            error.diagnostics, source=error.source, name=error.name, width=width
        )
        pieces = (*cause, *(("", f"\n{paragraph}") for paragraph in error.advice))
    return tuple((style, spelled(text, frontend)) for style, text in pieces)

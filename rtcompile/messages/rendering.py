"""Renders `Diagnostic`s as the message of an error: the cause, the user's line, the fix."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from rtcompile import styling
from rtcompile.cubin import simple_name
from rtcompile.diagnostic import Diagnostic, location_of
from rtcompile.errors import CompileError, InvalidRequest, RtcompileError, public, shown
from rtcompile.messages.diagnostics import (
    COMPILES,
    CONSEQUENCES,
    is_frame,
    line_in_source,
    simplified,
)
from rtcompile.request import cxx, values
from rtcompile.styling import Piece, Styled, printable

_MOST_NOTES = 3
_MOST_OTHER_ERRORS = 4


@public
def render(
    what: RtcompileError | Sequence[Diagnostic],
    *,
    source: str = "",
    name: str = "",
    width: int = 100,
    frontend: str = "python",
) -> tuple[tuple[str, str], ...]:
    """Render an error, or a compiler's messages, as styled text: the cause, the user's line, the hint.

    With this, a program that generates sources can render ``error.diagnostics`` with its user's lines and source.

    Parameters
    ----------
    what : RtcompileError or sequence of Diagnostic
        An error, or the messages of one build, the most important one first.
    source, name : str
        The source of the messages, and its name in them; not needed for an error.
    width : int
        Columns to wrap hints at.
    frontend : {"python", "command", "cell"}
        How to spell rtcompile's options: as in Python, in a shell or in a ``%%cuda`` cell.

    Returns
    -------
    tuple of (str, str)
        Pairs of style and text; styles are "error", "warning", "location", "caret", "hint", "dim", and "" for plain
        text.

    Examples
    --------
    >>> found = rtcompile.explain('kernel.cu(1): error: identifier "y" is undefined')
    >>> pieces = rtcompile.messages.render(found, source="int x = y;", name="kernel.cu")
    >>> "".join(text for _, text in pieces).split("\\n")[1]
    '    1 | int x = y;'
    """
    values.one_of("frontend", frontend, ("python", "command", "cell"))
    if not isinstance(source, str):  # any text: a log may hold what no compiler could be given
        raise InvalidRequest(f"source must be a str, not {shown(source)}")
    name = values.text("name", name)
    width = values.whole("width", width, 1, 10_000)
    if isinstance(what, RtcompileError):
        pieces = what.styled()
        if isinstance(what, CompileError) and what.diagnostics:
            pieces = what._first + _rendered(what.diagnostics, what.source, what.name, width)
            pieces += tuple(("", f"\n{paragraph}") for paragraph in what.advice)
    else:
        what = values.items("what", what, "Diagnostics")
        if not all(isinstance(each, Diagnostic) for each in what):
            raise InvalidRequest(f"what must be an error or Diagnostics, not {shown(what)}")
        pieces = _rendered(what, source, name, width)
    return tuple((style, spelled(piece, frontend)) for style, piece in pieces)


def _rendered(diagnostics: Sequence[Diagnostic], source: str, name: str, width: int) -> Styled:
    if not diagnostics:
        return ()
    first, source = diagnostics[0], cxx.readable(source)
    if first.severity == "note":  # the log is in no known format and is shown unchanged
        return ("", printable(first.message)), *_hint(first, width)
    calls = _users_calls(first, source, name)
    pieces = _headline(_in_source(first, source, name), calls)
    block = _declaration if first.file == "__nv_name_map" else _first_block
    pieces += block(first, source, name, width)
    unique: dict[str, Diagnostic] = {}
    for note in first.notes:
        # NVRTC's second error about a name expression repeats what the location says.
        if not (is_frame(note) or note.message.startswith("Error in parsing name expression")):
            unique.setdefault(simplified(note.message), note)
    details = sorted(unique.values(), key=_unfitness)
    if first.cause:
        details = [Diagnostic("note", first.message)]
    for note in details[:_MOST_NOTES]:
        pieces += [("dim", f"\n  {_one_line(str(note), 3 * width)}")]
    pieces += _hint(first, width)
    pieces += _others(diagnostics, source, name, width)
    if diagnostics[-1].severity == "note":
        for line in diagnostics[-1].message.split("\n")[:_MOST_NOTES]:
            pieces += [("dim", f"\n  {_one_line(line, 3 * width)}")]
    return tuple(pieces)


def _others(diagnostics: Sequence[Diagnostic], source: str, name: str, width: int) -> list[Piece]:
    """Return the errors after the first, each with its hint; follow-up errors are only counted."""
    first, pieces = diagnostics[0], list[Piece]()
    others = [d for d in diagnostics[1:] if d.is_error]
    own = [
        other
        for other in others
        if not _same_origin(other, first) and (other.hint or not _follows(other, first))
    ]
    own = [] if first.hint.endswith(COMPILES) else own
    shown = own[:_MOST_OTHER_ERRORS]
    for other in shown:
        text = _one_line(str(_in_source(other, source, name)), 3 * width)
        pieces += [("dim", "\n  also: "), ("", text)]
        if other.hint and (line := line_in_source(other, source, name) if name else 0):
            text = source.split("\n")[line - 1]
            pieces += _excerpt(text, other.line, _column_in(text, other), width)
        pieces += _hint(other, width)
    if len(others) > len(shown):
        more = len(others) - len(shown)
        left = f"… {more} more error{'s' * (more > 1)}{' of the same cause' * (own == shown)}"
        pieces += [("dim", f"\n  {left}; `.log` has the compiler's whole text")]
    return pieces


def _hint(diagnostic: Diagnostic, width: int) -> list[Piece]:
    hint = diagnostic.hint[len(diagnostic.cause) :].lstrip(". ")
    filled = styling.filled(hint, max(40, width), "  hint: ", " " * len("  hint: "))
    return [("", "\n"), ("hint", filled)] if hint else []


def _unfitness(note: Diagnostic) -> int:
    """Return a number that is smaller for the overload that fits a call better; 0 for other notes."""
    if "number of parameters" in note.message:
        return 200
    if re.search(r"::(\w+)\((?:const (?:\w+::)*\1 &|(?:\w+::)*\1 &&)\)", note.message):
        return 300  # the compiler's own copy or move constructor
    argument = re.search(r"because argument #(\d{1,2}) ", note.message)
    if argument:  # those before it fit
        return 100 - int(argument[1])
    return 50 if note.message.startswith("candidate") else 0


# Follow-up errors of a confused parser, which add nothing to the first error on the same line.
_LOST = re.compile(
    r"expected a|unrecognized token|type name is not allowed|calling a |missing closing quote|explicit type is missing"
)
_CALLED = re.compile(r"calling a [^\"]*\"(?:[^\"(]* )?((?:std::)?\w*)")
# The standard library's own parts that NVCC names after the member that the user called.
_PART_OF_CALL = re.compile(
    r".*is undefined in device code$|calling a .*\(\"(?:[^\"]* )?(?:std::(?:_|allocator)|[^\"(]*::~)"
)


def _follows(other: Diagnostic, first: Diagnostic) -> bool:
    """Return whether an error without a hint follows from the first one and can be omitted."""
    if CONSEQUENCES.match(other.message) or (other.message == first.message and not other.hint):
        return True
    call, same = (_CALLED.match(each.message) for each in (first, other))
    if call and (_PART_OF_CALL.match(other.message) or (same and call[1] == same[1])):
        return True
    if first.message == "missing closing quote" and _LOST.match(other.message):
        return True  # all that follows was read as if the text had not begun
    if other.line > 0 and (other.file, other.line) == (first.file, first.line):
        if _LOST.match(first.message) or _LOST.match(other.message):
            return True
        # A variable is unknown if its type is: nothing but the type stands between the two.
        at, end = max(0, first.column - 1), max(0, other.column - 1)
        between = first.excerpt.partition("\n")[0][at:end]
        return "is undefined" not in other.message or not set("(;={") & set(between)
    return False


def _same_origin(other: Diagnostic, first: Diagnostic) -> bool:
    """Return whether one use of a template led to both errors, or one argument of it that is 0 or less."""
    came = [[(n.file, n.line) for n in each.notes if is_frame(n)][-1:] for each in (first, other)]
    if came[0] == came[1] != []:
        return True
    zeros = [
        {zero for n in (each, *each.notes) for zero in _NOT_POSITIVE.findall(n.message)}
        for each in (first, other)
    ]
    return "/include/" in other.file and bool(zeros[0] & zeros[1])


_NOT_POSITIVE = re.compile(r"\b(?!\w*ARCH)\w+=(?:0|-\d+)\b")


def _in_source(first: Diagnostic, source: str, name: str) -> Diagnostic:
    """Return the first error with its line and column in the user's program."""
    at = _line(first, source, name)
    if at and line_in_source(first, source, name):
        return replace(first, column=_column_in(source.split("\n")[at - 1], first))
    return replace(first, file=name, line=at, column=0) if at else first


def _line(first: Diagnostic, source: str, name: str) -> int:
    """Return the line of an error in the user's program, counted from 1, or 0."""
    lines = source.split("\n")
    if not name or (at := line_in_source(first, source, name)):
        return at if name else 0
    if first.file == "At end of source":
        return max((number for number, text in enumerate(lines, 1) if text.strip()), default=0)
    if unresolved := _UNRESOLVED.search(first.message):
        return _line_of_call(simple_name(unresolved[1]), source)
    if memory := re.search(r"uses too much (shared|global constant) data", first.message):
        word = {"shared": "__shared__", "global constant": "__constant__"}[memory[1]]
        entry = re.search(r"function '(\w+)'", first.message)
        kernel = f"{simple_name(entry[1])}(" if entry else ""
        begin = next((at for at, text in enumerate(lines) if kernel in text), 0)
        return next((at + 1 for at in range(begin, len(lines)) if word in lines[at]), 0)
    if not first.file.endswith("ptx input"):
        return 0
    # The line of the asm statement that ptxas rejected: its own line numbers refer to the PTX.
    words = re.findall(r"'([\w.:]{3,})'", first.message)
    code = cxx.blanked(source).split("\n")  # without comments
    # A word may follow an escape sequence: "\n\tmov".
    bound = r"(?:(?<!\w)|(?<=\\[nt]))"
    patterns = [f"{bound if word[0] != '.' else ''}{re.escape(word)}(?!\\w)" for word in words]
    found = (n for each in patterns for n, text in enumerate(code, 1) if re.search(each, text))
    return next(found, 0)


_UNRESOLVED = re.compile(r"(?:Unresolved extern function|Undefined reference to) '([^']+)'")


def _line_of_call(name: str, source: str) -> int:
    """Return the first line that calls a function, else the last that names it; 0 if none does."""
    code = cxx.blanked(source, literals=True)
    found = [*re.finditer(rf"\b{re.escape(name.rpartition('::')[2])}\b", code)]
    calls = (
        each for each in found if not re.search(r"\w[\s*&]+(?:\w+::)*$", code[: each.start()][-80:])
    )
    at = next(calls, found[-1] if found else None)
    return code.count("\n", 0, at.start()) + 1 if at else 0


def _users_calls(first: Diagnostic, source: str, name: str) -> list[Diagnostic]:
    """Return the frames in the user's program, if the error itself is in a library's file."""
    if not name or line_in_source(first, source, name) or "/include/" not in first.file:
        return []
    return [note for note in first.notes if is_frame(note) and line_in_source(note, source, name)]


def _headline(first: Diagnostic, calls: Sequence[Diagnostic]) -> list[Piece]:
    severity = {"fatal": "fatal error"}.get(first.severity, first.severity)
    style = "error" if first.is_error else "warning"
    is_use = calls and calls[0].message.startswith(("instantiation of class", "included"))
    use = "use" if is_use else "call"
    return [
        ("location", printable(location_of(calls[0] if calls else first))),
        *([("", f"in this {use}: ")] if calls else []),
        (style, f"{severity}: "),
        ("", _one_line(first.cause or first.message, 1000)),
    ]


def _declaration(first: Diagnostic, source: str, name: str, width: int) -> list[Piece]:
    """Return the lines that declare what a name expression names, or what its hint suggests."""
    code = cxx.blanked(source, literals=True).split("\n")
    expression = re.search(r"\['\W*([\w:]+)", location_of(first))
    named = [*([expression[1]] if expression else []), *re.findall(r"'([\w:]+)", first.hint)]
    for word in named:
        pattern = re.compile(rf"\w[\w>*&\s]*[\s*&]{re.escape(word.rpartition('::')[2])}\s*[({{=;<]")
        for at, text in enumerate(code):
            if word.rpartition("::")[2] in text and pattern.search(text[:1000]):
                begin = at - 1 if at and code[at - 1].lstrip().startswith("template") else at
                pieces: list[Piece] = [("dim", f"\n  declared at {name or 'line '}:{begin + 1}:")]
                for line in range(begin, at + 1):
                    pieces += _excerpt(source.split("\n")[line], line + 1, 0, width)
                return pieces
    return []


def _first_block(first: Diagnostic, source: str, name: str, width: int) -> list[Piece]:
    """Return the line of the error, and the lines of the user's program that led the compiler to it."""
    lines = source.split("\n")
    at = 0 if first.file == "At end of source" else _line(first, source, name)
    frames = [note for note in first.notes if is_frame(note)]
    users = [note for note in frames if name and line_in_source(note, source, name)]
    calls = _users_calls(first, source, name)
    own = first.excerpt.split("\n")[0]
    pieces: list[Piece] = []
    is_shown = own and (calls or not at) and ("assert" in first.message or not users)
    if calls:
        at = line_in_source(calls[0], source, name)
        pieces = _excerpt(lines[at - 1], calls[0].line, 0, width)
        what = _one_line(calls[0].message, 2 * width)
        pieces += [("dim", f"\n  at {location_of(first)}{what}")]
        users = users[1:]
    elif at:
        shown = _in_source(first, source, name)
        pieces = _excerpt(lines[at - 1], shown.line, shown.column, width)
    if is_shown:
        pieces += _excerpt(own, first.line, first.column, width)
    if not (users or calls):
        users = frames[-1:] if first.file and not source else []
    for index, frame in enumerate(users):
        if 0 < index < len(users) - 2:  # the inner and outer ends of the chain are the most useful
            continue
        what = _one_line(frame.message, 2 * width)
        pieces += [("dim", f"\n  from {location_of(frame)}{what}")]
        line = line_in_source(frame, source, name) if name else 0
        if line and line != at:
            pieces += _excerpt(lines[line - 1], frame.line, 0, width)
    return pieces


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


def _one_line(text: str, longest: int) -> str:
    text = printable(simplified(" ".join(text.split())))
    text = re.sub(r"(?<= of )/\S{1,500}/include/(?=\S)", "", text)
    if len(text) <= longest:
        return text
    head, arguments, values = text.partition(" [with ")
    if arguments and (room := longest - len(arguments) - len(values)) > longest // 3:
        return f"{head[:room]} …{arguments}{values}"
    if arguments:  # the first whole arguments are kept, and the beginning of the signature
        kept = values[: longest * 2 // 3].rpartition(", ")[0] or values[: longest * 2 // 3]
        return f"{head[: longest // 3]} …{arguments}{kept}, …]"
    return f"{text[: longest // 2]} … {text[-longest // 2 :]}"


# The spelling in Python, in a shell, and, if that differs, in a ``%%cuda`` line.
_SPELLINGS: tuple[tuple[str, ...], ...] = (
    (r"backend='nvrtc', fallback='always'", "--backend nvcc", "RTCOMPILE_FALLBACK=always"),
    (r"\bbackend='nvcc'", "--backend nvcc", "RTCOMPILE_FALLBACK=always"),
    (r"\bbackend='nvrtc'", "--backend nvrtc", "RTCOMPILE_FALLBACK=never"),
    (r"\bbackend='(\w+)'", r"--backend \1", r"RTCOMPILE_FALLBACK=\1"),
    (r"fallback='(\w+)'", r"RTCOMPILE_FALLBACK=\1"),
    (r"\barch='(\w+)'", r"--arch \1"),
    (r"\barch=(?![\w'])", "--arch"),
    (r"target='(\w+)'", r"--target \1", "rtcompile.compile"),
    (r"name_expressions=\['([^']*)'\]", r"-n '\1'"),
    (r"\bname_expressions\b=?", "-n"),
    (r"\blink=(?:\[\.\.\.\])?", "--link", "RawModule's link="),
    (r"\btimeout=(?=')", "--timeout ", "RTCOMPILE_TIMEOUT="),
    (r"\btimeout=(?!\w)", "--timeout", "RTCOMPILE_TIMEOUT"),
    (r"\bmemory_limit=(?=')", "--memory-limit ", "RTCOMPILE_MEMORY_LIMIT="),
    (r"\bmemory_limit=(?!\w)", "--memory-limit", "RTCOMPILE_MEMORY_LIMIT"),
    (r"recompile=True runs", "--recompile runs", "recompile=True runs"),
    (r"more in \.errors\b", "more; `--json` shows all", "more in `sys.last_value.errors`"),
    (r"`\.log` has", "`--json` shows", "`sys.last_value.log` has"),
)


def spelled(text: str, frontend: str) -> str:
    """Return a message with rtcompile's options as `frontend` spells them: "python", "command" or "cell"."""
    for pattern, *spellings in _SPELLINGS if frontend != "python" else ():
        text = re.sub(pattern, spellings[-1 if frontend == "cell" else 0], text)
    return text

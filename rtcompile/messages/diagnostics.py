"""Parses a log of NVRTC, nvcc, a host compiler, ptxas or a linker into `Diagnostic`s. Pure, and linear in the log."""

from __future__ import annotations

import functools
import os.path
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rtcompile.diagnostic import Diagnostic
from rtcompile.request import cxx

# Only both ends of a longer log are parsed, since 200 MB of template errors would take minutes. The number of lines
# is limited too, since each line has a cost.
_READ_AT_EACH_END = 1 << 20
_LINES_AT_EACH_END = 25_000
_MOST_ERRORS = 1000  # one cause may have a hundred thousand
_LONGEST_LINE = 32 << 10
_MOST_CONTINUATION_LINES = 100
_MOST_LOOSE_LINES = 40
_LONGEST_LOOSE_LINE = 1000

# The first line of a message, in each tool's format. Add a row for a new format.
_EDG = (
    r"(?P<severity>[Cc]atastrophic error|[Ii]nternal error|[Ee]rror|[Ww]arning|[Rr]emark|[Nn]ote)"
)
_CODE = r"(?: #(?P<code>[\w-]+))?"
_FORMATS = tuple(
    re.compile(pattern)
    for pattern in (
        # NVRTC, cudafe++, cicc:   kernel.cu(3): error #20-D: identifier "x" is undefined
        rf"(?P<file>\S.*?)\((?P<line>\d{{1,9}})\): {_EDG}{_CODE}: (?P<message>.*)",
        #                          At end of source: error: expected a "}}"
        #                          Catastrophic error: cannot open precompiled header file "x.pch"
        rf"(?:(?P<file>At end of source): )?{_EDG}{_CODE}: (?P<message>.*)",
        #                          Command-line error: invalid or no value specified …
        rf"(?P<file>Command-line) {_EDG}{_CODE}: (?P<message>.*)",
        # gcc, as:                 kernel.cu:3:10: fatal error: x.h: No such file or directory
        r"(?P<file>\S[^:]*):(?P<line>\d{1,9}):(?:(?P<column>\d{1,9}):)? "
        r"(?P<severity>fatal error|error|warning|note|Error|Warning): (?P<message>.*)",
        # ptxas:                   ptxas application ptx input, line 25; error   : Unknown …
        r"ptxas (?P<file>.*), line (?P<line>\d{1,9}); (?P<severity>error|fatal|warning|info)\s*: "
        r"(?P<message>.*)",
        #                          ptxas info    : (C7510) Potential Performance Loss: …
        # any tool:                nvcc fatal   : …   nvlink error   : …   nvrtc: error: …
        r"(?P<tool>[\w+.-]+):?\s+(?P<severity>fatal error|error|fatal|warning|info|\.)\s*(?<!\.):?\s+"
        r"(?:\((?P<code>C\d+)\) )?(?P<message>\S.*)",
        # nvJitLink:               error   : Undefined reference to '_Z3fooi' in 'x'
        r"(?P<severity>error|fatal|warning|info)\s*: (?P<message>.*)",
        #                          ERROR NVJITLINK_ERROR_PTX_COMPILE: JIT the PTX (x)
        r"(?P<severity>ERROR) (?:in )?(?P<code>\w+): (?P<message>.*)",
        # NVVM:                    Internal Compiler Error (codegen): "…"
        r"(?P<severity>Internal Compiler Error) (?P<message>\(.*)",
    )
)

# gcc prints these locations before the error; they become notes of the next message.
_GCC_CONTEXT = re.compile(
    r"\s*(?:In file included )?from (?P<file>[^:]+):(?P<line>\d{1,9})(?::\d+)?[,:]$"
    r"|(?P<in_file>[^\s:][^:]*): (?P<message>(?:In|At) [^:].*):$"
    r"|(?P<from_file>[^\s:][^:]*):(?P<from_line>\d{1,9}):\d+:\s+(?P<required>required (?:from|by) .*)"
)

# Lines that count or comment on earlier messages.
_COUNTS = re.compile(
    r"(?:\d+ (?:catastrophic )?errors? detected in| and \d+ catastrophic|[Cc]ompilation terminated"
    r"|Remark: The warnings can be suppressed|Error limit reached)"
)

# Errors that only count errors; they are omitted if there are others.
_AFTERMATH = re.compile(r"Ptx assembly aborted due to errors|JIT the PTX|finish$|empty elfw")

# Errors caused by another error; never shown first if there are others.
CONSEQUENCES = re.compile(
    r"attribute \"__global__\" does not apply here"
    r"|incomplete type \"void\" is not allowed"
    r"|A namespace scope variable without memory space annotations"
)

# Temporary folders of nvcc and the workers, which are meaningless to the user.
_OUR_FOLDER = re.compile(
    r"(?:/[^\s/'\"]{1,255}){0,12}/(?:rtcompile-workers-[\w-]+/\d+/\w+/"
    r"|tmpxft_[0-9a-f]+_[0-9a-f]+-\d+_)"
)

_CARET = re.compile(r"\s*(?:\|\s*)?[~^]*\^[~^]*\s*$")
_GUTTER = re.compile(
    r"\s*\d* \| ?|.{0,2}", re.DOTALL
)  # what gcc, or EDG, puts before a source line
_FRAME_END = re.compile(r" at line (?P<line>\d{1,9})(?: of (?P<file>.+))?$")


@functools.lru_cache(maxsize=2)  # a log is parsed to decide what helps, and again for the error
def parse(log: str) -> tuple[Diagnostic, ...]:
    """Parse a log of compilers and linkers: errors first, then warnings, remarks, and other text."""
    drafts: list[_Draft] = []
    context: list[Diagnostic] = []
    loose: list[str] = []
    current: _Draft | None = None
    left = {"error": _MOST_ERRORS, "warning": _MOST_ERRORS}
    for line in _lines(log):
        if not line.strip() or _COUNTS.match(line):
            current = None
        elif (note := _gcc_context(line)) is not None:
            context.append(note)
            current = None
        elif line[0] in " \t" and current is not None:
            current.add(line)
        elif line[0] not in " \t" and (draft := _begin(line)) is not None:
            current = draft
            severity = draft.first.severity
            if severity in left:
                left[severity] -= 1
                if left["error"] < 0:
                    break
                if left[severity] < 0:
                    continue
            draft.notes.extend(context)
            context.clear()
            if drafts and draft.belongs_to(drafts[-1]):
                drafts[-1].notes.append(draft)
            else:
                drafts.append(draft)
        else:
            loose.append(line)
            current = None
    return tuple(_in_order(draft.finish() for draft in drafts)) + _unparsed(loose)


def _lines(log: str) -> Iterator[str]:
    if len(log) > 2 * _READ_AT_EACH_END:
        log = log[:_READ_AT_EACH_END] + "\n" + log[-_READ_AT_EACH_END:]
    lines = log.replace("\0", "").split("\n")
    if len(lines) > 2 * _LINES_AT_EACH_END:
        lines[_LINES_AT_EACH_END:-_LINES_AT_EACH_END] = []
    for line in lines:
        if len(line) > _LONGEST_LINE:  # an instantiation frame ends with its location
            line = f"{line[: _LONGEST_LINE - 1024]} … {line[-1024:]}"
        if "tmpxft_" in line or "rtcompile-workers-" in line:
            line = _OUR_FOLDER.sub("", line)
        yield line.rstrip()


@dataclass(slots=True)
class _Draft:
    """A message whose following lines are still being read."""

    first: Diagnostic  # what its first line says
    lines: list[str] = field(default_factory=list)
    notes: list[Diagnostic | _Draft] = field(default_factory=list)

    def add(self, line: str) -> None:
        if len(self.lines) < _MOST_CONTINUATION_LINES:
            self.lines.append(line)

    def belongs_to(self, other: _Draft) -> bool:
        first, before = self.first, other.first
        if first.severity == "note":
            return True
        # NVRTC writes two errors about a name expression: the problem, then the expression.
        is_second = first.message.startswith("Error in parsing name expression")
        return is_second and (first.file, first.line) == (before.file, before.line)

    def finish(self) -> Diagnostic:
        caret = next((i for i, line in enumerate(self.lines) if i and _CARET.match(line)), 0)
        details = self.lines[: caret - 1] if caret else []
        rest = self.lines[caret + 1 :] if caret else self.lines
        excerpt, column = "", self.first.column
        if caret:
            quoted = self.lines[caret - 1 : caret + 1]
            source, marks = (_GUTTER.sub("", line, count=1) for line in quoted)
            excerpt = f"{source}\n{marks}"
            # EDG counts the bytes before the caret, not the characters.
            before = source.encode("utf-8", "replace")[: marks.find("^")]
            column = column or len(before.decode("utf-8", "ignore")) + 1
            missing = re.search(r'open source file "([^"]+)"$', self.first.message)
            if missing and missing[1] in source:  # the compiler points behind it
                column = source.index(missing[1]) + 1
        notes = [Diagnostic("note", line.strip()) for line in details]
        file = self.first.file
        frames = [_frame(line, file) for line in rest if not line.endswith("detected during:")]
        for note in self.notes:
            finished = note.finish() if isinstance(note, _Draft) else note
            # NVRTC writes the context of an error below its last note.
            frames += [inner for inner in finished.notes if is_frame(inner)]
            own = tuple(inner for inner in finished.notes if not is_frame(inner))
            notes.append(replace(finished, notes=own))
        return replace(self.first, column=column, excerpt=excerpt, notes=(*notes, *frames))


def _begin(line: str) -> _Draft | None:
    for pattern in _FORMATS:
        match = pattern.fullmatch(line)
        if match is not None:
            group = match.groupdict()
            word = group["severity"].lower()
            if re.search("fatal|catastrophic|internal", word):
                word = "fatal"
            first = Diagnostic(
                {"info": "remark", ".": "remark"}.get(word, word),  # ptxas 12.9: "." continues
                group["message"].strip(),
                group.get("file") or group.get("tool") or "",
                int(group.get("line") or 0),
                int(group.get("column") or 0),
                group.get("code") or "",
            )
            return _Draft(first)
    return None


def _gcc_context(line: str) -> Diagnostic | None:
    if line[-1] not in ",:" and "required " not in line:
        return None  # such a line cannot match, and the pattern would search all of it
    match = _GCC_CONTEXT.fullmatch(line)
    if match is None:
        return None
    if match["file"]:
        return Diagnostic("note", "included from here", match["file"], int(match["line"]))
    if match["in_file"]:
        return Diagnostic("note", match["message"], match["in_file"])
    return Diagnostic("note", match["required"], match["from_file"], int(match["from_line"]))


def _frame(line: str, file: str) -> Diagnostic:
    """Read one line of ``detected during:``; a frame without a file is in the error's own."""
    line = line.strip()
    # Searching for this text is ten times as fast as a pattern that begins with anything.
    at = max(0, line.rfind(" at line "))
    end = _FRAME_END.match(line, at)
    if end is None:
        return Diagnostic("note", line)
    what = line[:at].removeprefix("detected ").removeprefix("during ")
    return Diagnostic("note", what, end["file"] or file, int(end["line"]))


def is_frame(note: Diagnostic) -> bool:
    """Return whether a note only describes how the compiler reached an error."""
    return note.message.startswith(("instantiation", "included from", "[ ", "In ", "At "))


def _in_order(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    ranks = {"fatal": 0, "error": 0, "warning": 2, "remark": 3, "note": 4}
    unique = list(dict.fromkeys(diagnostics))
    causes = [d for d in unique if not (d.is_error and _AFTERMATH.match(d.message))]
    if any(d.is_error for d in causes):
        unique = causes
    return sorted(
        unique,
        key=lambda d: 1 if d.is_error and CONSEQUENCES.match(d.message) else ranks[d.severity],
    )


def _unparsed(loose: Sequence[str]) -> tuple[Diagnostic, ...]:
    if not loose:
        return ()
    shown = [line[:_LONGEST_LOOSE_LINE] for line in loose[:_MOST_LOOSE_LINES]]
    if len(loose) > len(shown):
        shown.append(f"… {len(loose) - len(shown)} more lines")
    return (Diagnostic("note", "\n".join(shown)),)


def line_in_source(diagnostic: Diagnostic, source: str, name: str) -> int:
    """Return the source line of a message, counted from 1, or 0."""
    # ``#line`` may number several lines alike: prefer the one with the compiler's excerpt, else the last.
    if diagnostic.line <= 0:
        return 0
    changes = cxx.renumbered(source)
    if not changes:
        inside = _same(diagnostic.file, name) and diagnostic.line <= source.count("\n") + 1
        return diagnostic.line if inside else 0
    printed = diagnostic.excerpt.partition("\n")[0].strip()
    found = 0
    file, number = name, 0
    for physical, text in enumerate(source.split("\n"), 1):
        number += 1
        if physical in changes:
            number, file = changes[physical][0] - 1, changes[physical][1] or file
        elif number == diagnostic.line and _same(diagnostic.file, file):
            found = physical
            if printed and text.strip() == printed:
                return physical
    return found


def _same(one: str, other: str) -> bool:
    # nvcc puts the folder in front of the name.
    return one == other or os.path.basename(one) == os.path.basename(other) != ""


# --- Changes of a source are compiled before a hint names them, so that the hint is true of this source ----

_NO_EFFECT = "expression has no effect"  # `a; b` for `a * b` compiles, and is not what was meant


class Attempts:
    """Compiles at most `most` changed sources, and reports what each change does to an error."""

    def __init__(
        self,
        compile: Callable[[str, tuple[str, ...]], str | None],
        source: str,
        found: Sequence[Diagnostic],
        most: int,
    ) -> None:
        self._compile = (
            compile  # returns the log for a source and further options, None if there is none
        )
        self._lines = source.split("\n")
        self._before = {_key(each) for each in found if each.is_error}
        self._warned = {_key(each) for each in found}
        self._most = most
        self._logs: dict[tuple[str, tuple[str, ...]], tuple[Diagnostic, ...] | None] = {}

    def proof(self, error: Diagnostic, source: str, options: tuple[str, ...] = ()) -> str:
        """Return a sentence on what the change does; "" if it does not help, or too many were tried."""
        after = self._outcome(source, options) if _key(error) in self._before else None
        if after is None:
            return ""
        errors = {_key(each) for each in after if each.is_error}
        if not errors <= self._before - {_key(error)} or any(
            _NO_EFFECT in each.message and _key(each) not in self._warned for each in after
        ):
            return ""
        if any(excerpt and excerpt == _key(error)[1] for _, excerpt in errors):
            return ""  # the line is as wrong as it was
        line = self._changed_line(source)
        return f"{line or 'With this change'} {GONE if errors else COMPILES}"

    def _changed_line(self, source: str) -> str:
        """Return how the changed line reads now; "" if several lines changed."""
        lines = source.split("\n")
        pairs = enumerate(zip(self._lines, lines, strict=False), 1)
        other = [(number, after.strip()) for number, (before, after) in pairs if before != after]
        if len(lines) != len(self._lines) or len(other) != 1 or len(other[0][1]) > _LONGEST_SHOWN:
            return ""
        return f"With line {other[0][0]} as `{other[0][1]}`" if other[0][1] else ""

    def _outcome(self, source: str, options: tuple[str, ...]) -> tuple[Diagnostic, ...] | None:
        key = (source, options)
        if key not in self._logs:
            if len(self._logs) >= self._most:
                return None
            log = self._compile(source, options)
            self._logs[key] = None if log is None else parse(log)
        return self._logs[key]


COMPILES = "the source compiles."
GONE = "this error is gone."
_LONGEST_SHOWN = 90


def _key(message: Diagnostic) -> tuple[str, str]:
    return message.message, message.excerpt.partition("\n")[0].strip()


# --- Long C++ type names become short ones, and layouts of CuTe as CuTe prints them: ``(_8,_2):(_1,_8)`` ----

# Inline namespaces, which change with each release of a library, and alternative spellings of a type.
_ALWAYS = tuple(
    (re.compile(pattern), shorter)
    for pattern, shorter in (
        (r"\bCUB_\d+_\w+::|\b_V_\d+_SM_\d+::|\b__4::|\b__cxx11::|\bTHRUST_\d+_\w+::", ""),
        (r"\s+>", ">"),
        (r">\s+::", ">::"),
        (r"(?<![\w:>])::(?=\w)", ""),  # the global namespace, as nvcc writes it
        (r"\b(\d+)(?:UL|L|U|ULL)\b", r"\1"),
        (r"(?<==)(?:cute|cutlass)::", ""),
    )
)
_TOKEN = re.compile(r"[<>(),]|[^<>(),]+")
_LONGEST_TYPE = 20_000
_DEEPEST_TYPE = 200


def simplified(text: str) -> str:
    """Return a compiler's message with shortened types; unchanged if its brackets do not match."""
    if len(text) > _LONGEST_TYPE:
        return text
    for pattern, shorter in _ALWAYS:
        text = pattern.sub(shorter, text)
    if "<" not in text or re.search(r"operator *[<>-]|<=|<<|->", text):
        return text
    opened: list[tuple[str, str, list[str]]] = []  # text before a bracket, the bracket, its parts
    parts = [""]
    for piece in _TOKEN.findall(text):
        if piece in "<(":
            if len(opened) == _DEEPEST_TYPE:
                return text
            opened.append((parts.pop(), piece, parts))
            parts = [""]
        elif piece in ">)":
            if not opened or (opened[-1][1] == "<") != (piece == ">"):
                return text
            before, _, outer = opened.pop()
            inner = [part.strip() for part in parts]
            whole = _template(before, inner) if piece == ">" else f"{before}({', '.join(inner)})"
            parts = [*outer, whole]
        elif piece == "," and opened:
            parts.append("")
        else:
            parts[-1] += re.sub(r"\b(?:cute|cutlass)::", "", piece) if opened else piece
    return text if opened else parts[0]


def arguments(frame: str) -> dict[str, str]:
    """Return the template arguments of ``instantiation of "f<N>() [with N=5]"``, shortened, by parameter."""
    inside = simplified(frame).partition("[with ")[2].rpartition("]")[0]
    pairs = (each.partition("=") for each in cxx.split(inside) if each)
    return {name: value for name, _, value in pairs}


def _template(before: str, arguments: list[str]) -> str:
    """Return ``before<arguments>``, or the shorter form that the library itself would print."""
    head, name = re.fullmatch(r"(.*?)([\w:]*)", before, re.DOTALL).groups()  # type: ignore[union-attr]
    base = name.rpartition("::")[2]
    if name.startswith("std::") and base in ("basic_string", "basic_ostream", "basic_istream"):
        return f"{head}std::{base.removeprefix('basic_')}"
    arguments = [a for a in arguments if not a.startswith(("std::allocator<", "std::char_traits<"))]
    first = arguments[0] if arguments else ""
    if name in ("tuple", "cute::tuple"):
        return f"{head}({','.join(arguments)})"
    if name in ("Layout", "cute::Layout") and len(arguments) == 2:
        return f"{head}{first}:{arguments[1]}"
    if name in ("C", "cute::C") and first.lstrip("-").isdigit():
        return f"{head}_{first}"
    if base in ("ArrayEngine", "ViewEngine", "ConstViewEngine"):
        return head + first
    if base in ("gmem_ptr", "smem_ptr", "rmem_ptr"):
        return f"{head}{base[:4]} {first.rstrip(' *')}"
    return f"{head}{name}<{', '.join(arguments)}>"

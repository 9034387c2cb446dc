"""A scanner for C++ text: comments, literals, directives. Pure, and linear in the text's length.

It expands no macros and skips no branches. Where compilers and standards differ, `Text` follows NVRTC with C++17
(seen in 12.9 and 13.0): a `\\` followed by blanks does not join lines, a lone carriage return is a blank, a line
that begins within a comment may be a directive, and there are no trigraphs. `spellings` returns the text as other
compilers join its lines.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from rtcompile.named import NamedTuple

BLANKS = " \t\v\f\r"
# Length limit in characters. Scanning a longer, generated text would exceed a caller's time limit, so such a text is
# only searched for words.
MOST_READ = 256 << 10
_Piece = tuple[str, int, int]
_CODE, _COMMENT, _LITERAL, _HASH, _END = "code", "comment", "literal", "hash", "end"
_LITERALS = "|".join(rf"{q}[^{q}\\\n]*(?:\\[\s\S]?[^{q}\\\n]*)*{q}?" for q in "\"'")
# These patterns are compiled when needed, since few sources need them. A number may contain apostrophes. Letters that
# end a word or a number are no prefix of a string.
_TOKEN = (
    r"""(?P<comment>//[^\n]*|/\*[\s\S]*?(?:\*/|\Z))|(?P<raw>(?<![\w"'])(?:u8|[LuU])?R")"""
    rf"|(?P<literal>{_LITERALS})"
    r"|(?P<number>(?<!\w)\.?\d(?:[eEpP][+-]|'?\w|\.)*)|(?P<line>\n)|(?P<hash>\#|%:)"
)
_GAP = r"(?:[ \t\v\f\r]|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/)*"
_HEADER_NAME = rf"""{_GAP}(?:include_next|include|import)\b{_GAP}(<[^\n>]*>|"[^\n"]*")"""
_DELIMITER = r"""[^ )\\\t\v\f\n"(]{0,16}\("""
_SPLICE = re.compile(r"\\\r?\n")
_ANY_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t\v\f\r]*\n")
_WORD = re.compile(r"\w*", re.ASCII)


class Directive(NamedTuple):
    """A preprocessor directive. Comments and splices may spread it over several lines; `body` has neither."""

    name: str
    body: str
    start: int  # the offset of the ``#`` in `Text.text`
    end: int  # the offset of the line's end


class Text:
    """C++ text: the original `source`, and `text` with continued lines joined.

    `differs` is True if `pieces` met a construct that a compiler reads differently in a skipped branch or with an
    older standard: an apostrophe in a number, or a quote or comment start in a header's name.
    """

    def __init__(self, source: str) -> None:
        self.source, self.differs, self._raw_may_end = source, False, True
        # Offsets in `text` where a splice was removed, and the corresponding offsets in `source`.
        self._cuts: list[int] = []
        self._resumes: list[int] = []
        parts = []
        at = length = 0
        for splice in _SPLICE.finditer(source):
            parts.append(source[at : splice.start()])
            length += splice.start() - at
            at = splice.end()
            self._cuts.append(length)
            self._resumes.append(at)
        self.text = "".join([*parts, source[at:]])

    def origin(self, at: int) -> int:
        """Return the offset in `source` of a character of `text`."""
        index = bisect_right(self._cuts, at) - 1
        return at if index < 0 else at - self._cuts[index] + self._resumes[index]

    def pieces(self) -> Iterator[_Piece]:  # noqa: C901  # one branch for each kind of token
        """Yield (kind, start, end) of each piece of `text`, in order and lazily."""
        # A literal does not include its prefix. A directive begins with "hash" and ends with "end", which is empty.
        text = self.text
        token, header_name = re.compile(_TOKEN, re.ASCII), re.compile(_HEADER_NAME, re.ASCII)
        at = code = name = after_name = 0  # `code` is the start of code not yet yielded
        blank, inside = True, False  # the line has only blanks and comments; it is a directive
        while match := token.search(text, at):
            start, end, kind = match.start(), match.end(), match.lastgroup
            if name and start >= name:
                at, name = after_name, 0
                continue
            blank = blank and not text[at:start].strip(BLANKS)
            if kind == "raw":
                start = end - 1
                end = self._raw_end(start) or re.compile(_LITERALS).match(text, start).end()  # type: ignore[union-attr]
            at = end
            if kind == "number":
                self.differs |= "'" in match[0]
                blank = False
                continue
            if (kind == "line" and not inside) or (kind == _HASH and (inside or not blank)):
                blank = kind == "line"
                continue
            if start > code:
                yield _CODE, code, start
            code = end
            if kind == "line":
                yield _END, start, start
                code, blank, inside = start, True, False
            elif kind == _HASH:
                yield _HASH, start, end
                inside = True
                if header := header_name.match(text, end):
                    name, after_name = header.span(1)
                    self.differs |= any(sign in header[1] for sign in ("'", "//", "/*", "\\"))
            else:
                yield _COMMENT if kind == _COMMENT else _LITERAL, start, end
                # NVRTC also starts a new line within a comment, whatever precedes it.
                blank = kind == _COMMENT and (blank or "\n" in match[0])
        if len(text) > code:
            yield _CODE, code, len(text)
        if inside:
            yield _END, len(text), len(text)

    def directives(self, *, opening: bool = False) -> Iterator[Directive]:
        """Yield the directives; with `opening` only those before any code."""
        text, begin = self.text, -1
        parts: list[str] = []
        for kind, start, end in self.pieces():
            if kind == _HASH:
                begin, parts = start, []
            elif begin >= 0:
                parts.append(" " if kind == _COMMENT else text[start:end])
                if kind == _END:
                    line = "".join(parts).strip(BLANKS)
                    name = word_at(line, 0)
                    yield Directive(name, line[len(name) :].lstrip(BLANKS), begin, end)
                    begin = -1
            elif opening and kind != _COMMENT and text[start:end].strip(BLANKS + "\n"):
                return

    def code(self) -> str:
        """Return the text with a blank for each comment and each literal."""
        return " ".join(self.text[start:end] for kind, start, end in self.pieces() if kind == _CODE)

    def _raw_end(self, start: int) -> int:
        """Return the end of a raw string, which contains no splices; 0 if the quote does not begin one."""
        at = self.origin(start) + 1
        opening = re.compile(_DELIMITER).match(self.source, at)
        if opening is None or not self._raw_may_end:
            return 0
        close = f'){opening[0][:-1]}"'
        end = self.source.find(close, opening.end())
        if end < 0:  # an unclosed string, which is an error; to stay linear, search no later one
            self._raw_may_end = False
            return 0
        end += len(close)
        index = bisect_right(self._resumes, end) - 1
        return end if index < 0 else end - self._resumes[index] + self._cuts[index]


def readable(source: str) -> str:
    """Return the text if it is short enough to be searched for the cause of an error, otherwise ``""``."""
    return source if len(source) <= MOST_READ else ""


def joined(source: str) -> str:
    """Return a text with all lines joined that any compiler joins, without scanning for literals."""
    # The first line takes a tenth of the time of the regular expression, which few texts need.
    source = source.replace("\\\n", "")
    return _ANY_SPLICE.sub("", source) if "\\" in source or "??/" in source else source


def spellings(source: str) -> Iterable[str]:
    """Return a text with lines joined as NVRTC and as GCC do, with and without trigraphs."""
    old = source.replace("??/", "\\").replace("??=", "#")
    return dict.fromkeys((Text(source).text, joined(source), Text(old).text, joined(old)))


def blanked(source: str, *, literals: bool = False, directives: bool = False) -> str:
    """Replace comments, and optionally literals and directives, by blanks; lines and columns do not change."""
    text = Text(source)
    parts = []
    at = 0
    inside = False
    for kind, start, end in text.pieces():
        inside = kind == _HASH or (inside and kind != _END)
        if kind == _COMMENT or (literals and kind == _LITERAL) or (directives and inside):
            begin, stop = text.origin(start), text.origin(end - 1) + 1
            parts.append(source[at:begin])
            parts.append("\n".join(" " * len(line) for line in source[begin:stop].split("\n")))
            at = stop
    parts.append(source[at:])
    return "".join(parts)


def word_at(text: str, at: int) -> str:
    """Return the word or number at an offset, or ``""``."""
    return text[at : _WORD.match(text, at).end()]  # type: ignore[union-attr]


@functools.lru_cache(maxsize=2)  # needed for each error of a source
def renumbered(source: str) -> dict[int, tuple[int, str]]:
    """Return each ``#line 7 "a.cu"`` or ``# 7 "a.cu" 2`` as (7, "a.cu"), by its last line in the text."""
    text, found = Text(source), dict[int, tuple[int, str]]()
    for directive in text.directives():
        body = directive.body if directive.name == "line" else f"{directive.name} {directive.body}"
        number = word_at(body, 0)
        if number.isdecimal() and len(number) < 10:
            file = body[len(number) :].strip(BLANKS)
            line = source.count("\n", 0, text.origin(directive.end)) + 1
            found[line] = int(number), file[1 : file.rfind('"')] if file[:1] == '"' else ""
    return found


def has_word(text: str, words: Iterable[str]) -> bool:
    """Return whether a text contains one of the words as a whole word."""
    found = (re.search(rf"(?<!\w){word}(?!\w)", text, re.ASCII) for word in words if word in text)
    return any(found)


# --- Conclusions from a source's text before it is compiled; in doubt they choose the slower build --


def split_prefix(source: str) -> tuple[str, str]:
    """Split a source after its last leading include: return the directives up to it, without comments, and the rest."""
    # ``#line`` and ``#pragma nv_no_pch`` end the leading directives, since the compiler makes no precompiled header
    # there. A source with ``??/`` is not split, since before C++17 this trigraph joins lines.
    if len(source) > MOST_READ or "include" not in source or "??/" in source:
        return "", source
    text = Text(source)
    directives: list[str] = []
    usable = depth = end = 0
    included = False
    for directive in text.directives(opening=True):
        name = directive.name
        line = text.text[directive.start : directive.end]
        if not line.rstrip().endswith("\\"):  # without blanks, the `\` would join the next line
            line = line.rstrip()
        if name == "line" or name.isdigit() or 'R"' in line:  # raw strings keep their line splices
            break
        if name == "pragma" and has_word(directive.body, ("nv_no_pch",)):
            break
        directives.append(line)
        depth += name in ("if", "ifdef", "ifndef")
        depth -= name == "endif"
        included |= name == "include"
        if depth == 0 and name in ("include", "endif"):
            usable, end = len(directives), text.origin(directive.end)
    if not (included and usable):
        return "", source
    return "\n".join(directives[:usable]) + "\n", source[end:]


_CLOCK = ("__DATE__", "__TIME__", "__TIMESTAMP__")
_OWN_PATH = ("__FILE", "__BASE_FILE__", "__builtin_FILE", "source_location")


class Mentions(NamedTuple):
    """The words in a text that decide whether a build may be cached or shared."""

    clock: str  # the first of ``__DATE__``, ``__TIME__``, ``__TIMESTAMP__`` in the code, "" if none
    own_path: bool  # whether the text can put its own path into the code (``__FILE__``)


@functools.lru_cache(maxsize=64)  # a build scans the same few texts three times
def scan(text: str) -> Mentions:
    """Scan a source or a header; comments count only where compilers may disagree about them."""
    whole = joined(text)
    clock = next((macro for macro in _CLOCK if macro in whole), "")
    if clock and len(text) <= MOST_READ and len([*spellings(text)]) == 1:
        reading = Text(text)
        code = reading.code()
        if not reading.differs:
            clock = next((macro for macro in _CLOCK if macro in code), "")
    return Mentions(clock, any(word in whole for word in _OWN_PATH))


# A source that reads a file contains one of these words: in `#include`, `#embed`, a pragma, `import` of a module,
# `__has_include`. To assemble `__has_include`, a `##` needs one of `_PASTED_STARTS` as a word.
_READING = ("include", "import", "embed", "pch", "__has_")
_PASTED_STARTS = ("_", "__", "__h", "__ha", "__has")


def reads_no_file(source: str, options: tuple[str, ...]) -> bool:
    """Return whether a build certainly reads no file besides its source; comments and strings count too."""
    given = _given(options)
    if given is None or len(source) > MOST_READ:
        return False
    return not any(map(_may_read, spellings(f"{source}\n\n{given}")))


@functools.lru_cache(maxsize=16)
def _given(options: tuple[str, ...]) -> str | None:
    """Return the options except ``-I`` as one text; None if their macros may assemble the name of a file."""
    given = "\n\n".join(o for o in options if not o.startswith(("-I", "--include-path")))
    return None if any(sign in given for sign in "#%?") else given


def _may_read(text: str) -> bool:
    text = text.lower()
    is_pasted = ("##" in text or "%:%:" in text) and has_word(text, _PASTED_STARTS)
    # The assembler sees adjacent string literals as one string.
    is_assembled = "asm" in text and ".include" in "".join(text.replace('"', "").split())
    return is_pasted or is_assembled or any(word in text for word in _READING)


_CLOSING = {"(": ")", "<": ">", "{": "}"}


def enclosed(text: str, opening: int) -> str:
    """Return what follows the bracket at an offset, up to the one that closes it or to the text's end."""
    pair = text[opening] + _CLOSING[text[opening]]
    depth = rounds = 0
    for bracket in re.compile(f"[{pair}()]").finditer(text, opening + 1):
        if bracket[0] not in pair:  # `template <int N = (a > b)>`
            rounds += 1 if bracket[0] == "(" else -1
        elif not rounds:
            depth += 1 if bracket[0] == pair[0] else -1
        if depth < 0:
            return text[opening + 1 : bracket.start()]
    return text[opening + 1 :]


def around(code: str, offsets: Iterable[int]) -> Iterator[list[str]]:
    """Yield, for each of these ascending offsets, the text before each ``{`` open there, and the statement there."""
    opened: list[str] = []
    tokens, begin = re.finditer(r"[{};]|\Z", code), 0
    token = next(tokens)
    for at in offsets:
        while token[0] and token.end() <= at:
            if token[0] == "{":
                opened.append(code[begin : token.start()])
            elif token[0] == "}":
                del opened[-1:]
            begin, token = token.end(), next(tokens)
        yield [*opened, code[begin : token.start()]]


def split(text: str, brackets: str = "<([>)]") -> Iterator[str]:
    """Split a list of parameters or template arguments at its top-level commas."""
    return (text[begin:end] for begin, end in spans(text, 0, len(text), brackets))


def spans(text: str, begin: int, end: int, brackets: str) -> Iterator[tuple[int, int]]:
    """Yield where each part of a list begins and ends; `brackets` are the opening ones, then the closing ones."""
    opening, closing, depth = brackets[:3], brackets[3:], 0
    for at in range(begin, end + 1):
        character = text[at] if at < end else ","
        depth += (character in opening) - (character in closing)
        if character == "," and (at == end or depth == 0):
            part = text[begin:at]
            start = begin + len(part) - len(part.lstrip())
            yield start, start + len(part.strip())
            begin = at + 1


# Maps C++'s names of types to NumPy's; the first name of a type is the one for template arguments.
NUMBERS = {
    "bool": "?",
    "signed char": "i1",
    "char": "i1",
    "unsigned char": "u1",
    "short": "i2",
    "unsigned short": "u2",
    "int": "i4",
    "unsigned int": "u4",
    "long long": "i8",
    "unsigned long long": "u8",
    "long": "i8",
    "unsigned long": "u8",
    "size_t": "u8",
    "ptrdiff_t": "i8",
    "float": "f4",
    "double": "f8",
    "__half": "f2",
    "half": "f2",
    "complex<float>": "c8",
    "complex<double>": "c16",
    "cuFloatComplex": "c8",
    "cuComplex": "c8",
    "cuDoubleComplex": "c16",
    **{f"int{bits}_t": f"i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}_t": f"u{bits // 8}" for bits in (8, 16, 32, 64)},
}

# Matches a brace (a namespace's with its name), a semicolon, or a kernel up to the bracket of its parameters, with any
# attributes, such as __launch_bounds__(256), before its name. A specialisation's name, `k<int>(…)`, does not match.
_STRUCTURE = (
    r"\bnamespace\s*(?P<namespace>[\w:]*)\s*\{|[{};]"
    r"|\b__global__\b(?:[^;{(]*?\b__\w+__\s*\((?:[^()]|\([^()]*\))*\))*[^;{(]*?\b(?P<name>\w+)\s*\("
)


class Kernel(NamedTuple):
    """A kernel as a text declares it."""

    name: str
    qualified: str  # with its namespaces
    parameters: str  # the text between its parentheses
    template: tuple[str, ...] | None  # the names of its template parameters
    is_defined: bool
    line: int


def kernels(source: str) -> Iterator[Kernel]:
    """Yield the kernels that a source defines or declares, in every branch, without specialisations."""
    code = blanked(source, literals=True, directives=True)
    scopes: list[str] = []  # for each open brace, the name of its namespace, or ""
    begin = 0  # where the current declaration begins
    for match in re.finditer(_STRUCTURE, code):
        if match["name"] is None:
            begin = match.end()
            if match[0] == "}":
                del scopes[-1:]
            elif match[0] != ";":
                scopes.append(match["namespace"] or "")
            continue
        parameters = enclosed(code, match.end() - 1)
        body = re.compile(r"\s*\{").match(code, match.end() + len(parameters) + 1)
        yield Kernel(
            match["name"],
            "::".join([*filter(None, scopes), match["name"]]),
            " ".join(parameters.split()),
            _template_parameters(code[begin : match.start()]),
            body is not None,
            code.count("\n", 0, match.start("name")) + 1,
        )


def _template_parameters(declaration: str) -> tuple[str, ...] | None:
    match = re.search(r"\btemplate\s*<(.*)>", declaration, re.DOTALL)
    if match is None or not match[1].strip():
        return None  # it is not a template, or it is a specialisation
    words = (re.findall(r"\w+", piece.partition("=")[0]) for piece in split(match[1]))
    return tuple(found[-1] if found else "" for found in words)


def unusual(source: str) -> Iterator[tuple[int, str]]:
    """Yield a line number and a message for code that compilers accept silently and that is probably a mistake."""
    if not source.strip():
        yield 1, "the source is empty"
    if not re.search(r"__global__[^;{]*&", source):
        return
    for kernel in kernels(source):
        for parameter in split(kernel.parameters):
            if found := re.search(r"&\s*(\w*)$", parameter):
                yield (
                    kernel.line,
                    f"the parameter {found[1] or parameter} of {kernel.name} is a reference, and a launch takes the "
                    "value given for it as the address of the object",
                )

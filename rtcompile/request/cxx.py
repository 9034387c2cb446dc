"""Reads C++ text as a preprocessor's first phases do: comments, literals, directives. Pure, linear in its length.

Nothing is expanded and no branch is left out. Where compilers and standards differ, `Text` reads as
NVRTC does with C++17 (seen in 12.9 and 13.0): a `\\` with blanks behind it does not join lines, a
lone carriage return is a blank, a line that begins within a comment may be a directive, and there
are no trigraphs. `readings` gives the other possibilities, but for C++03's lack of raw strings.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator

BLANKS = " \t\v\f\r"
# Characters of a text that is read here. A longer one was written by a program, and reading it would take
# longer than a caller's time limit: of such a text only words are looked for, at the speed of C.
MOST_READ = 256 << 10
_Piece = tuple[str, int, int]
_CODE, _COMMENT, _LITERAL, _HASH, _END = "code", "comment", "literal", "hash", "end"
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_RAW = ("R", "LR", "uR", "UR", "u8R")
_NOT_IN_DELIMITER = frozenset(' )\\\t\v\f\n"')
_MOST_IN_DELIMITER = 16
_INCLUDES = ("include", "include_next", "import")
_TRIGRAPHS = (("??/", "\\"), ("??=", "#"), ("??'", "^"))  # those that change what begins and ends


class Directive:
    """A line for the preprocessor, which comments and splices may spread over several.

    `body` has no comments, splices and blanks around it. `name` is ``""`` where no word follows the
    ``#``. `start` and `end` are the offsets of the ``#`` and of the line's end in `Text.text`.
    """

    __slots__ = ("body", "end", "name", "start")

    def __init__(self, text: str, start: int, end: int) -> None:
        text = text.strip(BLANKS)
        self.name = word_at(text, 0)
        self.body = text[len(self.name) :].lstrip(BLANKS)
        self.start, self.end = start, end

    @property
    def included(self) -> str:
        """What is included, as it is written: ``<a.h>``, ``"a.h"`` or a macro; ``""`` if nothing is."""
        if self.name not in _INCLUDES:
            return ""
        closing = {"<": ">", '"': '"'}.get(self.body[:1], "")
        end = self.body.find(closing, 1) if closing else -1
        return self.body[: end + 1] if end > 0 else self.body


class Text:
    """A text of C++: `source` as it was written, and `text` with continued lines joined.

    `differs` says whether `pieces` met what a compiler reads in another way in a branch that it
    skips, or with an older standard: an apostrophe in a number, a quote or a comment's beginning in
    a header's name.
    """

    __slots__ = (
        "_coarse",
        "_cuts",
        "_next",
        "_raw",
        "_resumes",
        "_separator",
        "differs",
        "source",
        "text",
    )

    def __init__(self, source: str, *, coarse: bool = False) -> None:
        self.source, self._coarse, self.differs = source, coarse, False
        # Offsets in `text` where something was cut out, and the offsets in `source` that follow.
        self._cuts: list[int] = []
        self._resumes: list[int] = []
        self.text = self._unspliced()
        self._separator = -1  # the end of the last apostrophe within a number

    def origin(self, at: int) -> int:
        """Return where a character of `text` stands in `source`."""
        index = bisect_right(self._cuts, at) - 1
        return at if index < 0 else at - self._cuts[index] + self._resumes[index]

    def pieces(self) -> Iterator[_Piece]:
        """Yield (kind, start, end) in `text` for all of it, in order, reading no further than needed.

        The kinds are "code", "comment" and "literal" (without its prefix); a directive begins with
        "hash" and ends with "end", which is empty.
        """
        text, size = self.text, len(self.text)
        self._find()
        next_line, next_block, next_double, next_single, _, _, next_hash, next_digraph = self._next
        line = block = double = single = hash_ = digraph = -1
        at, blank = 0, True  # whether the line contains only blanks and comments so far
        while at < size:
            # Written out, since most of the time is spent here: what lies ahead is not looked for again.
            line = line if line >= at else next_line(at)
            block = block if block >= at else next_block(at)
            double = double if double >= at else next_double(at)
            single = single if single >= at else next_single(at)
            hash_ = hash_ if hash_ >= at else next_hash(at)
            digraph = digraph if digraph >= at else next_digraph(at)
            start = min(line, block, double, single, hash_, digraph)
            if start > at:
                yield _CODE, at, start
                begin = text.rfind("\n", at, start) + 1
                blank = (blank or begin > 0) and not text[begin or at : start].strip(BLANKS)
            if start == size:
                return
            if text[start] not in "#%":
                kind, at = self._token(start)
                # For NVRTC a line begins within a comment too, whatever stands before it.
                blank = kind == _COMMENT and (blank or "\n" in text[start:at])
                yield kind, start, at
            elif blank:
                at = yield from self._directive(start)
            else:
                at = start + 1
                yield _CODE, start, at

    def directives(self, *, opening: bool = False) -> Iterator[Directive]:
        """Yield the directives; with `opening` only those before any code."""
        text = self.text
        begin = -1
        pieces: list[_Piece] = []
        for kind, start, end in self.pieces():
            if kind == _HASH:
                begin, pieces = start, []
            elif begin >= 0:
                pieces.append((kind, start, end))
                if kind == _END:
                    yield self._parsed(pieces, begin)
                    begin = -1
            elif opening and kind != _COMMENT and text[start:end].strip(BLANKS + "\n"):
                return

    def code(self) -> str:
        """Return the text with a blank for each comment and each literal."""
        return " ".join(self.text[start:end] for kind, start, end in self.pieces() if kind == _CODE)

    def _find(self) -> None:
        words = ("//", "/*", '"', "'", "\n", "\\", "#", "%:")
        self._raw: tuple[str, ...] = _RAW
        self._next = tuple(_Finder(self.text, word) for word in words)

    def _parsed(self, pieces: list[_Piece], start: int) -> Directive:
        text = self.text
        said = (" " if kind == _COMMENT else text[begin:end] for kind, begin, end in pieces)
        return Directive("".join(said), start, pieces[-1][2])

    def _unspliced(self) -> str:
        source = self.source
        if "\\\n" not in source and "\\\r\n" not in source:
            return source
        plain, windows = _Finder(source, "\\\n"), _Finder(source, "\\\r\n")
        parts = []
        at = length = 0
        while (cut := min(plain(at), windows(at))) < len(source):
            parts.append(source[at:cut])
            length += cut - at
            at = cut + (2 if source[cut + 1] == "\n" else 3)
            self._cuts.append(length)
            self._resumes.append(at)
        parts.append(source[at:])
        return "".join(parts)

    def _directive(self, start: int) -> Generator[_Piece, None, int]:
        """Yield the pieces of a directive, and return where it ends."""
        line, block, double, single, newline, *_ = self._next
        text, size = self.text, len(self.text)
        at = start + (1 if text[start] == "#" else 2)
        yield _HASH, start, at
        named = self._coarse
        expected = False  # whether the name of a header is what follows
        while True:
            start = min(line(at), block(at), double(at), single(at), newline(at))
            said = text[at:start].strip(BLANKS)
            if said and not named:
                named, name = True, word_at(said, 0)
                expected = name in _INCLUDES
                said = said[len(name) :].lstrip(BLANKS)
            if expected and (said or text[start : start + 1] == '"'):
                expected = False
                if end := self._header_end(at, start, said):
                    yield _CODE, at, end
                    at = end
                    continue
            if start > at:
                yield _CODE, at, start
            if start == size or text[start] == "\n":
                yield _END, start, start
                return start
            kind, at = self._token(start)
            yield kind, start, at

    def _header_end(self, at: int, start: int, said: str) -> int:
        """Return where the name of a header ends, in which there are no comments; 0 if none is here."""
        if said and said[0] != "<":
            return 0
        opening = self.text.find("<", at) if said else start
        newline = self._next[4](at)
        end = self.text.find(">" if said else '"', opening + 1, newline) + 1
        name = self.text[opening:end]
        self.differs |= "'" in name or "//" in name or "/*" in name or "\\" in name
        return end

    def _token(self, start: int) -> tuple[str, int]:
        """Return the kind and the end of what a slash or a quote begins."""
        text = self.text
        if text[start] == "/":
            if text[start + 1] == "/":
                return _COMMENT, self._next[4](start)
            end = text.find("*/", start + 2)
            return _COMMENT, end + 2 if end >= 0 else len(text)
        if text[start] == "'" and self._separates(start):
            self._separator = start + 1
            return _CODE, start + 1
        return _LITERAL, self._raw_end(start) or self._literal_end(start)

    def _literal_end(self, start: int) -> int:
        _, _, double, single, newline, backslash, *_ = self._next
        quote = double if self.text[start] == '"' else single
        at = start + 1
        while (end := min(quote(at), newline(at), backslash(at))) == backslash(at) < len(self.text):
            at = end + 2
        return end + 1 if end == quote(at) < len(self.text) else end

    def _separates(self, start: int) -> bool:
        """Return whether an apostrophe stands between the digits of a number: 1'000."""
        text = self.text
        if text[start + 1 : start + 2] not in _WORD:
            return False
        begin = end = start
        while True:
            while begin and (text[begin - 1] in _WORD or text[begin - 1] == "."):
                begin -= 1
            word = text[begin:end]
            if begin == self._separator or word[:1].isdigit() or _has_fraction(word):
                self.differs = True
                return not self._coarse
            if begin < 2 or text[begin - 1] not in "+-" or text[begin - 2] not in "eEpP":
                return False
            begin = end = begin - 1  # the number may have had an exponent: 1e+10'000

    def _raw_end(self, start: int) -> int:
        """Return where a raw string ends, in which nothing is spliced; 0 if the quote begins none."""
        text, source = self.text, self.source
        begin = start
        while start - begin < 4 and begin and text[begin - 1] in _WORD:
            begin -= 1
        if text[start] == "'" or text[begin:start] not in self._raw:
            return 0
        if text[begin - 1 : begin] in (
            "'",
            '"',
        ):  # the prefix is a number's or another literal's end
            return 0
        at = self.origin(start) + 1
        opening = source.find("(", at, at + _MOST_IN_DELIMITER + 1)
        delimiter = source[at:opening]
        if opening < 0 or not _NOT_IN_DELIMITER.isdisjoint(delimiter):
            return 0
        end = source.find(f'){delimiter}"', opening)
        if end < 0:  # an error, after which NVRTC reads on; once is enough to look so far
            self._raw = ()
            return 0
        end += len(delimiter) + 2
        index = bisect_right(self._resumes, end) - 1
        return end if index < 0 else end - self._resumes[index] + self._cuts[index]


class _Finder:
    """Finds the next occurrence of a word from growing offsets, passing each character once."""

    __slots__ = ("_at", "_size", "_text", "_word")

    def __init__(self, text: str, word: str) -> None:
        self._text, self._word, self._size, self._at = text, word, len(text), -1

    def __call__(self, start: int) -> int:
        """Return the offset; the text's length if there is no further one."""
        if self._at < start:
            at = self._text.find(self._word, start)
            self._at = at if at >= 0 else self._size
        return self._at


def readable(source: str) -> str:
    """Return a text in which the cause of an error is looked for; ``""`` if it is too long for that."""
    return source if len(source) <= MOST_READ else ""


def joined(source: str) -> str:
    """Return a text with all lines joined that any compiler joins, at the speed of C."""
    if "\\" not in source and "??/" not in source:
        return source
    import re  # only a long text needs it

    return re.sub(r"(?:\\|\?\?/)[ \t\v\f\r]*\n", "", source)


def readings(source: str) -> Iterator[Text]:
    """Yield the up to six readings of a text by compilers; read each to its end before the next."""
    sources = [source]
    if "??" in source:
        old = source
        for three, one in _TRIGRAPHS:
            old = old.replace(three, one)
        sources.append(old)
    if any(f"\\{blank}" in source for blank in BLANKS):
        # GCC joins lines there too.
        sources += ["\n".join(map(_trimmed, text.split("\n"))) for text in sources]
    for reading in dict.fromkeys(sources):
        text = Text(reading)
        yield text
        if text.differs:
            yield Text(reading, coarse=True)


def blanked(source: str, *, literals: bool = False, directives: bool = False) -> str:
    """Return a text with blanks for its comments, and for more if asked; lines and columns stay."""
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
    """Return the word or number that begins at an offset; ``""`` if none does."""
    end = at
    while text[end : end + 1] in _WORD:
        end += 1
    return text[at:end]


def renumbered(source: str) -> Iterator[tuple[int, int, str]]:
    """Yield what ``#line 7 "a.cu"`` or ``# 7 "a.cu" 2`` says: its last line in the text, 7, "a.cu"."""
    text = Text(source)
    for directive in text.directives():
        said = directive.body if directive.name == "line" else f"{directive.name} {directive.body}"
        number = word_at(said, 0)
        if number.isdecimal() and len(number) < 10:
            file = said[len(number) :].strip(BLANKS)
            line = source.count("\n", 0, text.origin(directive.end)) + 1
            yield line, int(number), file[1 : file.rfind('"')] if file[:1] == '"' else ""


def has_word(text: str, words: Iterable[str]) -> bool:
    """Return whether one of the words stands in a text as a whole word."""
    for word in words:
        at = text.find(word)
        while at >= 0:
            end = at + len(word)
            if text[at - 1 : at] not in _WORD and text[end : end + 1] not in _WORD:
                return True
            at = text.find(word, end)
    return False


def words_with(text: str, stem: str) -> Iterator[int]:
    """Yield the ends of a stem wherever a word begins with it, behind underscores or none."""
    at = text.find(stem)
    while at >= 0:
        begin = at
        while text[begin - 1 : begin] == "_":
            begin -= 1
        if text[begin - 1 : begin] not in _WORD:
            yield at + len(stem)
        at = text.find(stem, at + len(stem))


def _has_fraction(word: str) -> bool:
    at = word.find(".")
    while at >= 0:
        if word[at + 1 : at + 2].isdigit():
            return True
        at = word.find(".", at + 1)
    return False


def _trimmed(line: str) -> str:
    short = line.rstrip(BLANKS)
    return short if short.endswith("\\") else line

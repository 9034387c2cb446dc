"""The caret of a message in the source, and changes of it, as ``changes.ini`` lists them, which are compiled before a hint names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise

from rtcompile.messages.declared import BASIC, OPERAND, declared_as
from rtcompile.messages.diagnostics import simplified
from rtcompile.messages.facts import (
    TABLES,
    BuildContext,
    Match,
    Values,
    read_sections,
    renamed,
)
from rtcompile.named import computed_once
from rtcompile.request import cxx

_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[\w.]+|\S')
_NEAR_TOKENS = 600  # characters before and behind the caret in which tokens are looked for
_LONGEST_SHOWN = 40
LAST = re.compile(r"[\w.]+(?:\[[^\[\]\n]*\])*$|\S$")


@dataclass(frozen=True)
class Spot:
    """The caret in a source."""

    source: str
    at: int  # offset of the caret

    @computed_once
    def code(self) -> str:
        """Return the source with blanks for comments, literals and directives."""
        return cxx.blanked(self.source, literals=True, directives=True)

    @computed_once
    def plain(self) -> str:
        """Return the source with blanks for comments and directives."""
        return cxx.blanked(self.source, directives=True)

    @computed_once
    def before(self) -> list[Match]:
        """Return the tokens before the caret, the nearest first."""
        begin = self.plain.rfind("\n", 0, max(0, self.at - _NEAR_TOKENS)) + 1  # no token is cut
        return [*_TOKEN.finditer(self.plain, begin, self.at)][::-1]

    @computed_once
    def after(self) -> list[Match]:
        """Return the tokens from the caret on."""
        return [*_TOKEN.finditer(self.plain, self.at, self.at + _NEAR_TOKENS)]

    @property
    def row(self) -> tuple[int, int]:
        """Return where the caret's line begins and ends."""
        return self.code.rfind("\n", 0, self.at) + 1, (self.code + "\n").index("\n", self.at)

    @property
    def is_inside(self) -> bool:
        """Return whether the caret is in braces."""
        return self.code.count("{", 0, self.at) > self.code.count("}", 0, self.at)

    @property
    def word(self) -> str:
        """Return the word at the caret."""
        return cxx.word_at(self.code, self.at)

    @computed_once
    def around(self) -> tuple[str, int, list[tuple[int, int]]]:
        """Return the function whose call encloses the caret, the offset of its (, and the spans of the arguments."""
        at, depth = self.at - 1, 0
        while at >= 0 and self.code[at] not in ";{}":
            depth += (self.code[at] in ")]") - (self.code[at] in "([")
            if depth < 0:
                return self._called(at)
            at -= 1
        return "", 0, []

    @computed_once
    def call(self) -> tuple[str, int, list[tuple[int, int]]]:
        """Return the same of the function that is called at the caret, or else around it."""
        here = re.compile(r"[A-Za-z_]\w*\s*(?=\()").match(self.code, self.at)
        return self._called(here.end()) if here else self.around

    def _called(self, opening: int) -> tuple[str, int, list[tuple[int, int]]]:
        head = self.code[max(0, opening - 200) : opening]
        name = re.search(r"([A-Za-z_]\w*)\s*(?:<[^<>;()]*>|<<<[^;]*>>>)?\s*$", head)
        if name is None or self.code[opening] != "(" or name[1] in ("if", "for", "while", "switch"):
            return "", 0, []
        return name[1], opening, spans(self.code, opening)

    def line(self, at: int) -> int:
        """Return the line of an offset, counted from 1."""
        return self.source.count("\n", 0, at) + 1

    def edited(self, begin: int, end: int, new: str) -> str:
        """Return the source with another text for a part of it."""
        return self.source[:begin] + new + self.source[end:]

    def change(self, begin: int, end: int, new: str, fact: str, step: str) -> Values:
        """Return the values for a hint on replacing a part of the source."""
        return {"fact": fact, "step": step, "edited": self.edited(begin, end, new)}

    def insert(self, text: str, at: int) -> Values:
        """Return the values for a hint on a missing text."""
        before = self.source[:at].rstrip()
        last = LAST.search(before[max(0, len(before) - _LONGEST_SHOWN) :])
        shown = text.strip()
        where = f"behind `{last[0]}` in line {self.line(len(before))}" if last else "at the begin"
        return self.change(at, at, text, f"`{shown}` is missing {where}", f"Write `{shown}` there")

    def remove(self, token: Match) -> Values:
        """Return the values for a hint on a superfluous token."""
        fact = f"`{token[0]}` in line {self.line(token.start())} is one too many"
        return self.change(*token.span(), "", fact, "Remove it")

    def replace(self, token: Match, new: str) -> Values:
        """Return the values for a hint on a wrong token."""
        line = self.line(token.start())
        fact = f"`{token[0]}` stands where `{new}` belongs in line {line}"
        return self.change(*token.span(), new, fact, f"Write `{new}` in its place")


def spot_of(context: BuildContext) -> Spot | None:
    """Return the message's caret in the source; None if its line is none of the source's."""
    if context.line and context.text and not context.in_source:
        return None
    end = len(context.source)  # a line of PTX may be none of the source's
    return Spot(context.source, min(context.at, end) if context.line else end)


def in_line(context: BuildContext) -> Spot:
    """Return the message's caret in the line that the compiler printed."""
    return Spot(context.text, len(context.left))


def spans(code: str, opening: int) -> list[tuple[int, int]]:
    """Return where each argument of a call begins and ends, whose ( is at an offset; < and > are operators there."""
    found, depth, begin = list[tuple[int, int]](), 0, opening + 1
    last = begin + len(cxx.enclosed(code, opening))
    for at in range(begin, last + 1):
        letter = code[at] if at < last else ","
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and (at == last or not depth):
            part = code[begin:at]
            start = begin + len(part) - len(part.lstrip())
            found.append((start, start + len(part.strip())))
            begin = at + 1
    return found


def expressions(text: str) -> list[str]:
    """Return the arguments of a call, of which the text between ( and ) is given."""
    return [text[begin - 1 : end - 1] for begin, end in spans(f"({text})", 0)]


# --- The rows of ``changes.ini`` ----

_MOST_FOUND = 8  # of one row: a hint is worth no more compiles than that
_MOST_ARGUMENTS = 4  # of a call whose arguments are changed
_TABLE = read_sections("changes.ini")
# A row that searches around the caret begins this many characters before the caret's line.
_NEAR = 300
_PATTERNS = (
    "near",
    "operand",
    "argument",
    "basic",
    "keyword",
)  # words that are patterns themselves
_NAME = re.compile(r"\{([a-z]\w*)\}")


def _filled(template: str, values: Mapping[str, str]) -> str:
    return _NAME.sub(lambda name: values.get(name[1], ""), template).replace("\\n", "\n")


def of(section: str) -> Callable[[Match, BuildContext], Iterator[Values]]:
    """Return what yields the values of a section of the catalogue from the rows for it."""
    rows = [row for row in map(_TABLE.__getitem__, _TABLE.sections()) if row["for"] == section]

    def changed(match: Match, context: BuildContext) -> Iterator[Values]:
        said = [(row, found) for row in rows if (found := re.search(row["message"], match.string))]
        if not said:
            return
        own = spot_of(context)
        spot = own or in_line(context)  # the compiler's line of a header, or without the source
        words = _words(spot)
        if any("is" in row for row, _ in said):
            what, line, declared = declared_as(spot.word, context)
            words |= {"what": what, "declared": declared, "declared_line": str(line)}
            words["plain"] = declared.removeprefix("const ") if "const " in declared[:6] else ""
        is_tried = own is not None and context.attempts is not None
        for row, found in said:
            if is_tried or {"known", "untried"} & {*row} or not {"write", "adding"} & {*row}:
                groups = {name: simplified(text or "") for name, text in found.groupdict().items()}
                yield from _values(row, words | groups, spot, is_tried)

    return changed


def _values(
    row: Mapping[str, str], words: Mapping[str, str], spot: Spot, is_tried: bool
) -> Iterator[Values]:
    if "is" in row and row["is"] != words["what"]:
        return
    needed = _NAME.findall("".join(row.get(key, "") for key in ("find", "write", "step")))
    if not all(words.get(name, name) for name in needed):
        return
    kept = {key: row[key] for key in ("adding", "known") if key in row}
    if "find" not in row:
        yield kept | {key: _filled(row[key], words) for key in ("fact", "step")}
        return
    escaped = {n: text if n in _PATTERNS else re.escape(text) for n, text in words.items()}
    pattern = re.compile(_filled(row["find"], escaped), re.MULTILINE)
    found = [*islice(filter(None, _WITHIN[row["within"]](pattern, spot)), _MOST_FOUND)]
    for each in (found,) if "every" in row and found else ([one] for one in found):
        values = kept | _change(row, each, words, spot)
        yield values if is_tried else {k: text for k, text in values.items() if k != "edited"}


def _change(
    row: Mapping[str, str], found: list[Match], words: Mapping[str, str], spot: Spot
) -> dict[str, str]:
    """Return the values for one match, or for all of them at once."""
    edited, values = spot.source, dict(words)
    for each in reversed(found):
        begin, end = each.span("old" if "old" in each.re.groupindex else 0)
        groups = {name: spot.source[slice(*each.span(name))] for name in each.re.groupindex}
        values |= groups | {"old": spot.source[begin:end], "line": str(spot.line(begin))}
        values["number"] = str(1 + sum(end < begin for _, end in spot.call[2]))
        if "write" in row:
            right = _filled(row["write"], values)
            edited = edited[:begin] + right + edited[end:]
            edited = renamed(spot.source, values["old"], right) if "rename" in row else edited
            values["write"] = " ".join(right.split())
    name, opening, arguments = spot.call
    if arguments:
        end = arguments[-1][1] + len(edited) - len(spot.source)
        values["called"] = f"{name}({edited[opening + 1 : end]})"
    texts = {key: _filled(row[key], values) for key in ("fact", "step")}
    return texts | {"edited": edited} if "write" in row else texts


def _words(spot: Spot) -> dict[str, str]:
    """Return the words beside the caret that a row may use."""
    begin, _ = spot.row
    beside = re.search(r"(\w+)\W*$", spot.code[begin : spot.at])
    near = "|".join(filter(None, dict.fromkeys((spot.word, beside[1] if beside else ""))))
    left = LAST.search(spot.plain[max(0, begin - _NEAR) : spot.at].rstrip())
    index = r"\[([A-Za-z_]\w*)\]"
    indices = re.findall(index, spot.code[: spot.at])[-1:] or re.findall(index, spot.code)[:1]
    return {
        "word": spot.word,
        "near": near,
        "left": left[0] if left else "",
        "operand": OPERAND,
        "basic": BASIC,
        "keyword": "|".join(TABLES["keywords"]),
        "argument": r"(?:[^,()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))+",
        "call": spot.call[0],
        "around": spot.around[0],
        "index": "".join(indices),
    }


def _around_caret(pattern: re.Pattern[str], spot: Spot) -> Iterable[Match]:
    begin, end = spot.row
    found = pattern.finditer(spot.code, max(0, begin - _NEAR), end)
    return (each for each in found if each.start() <= spot.at <= each.end())


def _in_arguments(pattern: re.Pattern[str], spot: Spot) -> Iterable[Match | None]:
    arguments = spot.call[2] if len(spot.call[2]) <= _MOST_ARGUMENTS else []
    return (pattern.fullmatch(spot.code, *span) for span in arguments)


def _in_parameter(pattern: re.Pattern[str], spot: Spot) -> Iterator[Match]:
    """Yield the matches in the parameter that the argument at the caret is for."""
    function, _, arguments = spot.around
    number = sum(last < spot.at for _, last in arguments)
    head = re.compile(rf"[\w>][\s*&]+{re.escape(function)}\s*\(")
    for each in islice(head.finditer(spot.code), _MOST_FOUND):
        for span in spans(spot.code, each.end() - 1)[number : number + 1]:
            yield from pattern.finditer(spot.code, *span)


# Where a row searches, and how: the nearest matches first.
_WITHIN: dict[str, Callable[[re.Pattern[str], Spot], Iterable[Match | None]]] = {
    "at": lambda pattern, spot: [pattern.match(spot.code, spot.at)],
    "inside": lambda pattern, spot: [pattern.match(spot.code, spot.at)] * spot.is_inside,
    "caret": _around_caret,
    "line": lambda pattern, spot: pattern.finditer(spot.code, *spot.row),
    "after": lambda pattern, spot: pattern.finditer(spot.code, spot.at, spot.row[1]),
    "before": lambda pattern, spot: [*pattern.finditer(spot.code, 0, spot.row[1])][::-1],
    "arguments": _in_arguments,
    "pairs": lambda pattern, spot: (
        pattern.fullmatch(spot.code, one[0], two[1]) for one, two in pairwise(spot.call[2])
    ),
    "parameter": _in_parameter,
    "text": lambda pattern, spot: [*pattern.finditer(spot.source, 0, spot.row[1])][::-1],
    "source": lambda pattern, spot: pattern.finditer(spot.code),
}

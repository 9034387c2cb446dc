"""The caret of a message in the source: the tokens, the call and the words around it, and changes there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rtcompile.messages.facts import BuildContext, Match, Values
from rtcompile.named import computed_once
from rtcompile.request import cxx

_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[\w.]+|\S')
_NEAR = 600  # characters before and behind the caret in which tokens are looked for
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
        begin = self.plain.rfind("\n", 0, max(0, self.at - _NEAR)) + 1  # no token is cut
        return [*_TOKEN.finditer(self.plain, begin, self.at)][::-1]

    @computed_once
    def after(self) -> list[Match]:
        """Return the tokens from the caret on."""
        return [*_TOKEN.finditer(self.plain, self.at, self.at + _NEAR)]

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
    if not context.line:
        return Spot(context.source, len(context.source))
    lines = context.source.split("\n")
    own = lines[context.line - 1] if context.line <= len(lines) else ""
    if context.text and own.strip() != context.text.strip():
        return None
    return Spot(context.source, context.at)


def in_line(context: BuildContext) -> Spot:
    """Return the message's caret in the line that the compiler printed."""
    return Spot(context.text, min(max(0, context.column - 1), len(context.text)))


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

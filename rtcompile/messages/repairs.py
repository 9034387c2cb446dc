"""Changes near the caret with which the compiler may read a source again: each is compiled before it is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from rtcompile.messages import changes
from rtcompile.messages.changes import Spot, spot_of
from rtcompile.messages.facts import BuildContext, Match, Values
from rtcompile.request import cxx

_FEW = 6  # tokens on each side of the caret between which a bracket may be missing


def repaired(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield changes of a source that the compiler cannot read, the likeliest first."""
    spot = spot_of(context)
    if spot is None:
        return
    expected = re.match(r'[^\n]*\bexpected an? "(.)"', match.string)
    wanted = expected[1] if expected else ""
    yield from _strings(spot)
    yield from changes.of("repaired")(match, context)
    yield from _macros(spot, context.text)
    if wanted in (";", ""):
        yield from _brackets(spot)
    yield from _missing(spot, wanted)
    yield from _ended(spot)
    yield from _wrong(spot, wanted)
    yield from changes.of("repaired-last")(match, context)


def unbalanced(_: Match, context: BuildContext) -> Iterator[Values]:
    """Yield the brace that is missing or superfluous, where the indentation or the end of the source shows it."""
    spot = spot_of(context)
    # Of an #if and its #else, the compiler reads one, so braces cannot be counted.
    if spot is not None and not re.search(r"^[ \t]*#[ \t]*el", spot.source, re.MULTILINE):
        yield from _braces(spot)


def _missing(spot: Spot, wanted: str) -> Iterator[Values]:
    """Yield insertions of what the compiler expects, and of a comma or a semicolon."""
    end = spot.before[0].end() if spot.before else 0
    word = spot.after[0][0] if spot.after else ""
    declared = re.search(r"}[\w\s]*$", spot.code[: spot.at])
    if declared:  # of a class: behind it stand the words of the next declaration
        yield spot.insert(";", declared.start() + 1)
    if wanted == "]":
        signs = [each for each in spot.before[:_FEW] if each[0] == "="]
        yield from (spot.insert("]", each.start()) for each in signs)
    if wanted in (")", "}") and re.match(r"[\w.\"(]", word) and spot.before[:1]:
        yield spot.insert(",", end)
    if wanted:
        yield spot.insert(wanted, spot.at if wanted == "(" else end)
    if wanted in (")", "]", ">"):
        if word == ";":
            yield spot.replace(spot.after[0], ",")
        for token in (*spot.before[1:_FEW], *spot.after[:_FEW]):
            yield spot.insert(wanted, token.end())


def _brackets(spot: Spot) -> Iterator[Values]:
    """Yield a bracket that the statement at the caret lacks, or has one too many of."""
    begin = max(spot.code.rfind(each, 0, spot.at) for each in ";{}") + 1
    end = re.compile(r"[;{}]|$").search(spot.code, spot.at)
    for opening, closing in (("(", ")"), ("[", "]")):
        part = spot.code[begin : end.start() if end else None]
        more = part.count(opening) - part.count(closing)
        if more < 0:
            found = [each for each in (*spot.after[:1], *spot.before) if each[0] == closing]
            yield from (spot.remove(each) for each in found[:2])
            tokens = [each for each in spot.before if each.start() >= begin]
            yield from (spot.insert(opening, each.start()) for each in tokens[:_FEW])
        elif more > 0:
            tokens = [each for each in (*spot.before[::-1], *spot.after) if each.start() >= begin]
            for each in islice(reversed(tokens), 2 * _FEW):
                yield spot.insert(closing, each.start() if each[0] in ";{}" else each.end())


def _ended(spot: Spot) -> Iterator[Values]:
    """Yield a semicolon at the caret, behind the line before it, and behind the classes before it."""
    yield from (spot.insert(";", each.end()) for each in spot.before[:1])
    begin = spot.plain.rfind("\n", 0, spot.at) + 1
    ends = [each for each in spot.before if each.end() < begin]
    yield from (spot.insert(";", each.end()) for each in ends[:1])
    closings = [each for each in spot.before if each[0] == "}"]
    yield from (spot.insert(";", each.end()) for each in closings[:3])


# What is written for another: a semicolon between parameters, a point in a list, a comma for a multiplication.
_EXCHANGED = {
    ";": ",",
    ",": ";",
    ":": ";",
    ".": ",",
    ")": "]}",
    "]": ")",
    "}": ")]",
    "(": "{",
    "[": "(",
}


def _wrong(spot: Spot, wanted: str) -> Iterator[Values]:
    """Yield other signs for those at the caret, and these left out."""
    near = [*spot.after[:1], *spot.before[:1]]
    for token in near:
        if wanted and token[0] in ";,:.":
            yield spot.replace(token, wanted)
        yield from (spot.replace(token, each) for each in _EXCHANGED.get(token[0], ""))
    yield from (
        spot.remove(token)
        for token in near
        if re.match(r"[!-~]", token[0]) and not re.match(r"\w", token[0])
    )
    for token in spot.before[1:_FEW]:
        if token[0] == ";":
            yield spot.remove(token)
    if len(near) > 1 and near[0][0] == near[1][0]:
        yield spot.remove(near[0])


def quote(_: Match, context: BuildContext) -> Iterator[Values]:
    """Yield how a text would be closed, and at last what is known of one that is not."""
    spot = spot_of(context)
    if spot is not None and context.attempts is not None:
        yield from _strings(spot)
    fact = "A string must end on the line where it begins, and this one has no closing quote"
    yield {"fact": fact, "step": "Close it behind its last character"}


def _strings(spot: Spot) -> Iterator[Values]:
    """Yield the quote that a line with an odd number of quotes lacks, and two lines that were one."""
    begin = spot.source.rfind("\n", 0, spot.at) + 1
    end = (spot.source + "\n").index("\n", spot.at)
    text = spot.source[begin:end]
    if text.replace('\\"', "").count('"') % 2 == 0:
        return
    line = spot.line(begin)
    after = (spot.source + "\n").find("\n", end + 1)
    if spot.source[end:after].replace('\\"', "").count('"') % 2:
        fact = f"The string of line {line} goes on in line {line + 1}. In a Python string, \\n becomes a real line end"
        step = "Write the source as a raw string, r'...', or double the backslash"
        yield spot.change(end, end + 1, "\\n", fact, step)
    for found in re.finditer(r"\s*[:,)]", text):
        yield spot.insert('"', begin + found.start())


_DEFINED = r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:\\\n|[^\n])*"


def _macros(spot: Spot, text: str) -> Iterator[Values]:
    """Yield the bracket that a macro of the line lacks, and the backslash of one that ends before the line."""
    words = {*re.findall(r"\w+", text)}
    for defined in islice(
        re.finditer(_DEFINED, spot.source[: spot.at], re.MULTILINE), _MOST_MACROS
    ):
        line, end = spot.line(defined.start()), len(defined[0].rstrip()) + defined.start()
        value = cxx.blanked(defined[0], literals=True)
        for opening, closing in ("()", "[]", "{}") if defined[1] in words else ():
            if value.count(opening) > value.count(closing):
                fact = f"The macro {defined[1]}, which line {line} defines, has a {opening} that is not closed"
                yield spot.change(end, end, closing, fact, f"Write {closing} at its end")
            elif value.count(opening) < value.count(closing):
                at = defined.start() + value.rindex(closing)
                fact = (
                    f"The macro {defined[1]}, which line {line} defines, has a {closing} too many"
                )
                yield spot.change(at, at + 1, "", fact, "Remove it")
        last = spot.line(end)
        if last > line and 0 < spot.line(spot.at) - last <= _NEXT_LINES:
            fact = f"Line {last} ends the macro {defined[1]}: it has no backslash at its end"
            yield spot.change(end, end, " \\", fact, "Write one there")


_MOST_MACROS = 200
_NEXT_LINES = 3


_LABEL = re.compile(r"(?:case\b.*|default\s*|public\s*|private\s*|protected\s*|\w+\s*):")


def _braces(spot: Spot) -> Iterator[Values]:
    code = spot.code
    more = code.count("{") - code.count("}")
    if not more:
        return
    starts = [0, *(each.end() for each in re.finditer("\n", code))]
    first = 1
    for number, text, depth, (begin, outer, first) in _lines(code):  # noqa: B007
        start = starts[number - 1]
        if more > 0 and depth < outer + (text[0] not in "{}"):
            fact = f"Line {number} is indented no further than line {begin}, whose {{ is still open"
            yield spot.change(start, start, "}\n", fact, f"Add a }} before line {number}")
        if more < 0 and text[0] == "}" and depth > outer:
            fact = f"Line {number} is indented further than line {begin}, whose {{ it closes"
            at = code.index("}", start)
            yield spot.change(at, at + 1, "", fact, f"Remove the }} of line {number}")
    end, at = len(code.rstrip()), code.rfind("}")
    if more > 0:
        fact = f"The {{ of line {first} is not closed"
        yield spot.change(end, end, "\n}", fact, "Write } behind its last statement")
    else:
        fact = f"The }} in line {spot.line(at)} closes nothing"
        yield spot.change(at, at + 1, "", fact, "Remove it")


def _lines(code: str) -> Iterator[tuple[int, str, int, tuple[int, int, int]]]:
    """Yield the lines inside braces whose indentation can be compared: number, text, indentation, and the block.

    The block's parts are the line and the indentation of the statement that opens it, and the first line of all.
    """
    # Each open { has its statement's line and indentation, and its block's indentation.
    stack: list[list[int]] = []
    first = head = 0
    last = ";"
    for number, line in enumerate(code.expandtabs(4).split("\n"), 1):
        text = line.strip()
        if not text or _LABEL.match(text):
            continue
        depth = len(line) - len(line.lstrip())
        first, head = (number, depth) if last in ";{}" else (first, min(head, depth))
        if stack and stack[-1][2] < 0:
            stack[-1][2] = depth
        begin, outer, inner = stack[-1] if stack else (number, -1, 0)
        if begin != number and inner > outer:
            yield number, text, depth, (begin, outer, stack[0][0])
        for brace in re.findall(r"[{}]", text):
            if brace == "{":
                stack.append([first, head, -1])
            else:
                del stack[-1:]
        last = text[-1]

"""Changes of a source near a message's caret, as ``changes.ini`` lists them or as its brackets, quotes and tokens suggest.

Each is compiled before a hint names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice, pairwise

from rtcompile.messages.declared import BASIC, OPERAND, declared_as
from rtcompile.messages.diagnostics import simplified
from rtcompile.messages.facts import (
    LAST,
    TABLES,
    BuildContext,
    Match,
    Values,
    read_sections,
    renamed,
    spans,
)
from rtcompile.request import cxx


def in_line(context: BuildContext) -> BuildContext:
    """Return the context with the line that the compiler printed as the whole source."""
    return replace(context, source=context.text, error=replace(context.error, line=1))


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
    """Return a function that yields the values of a section of the catalogue, from the rows for this section."""
    rows = [row for row in map(_TABLE.__getitem__, _TABLE.sections()) if row["for"] == section]

    def changed(match: Match, context: BuildContext) -> Iterator[Values]:
        said = [(row, found) for row in rows if (found := re.search(row["message"], match.string))]
        if not said:
            return
        spot = context if context.is_own else in_line(context)
        words = _words(spot)
        if any("is" in row for row, _ in said):
            what, line, declared = declared_as(cxx.word_at(spot.code, spot.at), context)
            words |= {"what": what, "declared": declared, "declared_line": str(line)}
            words["plain"] = declared.removeprefix("const ") if "const " in declared[:6] else ""
        is_tried = context.is_own and context.attempts is not None
        for row, found in said:
            if is_tried or {"known", "untried"} & {*row} or not {"write", "adding"} & {*row}:
                groups = {name: simplified(text or "") for name, text in found.groupdict().items()}
                yield from _values(row, words | groups, spot, is_tried)

    return changed


def _values(
    row: Mapping[str, str], words: Mapping[str, str], spot: BuildContext, is_tried: bool
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
    row: Mapping[str, str], found: list[Match], words: Mapping[str, str], spot: BuildContext
) -> dict[str, str]:
    """Return the values for one match, or for all of them at once."""
    edited, values = spot.source, dict(words)
    for each in reversed(found):
        begin, end = each.span("old" if "old" in each.re.groupindex else 0)
        groups = {name: spot.source[slice(*each.span(name))] for name in each.re.groupindex}
        values |= groups | {"old": spot.source[begin:end], "line": str(spot.line_of(begin))}
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


def _words(spot: BuildContext) -> dict[str, str]:
    """Return the words beside the caret that a row may use."""
    begin, word = spot.row[0], cxx.word_at(spot.code, spot.at)
    beside = re.search(r"(\w+)\W*$", spot.code[begin : spot.at])
    near = "|".join(filter(None, dict.fromkeys((word, beside[1] if beside else ""))))
    left = LAST.search(spot.plain[max(0, begin - _NEAR) : spot.at].rstrip())
    index = r"\[([A-Za-z_]\w*)\]"
    indices = re.findall(index, spot.code[: spot.at])[-1:] or re.findall(index, spot.code)[:1]
    return {
        "word": word,
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


def _around_caret(pattern: re.Pattern[str], spot: BuildContext) -> Iterable[Match]:
    begin, end = spot.row
    found = pattern.finditer(spot.code, max(0, begin - _NEAR), end)
    return (each for each in found if each.start() <= spot.at <= each.end())


def _in_arguments(pattern: re.Pattern[str], spot: BuildContext) -> Iterable[Match | None]:
    arguments = spot.call[2] if len(spot.call[2]) <= _MOST_ARGUMENTS else []
    return (pattern.fullmatch(spot.code, *span) for span in arguments)


def _in_parameter(pattern: re.Pattern[str], spot: BuildContext) -> Iterator[Match]:
    """Yield the matches in the parameter that the argument at the caret is for."""
    function, _, arguments = spot.around
    number = sum(last < spot.at for _, last in arguments)
    head = re.compile(rf"[\w>][\s*&]+{re.escape(function)}\s*\(")
    for each in islice(head.finditer(spot.code), _MOST_FOUND):
        for span in spans(spot.code, each.end() - 1)[number : number + 1]:
            yield from pattern.finditer(spot.code, *span)


# Where a row searches, and how: the nearest matches first.
_WITHIN: dict[str, Callable[[re.Pattern[str], BuildContext], Iterable[Match | None]]] = {
    "at": lambda pattern, spot: [pattern.match(spot.code, spot.at)],
    "inside": lambda pattern, spot: (
        [pattern.match(spot.code, spot.at)]
        * (spot.code.count("{", 0, spot.at) > spot.code.count("}", 0, spot.at))
    ),
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


# --- Brackets, quotes and tokens ----

_FEW = 6  # tokens on each side of the caret between which a bracket may be missing


def repaired(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield changes of a source that the compiler cannot read, the likeliest first."""
    if not context.is_own:
        return
    expected = re.match(r'[^\n]*\bexpected an? "(.)"', match.string)
    wanted = expected[1] if expected else ""
    yield from strings(match, context)
    yield from of("repaired")(match, context)
    yield from _macros(context, context.text)
    if wanted in (";", ""):
        yield from _brackets(context)
    yield from _missing(context, wanted)
    yield from _wrong(context, wanted)
    yield from of("repaired-last")(match, context)


def _missing(spot: BuildContext, wanted: str) -> Iterator[Values]:
    """Yield insertions of what the compiler expects, and of a comma or a semicolon."""
    end = spot.before[0].end() if spot.before else 0
    word = spot.after[0][0] if spot.after else ""
    declared = re.search(r"}[\w\s]*$", spot.code[: spot.at])
    if declared:  # of a class: behind it stand the words of the next declaration
        yield spot.insert(";", declared.start() + 1)
    if wanted in (")", "}") and re.match(r"[\w.\"(]", word) and spot.before[:1]:
        yield spot.insert(",", end)
    if wanted:
        yield spot.insert(wanted, spot.at if wanted == "(" else end)
    if wanted in (")", "]", ">"):
        if word == ";":
            yield spot.replace(spot.after[0], ",")
        for token in (*spot.before[1:_FEW], *spot.after[:_FEW]):
            yield spot.insert(wanted, token.end())
    ended = [*spot.before[:1], *(each for each in spot.before if each.end() < spot.row[0])][:2]
    closings = [each for each in spot.before if each[0] == "}"][:3]
    yield from (spot.insert(";", each.end()) for each in (*ended, *closings))


def _brackets(spot: BuildContext) -> Iterator[Values]:
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


def _wrong(spot: BuildContext, wanted: str) -> Iterator[Values]:
    """Yield the source with the signs at the caret exchanged for others, and with them removed."""
    near = [*spot.after[:1], *spot.before[:1]]
    for token in near:
        other = wanted if token[0] in ";,:." else ""
        yield from (spot.replace(token, each) for each in other + _EXCHANGED.get(token[0], ""))
    further = (token for token in spot.before[1:_FEW] if token[0] == ";")
    signs = (each for each in near if each[0].isascii() and not re.match(r"\w", each[0]))
    yield from (spot.remove(token) for token in (*signs, *further))


def strings(_: Match, spot: BuildContext) -> Iterator[Values]:
    """Yield the quote that a line with an odd number of quotes lacks, and two lines of one string joined."""
    if not spot.is_own:
        return
    begin = spot.source.rfind("\n", 0, spot.at) + 1
    end = (spot.source + "\n").index("\n", spot.at)
    text = spot.source[begin:end]
    if text.replace('\\"', "").count('"') % 2 == 0:
        return
    line = spot.line_of(begin)
    after = (spot.source + "\n").find("\n", end + 1)
    if spot.source[end:after].replace('\\"', "").count('"') % 2:
        fact = f"The string of line {line} goes on in line {line + 1}. In a Python string, \\n becomes a real line end"
        step = "Write the source as a raw string, r'...', or double the backslash"
        yield spot.change(end, end + 1, "\\n", fact, step)
    for found in re.finditer(r"\s*[:,)]", text):
        yield spot.insert('"', begin + found.start())


_DEFINED = r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:\\\n|[^\n])*"


def _macros(spot: BuildContext, text: str) -> Iterator[Values]:
    """Yield the bracket that a macro of the line lacks, and the backslash of one that ends before the line."""
    words = {*re.findall(r"\w+", text)}
    for defined in islice(
        re.finditer(_DEFINED, spot.source[: spot.at], re.MULTILINE), _MOST_MACROS
    ):
        line, end = spot.line_of(defined.start()), len(defined[0].rstrip()) + defined.start()
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
        last = spot.line_of(end)
        if last > line and 0 < spot.line_of(spot.at) - last <= _NEXT_LINES:
            fact = f"Line {last} ends the macro {defined[1]}: it has no backslash at its end"
            yield spot.change(end, end, " \\", fact, "Write one there")


_MOST_MACROS = 200
_NEXT_LINES = 3


_LABEL = re.compile(r"(?:case\b.*|default\s*|public\s*|private\s*|protected\s*|\w+\s*):")


def unbalanced(_: Match, spot: BuildContext) -> Iterator[Values]:
    """Yield the brace that is missing or superfluous, where the indentation or the end of the source shows it."""
    code, first = spot.code, 1
    more = code.count("{") - code.count("}")
    # Of an #if and its #else, the compiler reads one, so braces cannot be counted.
    if not (more and spot.is_own) or re.search(r"^[ \t]*#[ \t]*el", spot.source, re.MULTILINE):
        return
    starts = [0, *(each.end() for each in re.finditer("\n", code))]
    for number, text, depth, opened in _lines(code):
        start, first, (begin, outer, _inner) = starts[number - 1], opened[0][0], opened[-1]
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
        fact = f"The }} in line {spot.line_of(at)} closes nothing"
        yield spot.change(at, at + 1, "", fact, "Remove it")


def _lines(code: str) -> Iterator[tuple[int, str, int, list[list[int]]]]:
    """Yield the number, text and indentation of each line that can be compared with its block's, and the open blocks.

    A block has the line and the indentation of the statement that opens it, and the indentation inside, -1 if unknown.
    """
    opened: list[list[int]] = []
    first = head = 0
    last = ";"
    for number, line in enumerate(code.expandtabs(4).split("\n"), 1):
        text = line.strip()
        if not text or _LABEL.match(text):
            continue
        depth = len(line) - len(line.lstrip())
        first, head = (number, depth) if last in ";{}" else (first, min(head, depth))
        if opened and opened[-1][2] < 0:
            opened[-1][2] = depth
        if opened and opened[-1][0] != number and opened[-1][2] > opened[-1][1]:
            yield number, text, depth, opened
        for brace in re.findall(r"[{}]", text):
            if brace == "{":
                opened.append([first, head, -1])
            else:
                del opened[-1:]
        last = text[-1]

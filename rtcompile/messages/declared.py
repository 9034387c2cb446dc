"""What the source declares: names, their scopes, the templates' parameters, and the names that are spelled alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter
from os.path import commonprefix

from rtcompile.messages.facts import BuildContext, Match
from rtcompile.request import cxx

_SHORT = 4


# A variable, a member, an element, the result of a call, or a number.
OPERAND = r"(?:[A-Za-z_][\w.]*|\d[\w.]*)(?:\[[^\[\]\n]*\]|\([^()\n]*\)|\.\w+|->\w+)*"
_VALUE = r"(?:[A-Za-z_][\w.]*|\d[\w.]*)(?:\[[^\[\]\n]*\]|\.\w+|->\w+)*"
_BINDING = "*/%"  # the signs beside an operand that would take it away from + and -


def operands(sign: str, context: BuildContext) -> tuple[str, str, str]:
    """Return the whole text of an operator at the caret with two plain operands, and these; "" if they are not plain."""
    text = context.text
    left = re.search(rf"({_VALUE})\s*$", context.left)
    right = re.match(rf"{re.escape(sign)}\s*({_VALUE})(?!\s*[(\w.])", context.right)
    if left is None or right is None:
        return "", "", ""
    begin, end = left.start(), len(context.left) + right.end()
    before, after = text[:begin].rstrip()[-1:], text[end:].lstrip()[:1]
    taken = {before, after} & {*_BINDING} if sign not in _BINDING else {before} & {*"-!~&*"}
    if taken:
        return "", "", ""
    return text[begin:end], left[1], right[1]


def declared_words(near: str, context: BuildContext) -> Iterator[str]:
    """Yield what the source or a macro of the options declares and is spelled nearly like a word."""
    for option in context.options:
        if macro := re.match(r"(?:-D ?|--define-macro=)(\w+)", option):
            yield macro[1]
    code = cxx.blanked(context.source, literals=True)
    for word in dict.fromkeys(re.findall(r"\b[A-Za-z_]\w{2,}", code)):
        if word == near or not closest(near, (word,)):
            continue
        further = (  # a macro, a type, or a variable behind another one's comma
            rf"#\s*define\s+{word}\b|\b(?:class|typename|struct|enum|namespace)\s+{word}\b"
            rf"|\w[\s*&]+\w+[^;(){{}}]*,\s*[*&]*{word}\s*[=;,\[]"
        )
        if declarations(word, code) or re.search(further, code):
            yield word


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the name that one edit, one swap, or other capital letters make of `word`; None without one."""
    lower, near = word.lower(), list[tuple[bool, str]]()
    for name in known:
        other = name.lower()
        if other == lower and name != word:
            return name
        if abs(len(other) - len(lower)) <= 1 and _is_one_edit(lower, other):
            near.append((not other.startswith(lower[:-1]), name))
    return min(near, key=itemgetter(0))[1] if near else None


def _is_one_edit(one: str, other: str) -> bool:
    """Return whether one letter more, less or other, or two exchanged, makes `other` of `one`."""
    begin = len(commonprefix([one, other]))  # noqa: RUF071  # of letters
    end = len(commonprefix([one[begin:][::-1], other[begin:][::-1]]))  # noqa: RUF071
    before, after = one[begin : len(one) - end], other[begin : len(other) - end]
    if len(before) == len(after) == 1:  # another short word is one letter away from many
        return len(one) >= _SHORT
    return {len(before), len(after)} == {0, 1} or (len(before) == 2 and before == after[::-1])


_NOT_TYPES = "return|else|goto|case|throw|delete|new|co_return|typename|and|or|not"


def declarations(word: str, code: str) -> list[Match]:
    """Return where something like a declaration of `word` stands, each up to what follows the word."""
    before = rf"(?<![.\w])(?!(?:{_NOT_TYPES})\b)[A-Za-z_][\w:>]*[\s*&]+"
    return [*re.finditer(rf"{before}({re.escape(word)})\s*[=;,()\[{{:<]", code)]


BASIC = (
    r"(?:unsigned|signed|bool|char|short|int|long|float|double|half|__half2?|void|auto|dim3|\w+_t"
    r"|(?:u?(?:char|short|int|long|longlong)|float|double)[1-4])"
)


def declared_as(word: str, context: BuildContext) -> tuple[str, int, str]:
    """Return what a word is before the caret: "function", "array", "pointer" or "variable", its line and declaration."""
    at, code = context.at, context.code
    for found in islice(reversed(declarations(word, code)), _MOST_DECLARATIONS) if word else ():
        kind = re.match(r"[A-Za-z_]\w*", found[0])
        known = rf"(?:struct|class|union|enum|typename|using|typedef\s[^;{{}}]{{1,80}})\s+{kind[0] if kind else ''}\b"
        is_type = kind and (
            re.fullmatch(rf"{BASIC}|const|__restrict__|__nv_bfloat162?|cu\w+Complex", kind[0])
            or re.search(rf"\b{known}", code)
        )
        if found.end(1) > at or not is_type or 0 <= scope_end(found.start(1), code) <= at:
            continue
        what = {"(": "function", "[": "array"}.get(found[0][-1], "variable")
        begin = code.rfind("\n", 0, found.start(1)) + 1
        head = re.split(r"[;{}(,]", code[begin : found.start(1)])[-1]
        if what == "variable" and "*" in head:
            what = "pointer"
        return what, code.count("\n", 0, found.start(1)) + 1, f"{head}{word}".strip()
    return "", 0, ""


def scope_end(at: int, code: str) -> int:
    """Return where the scope of what is declared at `at` ends: with its block, loop or function; -1 if it does not."""
    depth = round_ = 0
    is_head = False  # a parameter, or a variable of a loop's head
    for token in re.finditer(r"[(){};]", code[at:]):
        if token[0] in "()" and not depth:
            round_ += 1 if token[0] == "(" else -1
            is_head = is_head or round_ < 0
        elif token[0] == "{":
            depth += 1
        elif token[0] == "}":
            depth -= 1
            if depth < 0 or (is_head and depth == 0):
                return at + token.start()
        elif is_head and round_ < 0 and not depth:  # a loop without a block, or a declaration
            return at + token.start()
    return -1


def qualified(word: str, code: str) -> str:
    """Return the name with its namespaces and classes, ``"ops::scale"``; "" if nothing declares it."""
    return next(all_qualified(word, code), "")


def all_qualified(
    word: str, code: str, starts: Iterable[int] | None = None, kinds: str = "namespace|struct|class"
) -> Iterator[str]:
    """Yield the name with its namespaces and classes for each declaration in one of these, or for those at `starts`."""
    if starts is None:
        starts = (each.start(1) for each in declarations(word, code) if each[0][-1] not in "),")
    scope = re.compile(
        rf"\b(?:(?P<transparent>inline\s+namespace|enum(?:\s+class)?|extern)\b|(?:{kinds})\s)\s*(?P<name>[\w:]*)[^()<>=]{{0,300}}$"
    )
    for heads in cxx.around(code, islice(sorted(starts), _MOST_QUALIFIED)):
        found = [scope.search(head) for head in heads[:-1]]
        names = [each and each["name"] for each in found if not (each and each["transparent"])]
        if names and all(names):
            yield "::".join((*filter(None, names), word))


_MOST_QUALIFIED = 20  # of one name: further ones are overloads
_MOST_DECLARATIONS = 200  # of one name: a hint is worth no more time than that
_MOST_TEMPLATES = 1000  # of a source: a hint is worth no more time than that
_LONGEST_HEAD = 500


def templates(code: str) -> dict[str, str]:
    """Return the parameters of each template of a source, ``{"scale": "class T, int N"}``."""
    found: dict[str, str] = {}
    for begin in islice(re.finditer(r"\btemplate\s*<", code), _MOST_TEMPLATES):
        parameters = cxx.enclosed(code[begin.end() - 1 : begin.end() + _LONGEST_HEAD], 0)
        at = begin.end() + len(parameters) + 1
        head = re.split(r"[({;=]", code[at : at + _LONGEST_HEAD], maxsplit=1)[0].strip()
        name = re.search(r"(\w+)\s*(?::[^:].*)?$", head, re.DOTALL)
        if name and code[at - 1 : at] == ">":
            found.setdefault(name[1], " ".join(parameters.split()))
    return found

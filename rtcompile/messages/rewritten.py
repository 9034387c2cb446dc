"""Changes of the expression at the caret with which its types fit: each is compiled before it is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rtcompile.messages.facts import BuildContext, Match, Values
from rtcompile.messages.repairs import Spot, spot_of
from rtcompile.request import cxx

_TO_NUMBER = ("float({})", "__half2float({})", "__bfloat162float({})")


def specifier(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield the source without an unknown word that stands before a type, as other languages' words do."""
    spot, word = spot_of(context), match["identifier"]
    if spot and spot.after and spot.after[0][0] == word and len(spot.after) > 1:
        behind = spot.after[1][0]
        if behind[0].isalpha() or behind[0] == "_":
            fact = f"`{word}` stands before `{behind}`, and nothing that was read before this line declares it"
            edited = context.with_word(word, "")
            yield {"fact": fact, "step": "Remove it", "edited": edited}


def rewritten(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield changes of an expression whose types do not fit, the likeliest first."""
    spot = spot_of(context)
    if spot is None:
        return
    yield from _volatile(match.string, context)
    yield from _values(spot, match.string)
    yield from _arguments(spot, match.string)


def _volatile(message: str, context: BuildContext) -> Iterator[Values]:
    """Yield the source without volatile, which classes' operators seldom take."""
    found = re.search(r"\bvolatile\b", context.code)
    if found and re.search(r"\bvolatile\b", message):
        line = context.code.count("\n", 0, found.start()) + 1
        fact = f"An operand is volatile (line {line}), and no version takes one that is"
        edited = context.with_word("volatile", "")
        yield {
            "fact": fact,
            "step": "Remove volatile, and put __syncwarp() between the steps",
            "edited": edited,
        }


def _values(spot: Spot, message: str) -> Iterator[Values]:
    """Yield another way to make the value that a variable is given."""
    call = _call(spot)
    if call and re.search("too many initializer values|no instance of constructor", message):
        name, at, inside = call
        braces = f"{{{inside}}}"
        fact = f"The type has no constructor for `({inside})`, and is made from its members' values"
        end = at + len(inside) + 1
        yield spot.change(at - 1, end, braces, fact, f"Write `{name}{braces}`")
    begin = re.compile(r"\s*=?(?!=)\s*").match(spot.plain, spot.at)
    end = spot.plain.find(";", spot.at)
    if begin and end > 0 and re.search(r'operator "="|no suitable', message):
        value = spot.source[begin.end() : end].strip()
        for each in _TO_NUMBER:
            right = each.format(value)
            fact = f"No conversion leads from the type of `{value}` to the one that it is given to"
            yield spot.change(begin.end(), end, right, fact, f"Write `{right}`")
        line = spot.plain[spot.plain.rfind("\n", 0, spot.at) + 1 : spot.at]
        if pointer := re.search(r"\*\s*(\w+)\s*=\s*$", line):
            at = spot.at - len(line) + pointer.start()
            edited = spot.source[:at] + " " + spot.source[at + 1 :]
            edited = re.sub(rf"\b{pointer[1]}\s*->", f"{pointer[1]}.", edited)
            fact = f"`{value}` is an object, and {pointer[1]} is declared as a pointer"
            step = f"Declare {pointer[1]} without *, and write {pointer[1]}. for {pointer[1]}->"
            yield {"fact": fact, "step": step, "edited": edited}


def _arguments(spot: Spot, message: str) -> Iterator[Values]:
    """Yield a call with its arguments in another order, with an address or what it points to, or with a mask."""
    call = _call(spot)
    if call is None:
        return
    name, begin, inside = call
    parts = [part.strip() for part in cxx.split(inside)]
    if name.endswith("_sync") and name.startswith("__"):
        new = ", ".join(["0xffffffff", *parts])
        fact = f"The first argument of {name} is the mask of the threads"
        yield spot.change(begin, begin + len(inside), new, fact, f"Write `{name}({new})`")
    if len(parts) == _PAIR:
        new = ", ".join(reversed(parts))
        fact = f"The arguments of {name} are in another order than it declares them"
        yield spot.change(begin, begin + len(inside), new, fact, f"Write `{name}({new})`")
    if "->" in message or len(parts) > _MOST_ARGUMENTS:
        return
    index = re.findall(r"\[(\w+)\]", spot.code[: spot.at])
    for at, part in enumerate(parts):
        plain = part[1:].strip() if part[:1] in ("*", "&") else ""
        element = [f"{part}[{index[-1]}]"] if index and part.isidentifier() else []
        for right in (plain,) if plain else (f"&{part}", *element, f"*{part}"):
            new = ", ".join([*parts[:at], right, *parts[at + 1 :]])
            what = "an address" if right.startswith("&") or part.startswith("*") else "a value"
            fact = f"{name} takes {what} as argument {at + 1}"
            yield spot.change(begin, begin + len(inside), new, fact, f"Write `{name}({new})`")


_PAIR = 2
_MOST_ARGUMENTS = 4


def _call(spot: Spot) -> tuple[str, int, str] | None:
    """Return the function that is called at the caret or around it, where its arguments begin, and these."""
    here = re.compile(r"([A-Za-z_]\w*)\s*\(").match(spot.code, spot.at)
    at = here.end() - 1 if here else spot.at - 1
    depth = 0
    while not here and at >= 0 and spot.code[at] not in ";{}":
        depth += (spot.code[at] in ")]") - (spot.code[at] in "([")
        if depth < 0:
            break
        at -= 1
    name = re.search(
        r"([A-Za-z_]\w*)\s*(?:<[^<>;()]*>)?\s*$", spot.code[max(0, at - 200) : max(0, at)]
    )
    if name is None or spot.code[at] != "(" or name[1] in ("if", "for", "while", "switch"):
        return None
    inside = cxx.enclosed(spot.code, at)
    return name[1], at + 1, spot.source[at + 1 : at + 1 + len(inside)]

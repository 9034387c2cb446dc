"""What the source shows where the compiler cannot parse it: the words beside the caret, constants, and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rtcompile.messages import changes
from rtcompile.messages.declared import declarations
from rtcompile.messages.facts import TABLES, BuildContext, Match, Values
from rtcompile.messages.spot import LAST, Spot, spot_of

_NEAR = 300  # characters before the caret: more would take minutes in a source of one pattern


def parsed(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield what is known of the words beside the caret, where no small change lets the compiler read the source."""
    spot = spot_of(context)
    if spot is not None:
        yield from changes.of("unparsed")(match, context)
        found = _of_elsewhere(spot) or _statement(spot, match.string)
        yield from [found] if found else ()


def _of_elsewhere(spot: Spot) -> Values | None:
    """Return the word beside the caret that another language has."""
    for each in (*spot.before[:1], *spot.after[:1]):
        right = re.match(r"`([^`]+)`", TABLES["elsewhere"].get(each[0], ""))
        if right:
            fact = f"`{each[0]}` is no word of CUDA C++"
            return spot.change(*each.span(), right[1], fact, f"Write `{right[1]}`")
    return None


def _statement(spot: Spot, message: str) -> Values | None:
    """Return what is known of a statement that stands where it cannot, and of two words side by side."""
    before, after = spot.code[: spot.at], spot.code[spot.at :]
    word = re.match(r"[\w.]+", after)
    found = word[0] if word else ""
    depth = before.count("{") - before.count("}")
    if not depth and "storage class" in message and _STATEMENT.match(after):
        step = 'Put it into a kernel: `extern "C" __global__ void name(...) { ... }`'
        return {"fact": "This statement stands outside of every function", "step": step}
    if found == "else":
        step = "Put { } around all that stands between its if and the else, or add the if"
        return {"fact": "This else does not follow the statement of an if", "step": step}
    if depth and after.startswith("{") and before.rstrip().endswith(")"):
        fact = "What looks like a function begins inside another one, and C++ has none there"
        step = "Move it before the function, or write a lambda: auto f = [&](float a) { ... };"
        return {"fact": fact, "step": step}
    shown = LAST.search(spot.plain[: spot.at].rstrip()[-_NEAR:])
    last = shown[0] if shown else ""
    is_beside = "\n" not in spot.plain[: spot.at][len(spot.plain[: spot.at].rstrip()) :]
    if found and is_beside and re.search(r"[\w)\]]$", last):
        fact = f"`{last}` and `{found}` stand side by side, and nothing joins them"
        step = "Put a comma, a semicolon or an operator between them, or remove one"
        return {"fact": fact, "step": step}
    return None


_STATEMENT = re.compile(r"\w+(?:\[[^\[\]\n]*\])?\s*[-+*/]?=(?!=)")


def cpp11(_: Match, context: BuildContext) -> Values | None:
    """Return the option that chooses C++11, if there is one."""
    found = [each for each in context.options if re.search(r"std=(?:c|gnu)\+\+(?:11|0x)$", each)]
    return {"given": found[-1], "adding": "-std=c++14", "known": "yes"} if found else None


def name_taken(match: Match, context: BuildContext) -> Values | None:
    """Return the source with another name for one that a function of CUDA has."""
    name, is_function = match["name"], "overloaded function" in match[0]
    own = len(declarations(name, context.code)) > 1 or '#include "' in context.source
    if name not in context.device_names() and (own or not is_function):
        return None
    return {"edited": context.with_word(name, f"{name}_")}

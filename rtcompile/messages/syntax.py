"""What the source shows where the compiler cannot parse it: the words beside the caret, constants, and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rtcompile.messages.declared import declarations, templates, word_at
from rtcompile.messages.facts import TABLES, BuildContext, Match, Values
from rtcompile.messages.repairs import LAST, Spot, spot_of

_NEAR = 300  # characters before the caret: more would take minutes in a source of one pattern


def _before(context: BuildContext) -> tuple[str, str]:
    """Return the source's code before the caret, and the code from there on; "" for both if the line is not its own."""
    spot = spot_of(context)
    return (spot.code[: spot.at], spot.code[spot.at :]) if spot else ("", "")


def parsed(match: Match, context: BuildContext) -> Values | None:
    """Return what is known of the words beside the caret, where no small change lets the compiler read the source."""
    spot = spot_of(context)
    if spot is None:
        return None
    before, after = spot.code[: spot.at], spot.code[spot.at :]
    word = re.match(r"[\w.]+", after)
    found = word[0] if word else ""
    if found == "constexpr" and re.search(r"\bif\s*$", before[-_NEAR:]):
        fact = "`if constexpr` is C++17, and this build reads an older standard"
        return {"fact": fact, "step": "Use -std=c++17", "adding": "-std=c++17"}
    if found == "extern" and re.search(r"\btemplate\s*<[^{};]*>\s*$", before[-_NEAR:]):
        step = "Remove extern \"C\", and request an instance by a name expression: name_expressions=['f<float>']"
        return {"fact": 'A template cannot be declared extern "C"', "step": step}
    if 'expected a ":"' in match.string and re.search(r"\?[^;{}]*$", before[-_NEAR:]):
        return {"fact": "The ? before the caret has no :", "step": "Write `condition ? a : b`"}
    return _of_elsewhere(spot) or _statement(spot, match.string, found)


def _of_elsewhere(spot: Spot) -> Values | None:
    """Return the word beside the caret that another language has."""
    for each in (*spot.before[:1], *spot.after[:1]):
        right = re.match(r"`([^`]+)`", TABLES["elsewhere"].get(each[0], ""))
        if right:
            fact = f"`{each[0]}` is no word of CUDA C++"
            return spot.change(*each.span(), right[1], fact, f"Write `{right[1]}`")
    return None


def _statement(spot: Spot, message: str, found: str) -> Values | None:
    """Return what is known of a statement that stands where it cannot, and of two words side by side."""
    before, after = spot.code[: spot.at], spot.code[spot.at :]
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


def dependent(_: Match, context: BuildContext) -> Values | None:
    """Return the name before the caret that depends on a template's parameter and is meant as a type."""
    before, after = _before(context)
    member = re.search(r"(?:\.|->)(\w+)(<[^<>;()]*>)\(\s*$", before[-_NEAR:])
    if member and member[1] in templates(context.code):
        what = "is a template of a type that depends on a parameter"
        return {"name": member[1], "what": what, "right": f".template {member[1]}{member[2]}()"}
    name, word = (
        re.search(r"\b(\w+)((?:<[^<>;]*>)?::\w+)\s+$", before[-_NEAR:]),
        re.match(r"\w+", after),
    )
    if name is None or word is None:
        return None
    whole = f"{name[1]}{name[2]}"
    arguments = {name[1], *re.findall(r"\w+", name[2].partition("::")[0])}
    named = {*re.findall(r"\b(?:class|typename)\s+(\w+)", before)}
    found = sorted(arguments & named)
    what = f"depends on the template's parameter {found[0]}" if found else ""
    if not found:
        return None
    edited = context.with_text(whole, f"typename {whole}")
    return {"name": whole, "what": what, "right": f"typename {whole} {word[0]}", "edited": edited}


_FIXED = "Use a constexpr variable, a template parameter, or a macro of the options (-DN=64)"
_DYNAMIC = "Declare it without a size, `extern __shared__ float s[];`, and pass its bytes at the launch (shared_mem=)"
_CONSTANTS = (  # what stands before the caret, what it is, and what to write where it is not constant
    (
        r"\bstatic_assert\s*\(",
        "The condition of a static_assert",
        "Use `assert(...)`, which the kernel checks",
    ),
    (
        r"\b__shared__\b",
        "The size of a __shared__ array",
        f"{_DYNAMIC}. {_FIXED.replace('Use', 'Or use')}",
    ),
    (r"\[\s*$", "The size of an array", _FIXED),
    (r"<[^;()]*$", "A template argument", _FIXED),
    (r"\bcase\s*$", "The value of a case", "Use if and else"),
    ("", "This value", _FIXED),
)


def cpp11(_: Match, context: BuildContext) -> Values | None:
    """Return the option that chooses C++11, if there is one."""
    found = [each for each in context.options if re.search(r"std=(?:c|gnu)\+\+(?:11|0x)$", each)]
    return {"given": found[-1], "adding": "-std=c++14", "known": "yes"} if found else None


def constant(_: Match, context: BuildContext) -> Iterator[Values]:
    """Yield what must be known at compile time on the message's line, and what to write if it is not."""
    before = context.text[: max(0, context.column - 1)]
    # The function that initializes a constexpr variable may be what is not constant.
    if re.search(r"\bconstexpr\b[^;]*=\s*$", before):
        return
    what, step = next((w, step) for pattern, w, step in _CONSTANTS if re.search(pattern, before))
    word = word_at(context)
    prefix, value = r"(?:\b(?:__constant__|__device__|static|const)\s+)*\b", r"\s*=\s*[-\w.]+\s*;"
    own = rf"{prefix}(\w+)\s+{word}{value}"
    for found in re.finditer(own, context.code) if word else ():
        kind = f"__constant__ {found[1]}" if "__constant__" in found[0] else found[1]
        line = context.code.count("\n", 0, found.start()) + 1
        # This variable alone, and all of its kind, since the compiler names the first one only.
        for name in (word, r"\w+"):
            pattern = rf"{prefix}{found[1]}\s+(?={name}{value})"
            edited = re.sub(pattern, f"constexpr {found[1]} ", context.source)
            told = f"Declare {word} of line {line} as `constexpr {found[1]}`: a `{kind}` is read at run time"
            yield {"what": what, "step": told, "edited": edited}
    yield {"what": what, "step": step}


def returned(_: Match, context: BuildContext) -> Values | None:
    """Return the function that is declared void around the message's line."""
    before, _after = _before(context)
    heads = [
        *re.finditer(
            r"([\w:*&<> ]{1,100}?)\b(\w+)\s*\([^;{}]{0,500}\)\s*(?:const\s*)?\{",
            before[-10 * _NEAR :],
        )
    ]
    heads = [each for each in heads if each[2] not in ("if", "for", "while", "switch")]
    if not heads or not re.search(r"\bvoid\s*$", heads[-1][1]):
        return None
    kernel = re.search(r"__global__[\w\s()]*$", before[-10 * _NEAR :][: heads[-1].start(2)])
    step = (
        "write the value to an array that is a parameter"
        if kernel
        else "declare it with the type that it returns"
    )
    return {"function": heads[-1][2], "step": step[0].upper() + step[1:]}


def typename_wanted(match: Match, context: BuildContext) -> Values:
    """Return the source with typename before the type at the caret."""
    name = match["name"]
    return {"edited": context.with_text(name, f"typename {name}"), "known": "yes"}


def name_taken(match: Match, context: BuildContext) -> Values | None:
    """Return the source with another name for one that a function of CUDA has."""
    name, is_function = match["name"], "overloaded function" in match[0]
    own = len(declarations(name, context.code)) > 1 or '#include "' in context.source
    if name not in context.device_names() and (own or not is_function):
        return None
    return {"edited": context.with_word(name, f"{name}_")}


def literal(_: Match, context: BuildContext) -> Values | None:
    """Return the number with a suffix at the caret, and how C++ writes it."""
    found = re.match(r"(\d+)(\.?\d*)([A-Za-z]\w*)", context.text[max(0, context.column - 1) :])
    if found is None:
        return None
    whole, digits, suffix = found[1], found[2], found[3]
    fortran = re.match(r"(\d+\.?\d*)[dD]([+-]?\d+)", context.text[max(0, context.column - 1) :])
    if fortran:
        number = fortran[1] if "." in fortran[1] else f"{fortran[1]}.0"
        right = number if int(fortran[2]) == 0 else f"{fortran[1]}e{fortran[2]}"
        why = f"d{fortran[2]} is the exponent of a double in Fortran"
        edited = context.with_text(fortran[0], right)
        return {"literal": fortran[0], "why": why, "right": right, "edited": edited}
    if suffix in ("f", "F") and not digits:
        why, right = "the suffix f needs a decimal point before it", f"{whole}.0f"
    elif suffix in ("j", "J"):
        right = f"complex<float>(0, {whole}{digits}) of <cupy/complex.cuh>"
        return {"literal": found[0], "why": "j is Python's imaginary unit", "right": right}
    elif suffix not in ("d", "D", "f32", "f64", "F64", "h") and len({*suffix.lower()} - {*"ulf"}):
        why, right = f"no operator stands before {suffix}", f"{whole}{digits} * {suffix}"
    else:
        number = f"{whole}{digits}" if digits else f"{whole}.0"
        why = f"it has no suffix {suffix}"
        right = f"{number}f for a float, or {number} for a double"
    edited = context.with_text(found[0], right.partition(" for ")[0].partition(" of ")[0])
    return {"literal": found[0], "why": why, "right": right, "edited": edited}

"""What a call shows: one of a variable or a number, and one that fits several versions of a function or none."""

from __future__ import annotations

import re

from rtcompile.messages.declared import declarations
from rtcompile.messages.facts import BuildContext, Match, Values
from rtcompile.request import cxx


def no_function(_: Match, context: BuildContext) -> Values | None:
    """Return what is called at the caret although it is a number, a variable, a pointer or an array."""
    text = cxx.blanked(context.text, literals=True)
    at = max(0, context.column - 1)
    called = re.match(r"(\d[\w.]*|\.\d\w*)\s*(?=\()", text[at:]) or re.match(
        r"(\w+)\s*(?=\()", text[at:]
    )
    if called is None:
        return None
    name = called[1]
    inside = cxx.enclosed(text, at + called.end()).strip()
    if name[0] in "0123456789.":
        fact = f"`{name}` is a number, and a ( behind it calls it like a function"
        return {"fact": fact, "step": f"Write the operator between them, as in {name} * ({inside})"}
    upto = (
        sum(len(line) + 1 for line in context.source.split("\n")[: max(0, context.line - 1)]) + at
    )
    found = [each for each in declarations(name, context.code) if each.end(1) <= upto]
    if not found:
        return None
    line = context.code.count("\n", 0, found[-1].start(1)) + 1
    where = f"line {line}"
    declared = found[-1][0]
    if "*" in declared[: found[-1].start(1) - found[-1].start()] or declared.endswith("["):
        what = "an array" if declared.endswith("[") else "a pointer"
        fact = f"`{name}` is {what} ({where}), and ( ) calls a function"
        index = inside if "," not in inside else "row * width + column"
        return {"fact": fact, "step": f"Index it by brackets: {name}[{index}]"}
    if declared.endswith("("):
        return None
    fact = f"`{name}` is a variable ({where}), and a ( behind it calls it like a function"
    step = f"Write the operator between them, as in {name} * ({inside})"
    if name in {*context.device_names()}:
        fact, step = (
            f"The variable `{name}` of {where} hides the function {name}",
            "Give the variable another name",
        )
    return {"fact": fact, "step": step}


_VECTOR = r"(?:u?(?:char|short|int|long|longlong)|float|double)[1-4]"


def vector_literal(_: Match, context: BuildContext) -> Values | None:
    """Return how CUDA makes the vector that the message's line makes as OpenCL, HLSL or GLSL do."""
    text = cxx.blanked(context.text, literals=True)
    found = re.search(rf"\(\s*({_VECTOR})\s*\)\s*\(|(?<!\w)({_VECTOR})\s*\(", text)
    if found is None:
        return None
    kind = found[1] or found[2]
    inside = cxx.enclosed(text, found.end() - 1).strip()
    count = len([*cxx.split(inside)])
    if count == 1:
        inside = ", ".join([inside] * int(kind[-1]))
    elif count != int(kind[-1]):
        inside = ", ".join("xyzw"[: int(kind[-1])])
    return {
        "written": f"({kind})(...)" if found[1] else f"{kind}(...)",
        "type": kind,
        "right": f"make_{kind}({inside})",
    }


_ALIASES = {"size_t": "unsigned long", "uint64_t": "unsigned long", "int64_t": "long"}
_ALIASES |= {
    "half": "__half",
    "half2": "__half2",
    "nv_bfloat16": "__nv_bfloat16",
    "__nv_bool": "bool",
}
_WIDER = (
    "double",
    "float",
    "unsigned long long",
    "unsigned long",
    "long long",
    "long",
    "unsigned int",
    "int",
)


def ambiguous(match: Match, context: BuildContext) -> Values | None:
    """Return which types were given to a function with several versions, and the call with casts that chooses one."""
    name = match["function"].rpartition("::")[2]
    notes = "\n".join(note.message for note in context.notes)
    given = re.search(r"argument types are: \(([^\n]*)\)", notes)
    text = cxx.blanked(context.text, literals=True)
    call = re.search(rf"\b{re.escape(name)}\s*\(", text[max(0, context.column - 1) :] or text)
    if given is None or call is None:
        return None
    types = [*cxx.split(given[1])]
    values = [*cxx.split(cxx.enclosed(text[max(0, context.column - 1) :], call.end() - 1))]
    lists = re.findall(rf'function (?:template )?"[^"\n]*?\b{re.escape(name)}\(([^"\n]*)\)"', notes)
    fitting = [each for each in map(list, map(cxx.split, lists)) if len(each) == len(types)]
    if len(values) != len(types) or not fitting:
        return None
    types = [_ALIASES.get(each, each) for each in types]
    fits = [sum(map(str.__eq__, each, types)) for each in fitting]
    best = [each for each, number in zip(fitting, fits, strict=True) if number == max(fits)]
    chosen = next((each for each in best if "double" in each), best[0])
    if name in ("min", "max") and {*types} <= {*_WIDER}:
        wide = min(types, key=_WIDER.index)
        signs = {each.startswith("unsigned") for each in types}
        is_mixed = len(signs) > 1 and not all(map(str.isdigit, values[1:]))
        chosen = ["long long" if is_mixed and wide.startswith("unsigned") else wide] * len(types)
    elif name in ("abs", "labs", "llabs") and types[0].startswith("unsigned"):
        chosen = ["int" if types[0] == "unsigned int" else "long long"]
    whole = [value if re.fullmatch(r"[\w.]+", value) else f"({value})" for value in values]
    casts = [
        value if kind == to else f"({to}){each}"
        for value, each, kind, to in zip(values, whole, types, chosen, strict=True)
    ]
    return {"name": name, "types": ", ".join(types), "right": f"{name}({', '.join(casts)})"}


def not_deduced(match: Match, context: BuildContext) -> Values | None:
    """Apply only to a call that names no template argument, and whose arguments have types."""
    if "<error-type>" in match.string:
        return None
    return {} if re.search(rf"\b{match['function']}\s*\(", context.text) else None


_ATOMICS = {"double": 60, "__half2": 60, "__half": 70, "__nv_bfloat16": 80, "__nv_bfloat162": 80}
_ATOMICS |= {"float2": 90, "float4": 90}
_ATOMIC_REF = 60  # <cuda/atomic> stops below it
_WIDE = {
    "long long": "unsigned long long",
    "long": "long long",
    "unsigned long": "unsigned long long",
}
_BITS = {
    "float": ("int", "__float_as_int"),
    "double": ("unsigned long long", "__double_as_longlong"),
}


def atomic(match: Match, context: BuildContext) -> Values:
    """Return why an atomic function does not take these arguments, and the call that it takes."""
    name = match["function"]
    notes = "\n".join([match.string, *(note.message for note in context.notes)])
    given = re.search(r"argument types are: \(([^\n]*)\)", notes)
    types = [*cxx.split(given[1])] if given else [""]
    kind = types[0].removesuffix(" *")
    kind = _ALIASES.get(kind, kind)
    call = re.search(rf"\b{name}\s*\(", context.text)
    values = [*cxx.split(cxx.enclosed(context.text, call.end() - 1))] if call else []
    if len(values) != len(types) or not all(values):
        values = ["address", "value", "new_value"][: len(types)]
    needs, arch = _ATOMICS.get(kind, 0), context.arch
    fact = (
        f"has no version for the types ({given[1]})" if given else "has no version for these types"
    )
    fact = fact.replace("__nv_bool", "bool") + (f" on {arch}" if arch else "")
    whole = ["address", "expected", "value"] if name == "atomicCAS" else ["address", "value"]
    if given and len(types) != len(whole):
        fact = f"takes {len(whole)} arguments, and this call gives {len(types)}"
        step = f"Write `{name}({', '.join(whole)})`"
    elif given and not types[0].endswith("*"):
        fact = f"takes an address first, and {types[0]} was given"
        step = f"Write `{name}({', '.join(['&' + values[0], *values[1:]])})`"
    elif kind.startswith(("const ", "volatile ")):
        fact = f"cannot change what a `{types[0]}` points to"
        step = f"Declare it without {kind.split()[0]}"
    elif name == "atomicAdd" and arch is not None and arch.number < needs:
        fact += f": that for {kind} begins with sm_{needs}"
        step = f"Compile for sm_{needs} or above, or write a loop with atomicCAS"
    else:
        step = _atomic_of_bits(name, kind, values) or "Use a version from the notes above"
        if step.startswith("Use") and (arch is None or arch.number >= _ATOMIC_REF):
            step += ", or cuda::atomic_ref, which accepts any type of 4 or 8 bytes"
    return {"fact": fact, "step": step}


def _atomic_of_bits(name: str, kind: str, values: list[str]) -> str:
    """Return the call of an atomic function that changes the same bits as another type; "" if there is none."""
    to, convert = _WIDE.get(kind, ""), ""
    is_ordered, note = name in ("atomicMin", "atomicMax"), ""
    if kind in ("char", "signed char", "unsigned char", "bool", "short", "unsigned short"):
        return "Store int or unsigned int in this array: the atomic functions change 4 or 8 bytes"
    if name == "atomicSub" and (to or kind in _BITS):
        return f"Add the negative: `atomicAdd({f'({to}*)' * bool(to)}{values[0]}, -({values[1]}))`"
    if to:
        to, note = (to, "") if is_ordered else ("unsigned long long", ": it has the same bits")
    elif kind in _BITS and (
        name in ("atomicCAS", "atomicExch") or (is_ordered and kind == "float")
    ):
        to, convert = _BITS[kind]
        note = " if no value is negative, and otherwise a loop with atomicCAS" * is_ordered
    elif kind in _BITS:
        return "Write a loop with atomicCAS on the bits"
    else:
        return ""
    rest = (f"{convert or f'({to})'}({each})" for each in values[1:])
    return f"Write `{name}(({to}*)({values[0]}), {', '.join(rest)})`{note}"

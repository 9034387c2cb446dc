"""Changes of the expression at the caret with which its types fit: each is compiled before it is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rtcompile.messages.facts import TABLES, BuildContext, Match, Values
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
    if "type name is not allowed" in match[0]:
        yield from _type_as_value(spot)
        return
    yield from _indices(spot)
    yield from _chain(spot)
    if "modifiable lvalue" in match[0]:
        return
    if 'operator "[]"' in match[0]:
        yield from _converted_index(spot)
    yield from _component(match.string, context)
    yield from _volatile(match.string, context)
    yield from _precision(spot)
    yield from _late(spot)
    yield from _loaded(spot)
    yield from _values(spot, match.string)
    yield from _arguments(spot, match.string)


def _volatile(message: str, context: BuildContext) -> Iterator[Values]:
    """Yield the source without volatile, which classes' operators seldom take."""
    found = re.search(r"\bvolatile\b", context.code)
    if found and re.search(r"\bvolatile\b|suitable copy constructor", message):
        line = context.code.count("\n", 0, found.start()) + 1
        fact = f"An operand is volatile (line {line}), and no version takes one that is"
        edited = context.with_word("volatile", "")
        yield {
            "fact": fact,
            "step": "Remove volatile, and synchronise between the steps: __syncwarp(), or __syncthreads()",
            "edited": edited,
        }


def _indices(spot: Spot) -> Iterator[Values]:
    """Yield an index for each dimension where one pair of brackets has several."""
    name = re.compile(r"([A-Za-z_]\w*)\s*\[([^\[\];]*,[^\[\];]*)\]")
    for found in name.finditer(spot.code, *spot.row):
        right = found[1] + "".join(f"[{part.strip()}]" for part in found[2].split(","))
        fact = (
            f"In `{found[0]}` the comma drops what is before it, so {found[1]} has one index there"
        )
        yield spot.change(*found.span(), right, fact, f"Write `{right}`")
        right = f"{found[1]}({found[2]})"
        fact = f"`{found[1]}` takes its indices in ( )"
        yield spot.change(*found.span(), right, fact, f"Write `{right}`")


def _chain(spot: Spot) -> Iterator[Values]:
    """Yield all indices in one pair of round brackets, as tensors and views take them."""
    chain = re.compile(r"([A-Za-z_]\w*)((?:\s*\[[^\[\]]*\]){2,})")
    for found in chain.finditer(spot.code, *spot.row):
        inside = ", ".join(each.strip() for each in re.findall(r"\[([^\[\]]*)\]", found[2]))
        right = f"{found[1]}({inside})"
        fact = f"`{found[1]}` takes all its indices at once, in ( )"
        yield spot.change(*found.span(), right, fact, f"Write `{right}`")


def _converted_index(spot: Spot) -> Iterator[Values]:
    """Yield the index at the caret as an int."""
    if found := re.compile(r"\[\s*([^\[\]]+?)\s*\]").match(spot.code, spot.at):
        right = f"(int){found[1]}" if found[1].isidentifier() else f"(int)({found[1]})"
        fact = f"An index is an integer, and `{found[1]}` does not convert to one by itself"
        yield spot.change(*found.span(1), right, fact, f"Write `[{right}]`")


def _component(message: str, context: BuildContext) -> Iterator[Values]:
    """Yield the component of a variable of the launch that is used as a number: the one that the line uses."""
    words = re.findall(rf"\b({_LAUNCH})\b(?!\s*\.)", context.text)
    if words and re.search(r"\b(?:dim3|uint3)\b", message):
        used = dict.fromkeys(re.findall(rf"\b(?:{_LAUNCH})\.([xyz])\b", context.text))
        part = next(iter(used)) if len(used) == 1 else "x"
        right = re.sub(rf"\b({_LAUNCH})\b(?!\s*\.)", rf"\1.{part}", context.text)
        fact = f"{words[0]} has the members x, y and z, and is no number"
        edited = context.with_text(context.text, right)
        yield {
            "fact": fact,
            "step": f"Write {words[0]}.{part}, or the member that is meant",
            "edited": edited,
        }


_LAUNCH = "threadIdx|blockIdx|blockDim|gridDim"


def _indexed(spot: Spot) -> list[str]:
    """Return the index of the element that is used nearest before the caret, or else behind it."""
    index = r"\[([A-Za-z_]\w*)\]"
    before = re.findall(index, spot.code[: spot.at])
    return before[-1:] or re.findall(index, spot.code[spot.at :])[:1]


def of_numba(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield what CUDA C++ writes for a name of Numba's module `cuda`; the compiler names the first one only."""
    source, parts, at, right = context.source, list[str](), 0, ""
    for found in re.finditer(r"\bcuda((?:\.\w+)+)", context.code):
        code, end = _of_numba(found[1], source, found.end())
        parts += [source[at : found.start()], code]
        at = end
        if found[1] == match["name"] and code != found[0]:
            right = right or code
    if right:
        yield {"right": f"`{right}`", "edited": "".join([*parts, source[at:]])}
    if array := re.match(r"\.(shared|local)\.array", match["name"]):
        kind = "__shared__ " if array[1] == "shared" else ""
        step = f"`{kind}float name[256];`, with its type and a size that is known at compile time"
        yield {"right": step}
    yield {"right": "the function of CUDA C++ for it, whose name begins with no `cuda.`"}


def _of_numba(name: str, source: str, end: int) -> tuple[str, int]:
    """Return what CUDA C++ writes for a name of Numba's and its arguments, and where these end."""
    if re.match(rf"\.(?:{_LAUNCH})\b", name):
        return name[1:], end
    inside = cxx.enclosed(source, end) if source.startswith("(", end) else None
    parts = [each.strip() for each in cxx.split(inside or "")]
    code = TABLES["numba"].get(name, "")
    if not code or len({*re.findall(r"\{\d\}", code)}) not in (0, len(parts)):
        return f"cuda{name}", end
    return code.format(*parts), end if inside is None else end + len(inside) + 2


_TO_HALF = {"__half": "__float2half", "half": "__float2half", "__nv_bfloat16": "__float2bfloat16"}


def branches(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield the two values of `? :` as one type."""
    pair = re.compile(r"\?\s*([^?:;]+?)\s*:\s*([^?:;]+?)\s*;")
    found = pair.search(context.text, max(0, context.column - 1)) or pair.search(context.text)
    kinds, values = (match["first"], match["second"]), found.groups() if found else ()
    for at, value in reversed([*enumerate(values)]):
        convert = _TO_HALF.get(kinds[1 - at], kinds[1 - at])
        right = f"{convert}({value})"
        yield {"right": f"`{right}`", "edited": context.with_text(value, right)}
    yield {"right": f"`c ? a : {match['first']}(b)`"}


def static_shape(_: Match, context: BuildContext) -> Iterator[Values]:
    """Yield the shape of constants for a tensor in registers."""
    made = r"\bmake_tensor\s*<[^<>;]*>\s*\(\s*(?:cute::)?make_shape\(([\w, ]+)\)"
    for found in re.finditer(made, context.code):
        inside = ", ".join(f"Int<{part.strip()}>{{}}" for part in found[1].split(","))
        edited = context.source[: found.start(1)] + inside + context.source[found.end(1) :]
        yield {"right": f"`make_shape({inside})`", "edited": edited}
    yield {"right": "make_shape(Int<8>{}, Int<4>{}), with your own numbers"}


def _precision(spot: Spot) -> Iterator[Values]:
    """Yield the functions of cuComplex.h for the other precision."""
    begin, end = spot.row
    line = spot.source[begin:end]
    single = re.sub(r"\bcuC(add|sub|mul|div|abs|real|imag|fma)\(", r"cuC\1f(", line)
    double = re.sub(r"\bcuC(add|sub|mul|div|abs|real|imag|fma)f\(", r"cuC\1(", line)
    for right, kind in ((single, "cuFloatComplex"), (double, "cuDoubleComplex")):
        if right != line:
            fact = "The functions of cuComplex.h are for cuDoubleComplex, and those that end in f for cuFloatComplex"
            yield spot.change(begin, end, right, fact, f"Write those for {kind}")


def _late(spot: Spot) -> Iterator[Values]:
    """Yield 32 for warpSize among the arguments of a template, or say that another one is known too late."""
    late = re.compile(rf"\w\s*<[^<>;()]*\b(warpSize|(?:{_LAUNCH})\.[xyz])[^<>;()]*>\s*\(")
    for found in late.finditer(spot.code, *spot.row):
        fact = f"A template's argument must be known at compile time, and {found[1]} is known only at run time"
        if found[1] == "warpSize":
            yield spot.change(*found.span(1), "32", fact, "Write 32 for it")
        yield {
            "fact": fact,
            "step": "Name a constant there, a constexpr variable or a macro of the options",
        }


def _loaded(spot: Spot) -> Iterator[Values]:
    """Yield a plain read for an intrinsic that reads numbers and vectors only."""
    if (call := _call(spot)) and re.fullmatch(r"__ld(?:g|cg|ca|cs|lu|cv)", call[0]):
        name, begin, inside = call
        plain = inside.strip()
        right = plain[1:].strip() if plain[:1] == "&" else f"*({plain})"
        at = spot.code.rfind(name, 0, begin)
        fact = f"{name} has no version for a pointer to this type"
        yield spot.change(at, begin + len(inside) + 1, right, fact, f"Write `{right}`")


def _type_as_value(spot: Spot) -> Iterator[Values]:
    """Yield a value for the type at the caret, or the name behind it alone."""
    named = re.compile(r"(?:::)?[A-Za-z_]\w*(?:::\w+)*").match(spot.code, spot.at)
    if named is None:
        return
    end = named.end()
    if spot.code[end : end + 1] == "<":
        end += len(cxx.enclosed(spot.code, end)) + 2
    kind = spot.source[spot.at : end]
    behind = re.compile(r"[\s*&]*\s([A-Za-z_]\w*)\s*[,)]").match(spot.code, end)
    if behind:
        fact = f"A call names values, and `{kind}` before {behind[1]} is a type"
        yield spot.change(spot.at, behind.start(1), "", fact, f"Write {behind[1]} alone")
    fact = f"`{kind}` is a type, and a value is expected here"
    step = f"Write `{kind}{{}}`, which makes a value of it"
    yield spot.change(end, end, "{}", fact, step)
    stop = (spot.source + "\n").index("\n", spot.at)
    every = re.compile(rf"\b{re.escape(kind.partition('<')[0])}\s*<[^<>]*>(?!\s*[{{(>\w:])")
    line = every.sub(r"\g<0>{}", spot.source[spot.at : stop])
    yield spot.change(spot.at, stop, line, fact, step)


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
    if begin and end > 0 and re.search(r'operator "="|no suitable|an entity of type', message):
        value = spot.source[begin.end() : end].strip()
        made = re.match(r"__float2(half|bfloat16)(?=\()", value)
        other = {"half": "bfloat16", "bfloat16": "half"}[made[1]] if made else ""
        exchanged = [value.replace(made[0], f"__float2{other}", 1)] if made else []
        fact = f"No conversion leads from the type of `{value}` to the one that it is given to"
        if "more than one" in message:
            fact = f"Several conversions lead from the type of `{value}` to the one that it is given to"
        yield from _pointed(spot, (begin.end(), end), value, message.partition("\n")[0])
        if "an entity of type" in message.partition("\n")[0]:
            return
        wanted = re.search(r"operand types are: ([\w:]+) = ", message)
        constructed = [f"{wanted[1]}({value})"] if wanted else []
        for right in (*exchanged, *constructed, *(each.format(value) for each in _TO_NUMBER)):
            yield spot.change(begin.end(), end, right, fact, f"Write `{right}`")
        line = spot.plain[spot.plain.rfind("\n", 0, spot.at) + 1 : spot.at]
        if pointer := re.search(r"\*\s*(\w+)\s*=\s*$", line):
            at = spot.at - len(line) + pointer.start()
            edited = spot.source[:at] + " " + spot.source[at + 1 :]
            edited = re.sub(rf"\b{pointer[1]}\s*->", f"{pointer[1]}.", edited)
            fact = f"`{value}` is an object, and {pointer[1]} is declared as a pointer"
            step = f"Declare {pointer[1]} without *, and write {pointer[1]}. for {pointer[1]}->"
            yield {"fact": fact, "step": step, "edited": edited}


def _pointed(spot: Spot, span: tuple[int, int], value: str, message: str) -> Iterator[Values]:
    """Yield a call, an element, a row or an address of a value that is given to a variable."""
    if "(*)(" in message and re.fullmatch(r"[\w:<>, ]+", value):
        fact = f"`{value}` is a function, and its name alone is an address"
        yield spot.change(*span, f"{value}()", fact, f"Write `{value}()`")
    if "(*)[" in message:
        fact = f"`{value}` is an array of arrays, and its first row is `{value}[0]`"
        yield spot.change(*span, f"{value}[0]", fact, f"Write `{value}[0]`")
    elif "*" in message:
        if value.startswith("&"):
            right = value[1:].strip()
            fact = f"`{value}` is an address too many"
            yield spot.change(*span, right, fact, f"Write `{right}`")
        elif re.fullmatch(r"\w+", value):
            for right in (*(f"{value}[{index}]" for index in _indexed(spot)), f"*{value}"):
                fact = f"`{value}` is a pointer, and one of its values is expected here"
                yield spot.change(*span, right, fact, f"Write `{right}`")
            fact = f"`{value}` is a value, and its address is expected here"
            yield spot.change(*span, f"&{value}", fact, f"Write `&{value}`")


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
    for at in range(len(parts) - 1) if len(parts) > _PAIR else ():
        new = ", ".join([*parts[:at], parts[at + 1], parts[at], *parts[at + 2 :]])
        fact = f"The arguments of {name} are in another order than it declares them"
        yield spot.change(begin, begin + len(inside), new, fact, f"Write `{name}({new})`")
    given = len([*cxx.split(spot.code[begin : spot.at])]) - 1
    addresses = [
        f"&{part}" if at >= given and re.fullmatch(_ELEMENT, part) else part
        for at, part in enumerate(parts)
    ]
    if "incompatible with parameter" in message and addresses != parts:
        new = ", ".join(addresses)
        fact = f"{name} writes to the addresses that it is given"
        yield spot.change(begin, begin + len(inside), new, fact, f"Write `{name}({new})`")
    indices = _indexed(spot)
    for at, part in enumerate(parts):
        plain = part[1:].strip() if part[:1] in ("*", "&") else ""
        element = [f"{part}[{index}]" for index in indices if part.isidentifier()]
        for right in (plain,) if plain else (f"&{part}", *element, f"*{part}"):
            new = ", ".join([*parts[:at], right, *parts[at + 1 :]])
            fact = f"{name} takes `{right}` as argument {at + 1}, and no `{part}`"
            yield spot.change(begin, begin + len(inside), new, fact, f"Write `{name}({new})`")


_ELEMENT = r"[A-Za-z_]\w*(?:\[\w+\])*"
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

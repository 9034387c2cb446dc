"""What the source shows of a kernel's shared and constant memory: where it is declared, and the size of each array."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from rtcompile.inspect.symbols import simple_name
from rtcompile.messages.facts import BuildContext, Match, Values
from rtcompile.messages.quoted import lines_with, macros
from rtcompile.request import cxx

_BYTES = {"char": 1, "bool": 1, "short": 2, "half": 2, "__half": 2, "__nv_bfloat16": 2, "int": 4}
_BYTES |= {"float": 4, "unsigned": 4, "signed": 4, "size_t": 8, "double": 8, "long": 8}
_BYTES |= {"longlong": 8, "half2": 4, "__half2": 4, "__nv_bfloat162": 4}
_NUMBER = r"(?:#[ \t]*define[ \t]+|\b(?:const(?:expr)?|static)[\w ]*[ ])(\w+)[ \t]*[= \t][ \t]*([^;\n]{1,80})"
_SHARED = r"(?<!extern )\b__shared__\s+(?:(?:__align__|alignas)\s*\([^()]*\)\s*)?([\w:]+(?:\s+(?:char|short|int|long|double))*)\s+([^;{}=()]+);"
_MOST_CONSTANTS = 200


def static_shared(match: Match, context: BuildContext) -> Values:
    """Return the sizes in decimal, and the arrays of shared memory that the kernel or the source declares."""
    size = int(match["size"], 16)
    limit = {"size": str(size), "limit": str(int(match["limit"], 16))}
    entry = re.search(r"Entry function '(\w+)'", match.string)
    code = context.code
    name = simple_name(entry[1]) if entry else ""
    start = re.search(rf"\b{name}\s*\([^{{}};]*{{", code) if name else None
    body = (
        range(start.end(), start.end() + len(cxx.enclosed(code, start.end() - 1))) if start else ()
    )
    arrays = _arrays(context)
    own = [each for each in arrays if each[0] in body]
    listed = own if sum(each[2] for each in own) == size else arrays
    if listed and sum(each[2] for each in listed) == size:
        texts = [
            f"{name} ({bytes_} bytes, line {code.count(chr(10), 0, at) + 1})"
            for at, name, bytes_ in listed
        ]
        one = ", one array for all, with pointers to its parts" if len(texts) > 1 else ""
        return {**limit, "where": f": {', '.join(texts)}", "one": one}
    where = lines_with(r"^(?!.*\bextern\b).*\b__shared__\b", context)
    return {
        **limit,
        "where": f"; the source declares shared memory in {where}" if where else "",
        "one": "",
    }


def _arrays(context: BuildContext) -> list[tuple[int, str, int]]:
    """Return the offset, the text and the bytes of each array of static shared memory whose size the source shows."""
    known = dict(macros(context.options))
    text = cxx.blanked(context.source)
    known |= {each[1]: each[2] for each in [*re.finditer(_NUMBER, text)][:_MOST_CONSTANTS]}
    found = []
    for declared in re.finditer(_SHARED, context.code):
        kind = declared[1].rpartition("::")[2].split()
        vector = re.fullmatch(r"(u?(?:char|short|int|long|longlong)|float|double)([1-4])", kind[-1])
        base, times = (vector[1].removeprefix("u"), int(vector[2])) if vector else (kind[0], 1)
        if not vector:
            base = next(
                (word for word in ("double", "char", "short", "long") if word in kind), base
            )
        width = re.fullmatch(r"u?int(8|16|32|64)_t", base)
        element = int(width[1]) // 8 if width else _BYTES.get(base, 0)
        for part in cxx.split(declared[2]):
            shape = re.findall(r"\[([^\[\]]*)\]", part)
            count = 1
            for each in shape:
                count *= _value(each, known, 5)
            if element and count:
                found.append((declared.start(), part.strip(), element * times * count))
    return found


def _value(text: str, known: Mapping[str, str], depth: int) -> int:
    """Return the value of a sum of products of numbers and known names; 0 if it is anything else."""
    total = 0
    for term in text.strip().strip("()").split("+"):
        product = 1
        for factor in term.split("*"):
            word = factor.strip()
            if re.fullmatch(r"\d{1,9}[uUlL]*", word):
                product *= int(word.rstrip("uUlL"))
            else:
                product *= _value(known[word], known, depth - 1) if depth and word in known else 0
        if not product:
            return 0
        total += product
    return total


def shared_value(_: Match, context: BuildContext) -> Iterator[Values]:
    """Yield the variable of shared memory whose value one thread writes, or initialises by a function."""
    given = re.search(
        r"(__shared__[^;={(]*\b(\w+))\s*(?:=\s*([^;]+)|[({]([^;]*)[)}])\s*;", context.text
    )
    if given:
        name, value = given[2], (given[3] or given[4] or "").strip()
        for write in (f"{name} = {value};", f"init(&{name}, {value});"):
            right = f"{given[1]}; if (threadIdx.x == 0) {write} __syncthreads();"
            step = f"Let one thread write it: `if (threadIdx.x == 0) {write} __syncthreads();`"
            yield {"step": step, "edited": context.with_text(given[0], right)}
    yield {"step": "Let one thread write it, then call __syncthreads()"}


def launch_bounds(_: Match, context: BuildContext) -> Iterator[Values]:
    """Yield the kernel with its launch bounds behind __global__."""
    found = re.search(r"\s*__launch_bounds__\s*\([^()]*\)", context.text)
    begin = sum(len(line) + 1 for line in context.source.split("\n")[: context.line - 1])
    at = context.source.find(found[0].strip(), begin) if found and context.line else -1
    head = context.code.rfind("__global__", 0, at) + len("__global__")
    if found and at >= 0 and head >= len("__global__"):
        bounds, source = found[0].strip(), context.source
        rest = source[head:at] + source[at + len(bounds) :]
        yield {"right": f"`__global__ {bounds}` there", "edited": f"{source[:head]} {bounds}{rest}"}
    right = 'extern "C" __global__ void __launch_bounds__(256) name(...)'
    yield {"right": f"`{right}`, with a number, a constexpr variable or a macro"}


def constants(_: Match, context: BuildContext) -> Values:
    """Return where the source declares constant memory."""
    where = lines_with(r"\b__constant__\b", context)
    return {"where": f", and this one declares more in {where}" if where else ""}


def dynamic_shared(_: Match, context: BuildContext) -> Values:
    """Return which declarations of one extern __shared__ variable differ, as far as the source shows it."""
    declared = re.findall(
        r"\bextern\s+__shared__\s+(?:__align__\([^()]*\)\s*)?([\w:\s]*?[\w*])\s*\b(\w+)\s*\[",
        context.code,
    )
    name = next((n for _, n in declared if re.search(rf"\b{n}\b", context.text)), "")
    types = list(dict.fromkeys(" ".join(kind.split()) for kind, other in declared if other == name))
    if len(types) > 1:
        return {"declared": f"`{name}` is declared with the types {' and '.join(types)}"}
    if len(types) == 1 and re.search(
        rf"\b(?:class|typename)\s+{re.escape(types[0])}\b", context.code
    ):
        return {
            "declared": f"`{name}` has the template's type {types[0]}, another one in each instance"
        }
    return {"declared": "The variable is declared with two types"}

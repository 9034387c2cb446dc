"""What a message says of CuTe's tensors in numbers: ranks, sizes, element types, and what an instruction takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from rtcompile.messages.diagnostics import arguments, simplified, split
from rtcompile.messages.facts import BuildContext, Match, Values

# What types are called in an MMA's name, and in CuTe and CUDA.
_TYPES = {"F16": "half_t __half", "BF16": "bfloat16_t __nv_bfloat16", "TF32": "tfloat32_t"}
_TYPES |= {"F32": "float", "F64": "double", "S8": "int8_t char", "U8": "uint8_t", "S32": "int"}
_TYPES |= {"U32": "unsigned", "E4M3": "float_e4m3_t", "E5M2": "float_e5m2_t"}
_SAME = {name: type_ for type_, names in _TYPES.items() for name in names.split()}


def _bits(type_: str) -> int:
    """Return the size of an element type in bits; 0 if it is not known."""
    name = _SAME.get(type_, type_)
    number = re.fullmatch(r"(?:TF|BF|[FSUC]|u?int)(\d+)(?:_t)?", name)
    return int(number[1]) if number else 8 * bool(re.fullmatch(r"E\dM\d", name))


def copy_width(match: Match, context: BuildContext) -> Values | None:
    """Return how many elements a CuTe copy moves at a time, how many the first mode has, and a copy that fits."""
    text = match.string
    word = re.search(r"(?:UniversalCopy|SM80_CP_ASYNC_\w+)<(?:\w+::)*(\w+)", text)
    element = re.search(r"CopyInternalType=(?:\w+::)*(\w+)", text)
    layout = re.search(r"\b(?:SLayout|SrcLayout)=(cute::Layout<[^=]*>), \w+=", text)
    if not (word and element):
        return None
    wide, one = _bits(word[1]), _bits(element[1])
    if not (wide and one) or wide % one:
        return None
    number = wide // one
    shape = simplified(layout[1]) if layout else ""
    extent = next(iter(_modes(shape)), 0)
    has = f"{extent or 'another number'} (its layout: {shape})"
    call = re.search(r"\bcopy\((.*)\)", context.users_line)
    given = split(call[1])[-3:] if call else []
    atom, *pair = given if len(given) == 3 else ("atom", "src", "dst")
    tiled = ", ".join(f"zipped_divide({each}, Shape<_{number}>{{}})" for each in pair)
    fit = f"`copy({atom}, {tiled})`"
    if not extent or extent % number:
        fit = f"make the extent a multiple of {number} and write {fit}"
    values = {"word": word[1], "element": element[1], "number": str(number)}
    return {**values, "has": has, "plain": f"copy({', '.join(pair)})", "fit": fit}


# An MMA's name has M, N and K, and the types of D, A, B and C; a warp's threads share its operands.
_MMA = re.compile(r"\bSM(\d+)_(\d+)x(\d+)x(\d+)_\w*")
_MMA_TYPE = r"TF32|BF16|[FSUC]\d+|E\dM\d"

# The ranks of A, B and C that go together.
_RANKS = {(1, 1, 1): "A (V), B (V), C (V)", (2, 2, 3): "A (V,M), B (V,N), C (V,M,N)"}
_RANKS |= {(3, 3, 3): "A (V,M,K), B (V,N,K), C (V,M,N)"}
_RANKS_OF_ONE_VALUE = {(1, 1, 2): "A (M), B (N), C (M,N)", (2, 2, 2): "A (M,K), B (N,K), C (M,N)"}


def gemm(match: Match, context: BuildContext) -> Values | None:
    """Return which operands of a gemm have another number, rank, size or type than the MMA takes."""
    given = match.string.partition("argument types are: (")[2].partition("\n")[0]
    if given:
        words = split(simplified(f"f({given}")[2:].rpartition(")")[0])
        mma = words.pop(0) if "MMA" in words[0].partition("<")[0] else ""
    else:  # the outermost instance has the user's own tensors
        frames = [arguments(n.message) for n in context.notes if "gemm(" in n.message]
        known = next((each for each in reversed(frames) if "BLayout" in each), {})
        mma = next((each for each in known.values() if _MMA.search(each)), "")
        words = [f"Tensor<{known.get(f'T{x}')}, {known.get(f'{x}Layout')}>" for x in "ABC"]
    tensors = [each for each in map(_tensor, words) if each is not None]
    if len(tensors) < len(words):
        return None
    sizes, types = _takes(mma)
    if len(words) in (3, 4):
        operands = dict(zip("ABC", tensors[-3:], strict=True))
        wrong, step = _unfit(operands, sizes, types)
        listed = [f"{x} is {tensor.text}" for x, tensor in operands.items()]
    elif mma:
        takes = "gemm takes (mma, A, B, C) or (mma, D, A, B, C)"
        wrong = f"{takes}, and this call has {len(words) + 1} arguments"
        listed = [f"After the MMA it has {' and '.join(tensor.text for tensor in tensors)}"]
        step = "Give A, B and the accumulator C, in this order; D, where it is another tensor, before them"
    else:
        return None
    if name := _MMA.search(mma):
        takes = ", ".join(f"{n} {types.get(x, 'values')} as {x}" for x, n in sizes.items())
        listed += [f"{name[0]} takes {takes} from each thread"] if takes else []
        step += ". partition_fragment_A, _B and _C of the TiledMMA's thread slice make fragments that fit"
    return {"wrong": wrong, "given": "; ".join(listed), "step": step} if wrong else None


def _unfit(
    operands: Mapping[str, _Tensor], sizes: Mapping[str, int], types: Mapping[str, str]
) -> tuple[str, str]:
    """Return what is wrong with A, B and C, and what to give."""
    ranks = tuple(len(each.shape) for each in operands.values())
    allowed = _RANKS | ({} if sizes else _RANKS_OF_ONE_VALUE)
    near = max(allowed, key=lambda r: (r == ranks, sum(map(int.__eq__, r, ranks)), r))
    wrong, steps = [], []
    if ranks not in allowed:
        *some, last = allowed
        wrong = ["A, B and C have the ranks {}, {} and {} (numbers of modes)".format(*ranks)]
        wrong[0] += f", and gemm takes only {', '.join(map(str, some))} or {last}"
    modes = re.findall(r"\(.*?\)", allowed[near])
    for (x, tensor), rank, mode in zip(operands.items(), near, modes, strict=True):
        own, takes, number = _SAME.get(tensor.element, ""), types.get(x, ""), sizes.get(x, 0)
        if own and takes and own != takes:
            wrong.append(f"{x} is of {tensor.element} where the MMA takes {takes}")
            steps.append(f"{x} elements of the type {_TYPES.get(takes, takes).split()[0]}")
        elif (bits := _bits(tensor.element)) and _bits(takes):
            number = number * _bits(takes) // bits
        is_size = bool(number and tensor.shape[0] and tensor.shape[0] != number)
        if is_size and len(tensor.shape) == rank:
            held = f"{x} has {tensor.shape[0]} values per thread"
            wrong.append(f"{held} where the MMA takes {number}")
        if is_size or len(tensor.shape) != rank:
            steps.append(f"{x} the shape {mode.replace('V', f'_{number}' if number else 'V')}")
        if tensor.memory == "gmem":
            wrong.append(f"{x} lies in global memory where the MMA takes registers")
            steps.append(f"{x} as a copy in registers (make_fragment_like, copy)")
    step = f"Give {' and '.join(steps) or 'A, B and C in this order'}"
    step += f". With these ranks the modes are {allowed[near]}"
    step += ": V is what one thread holds" * ("V" in allowed[near])
    step += ", and M, N and K repeat the MMA" * ("V,M" in allowed[near])
    return " and ".join(wrong), step


def _takes(mma: str) -> tuple[dict[str, int], dict[str, str]]:
    """Return how many values of each operand one thread holds for an MMA, and their types, by A, B and C."""
    found = _MMA.search(mma)
    if found is None or "SPARSE" in mma:
        return {}, {}
    arch, m, n, k = map(int, found.groups())
    threads = 8 if arch == 70 else 32
    sizes = dict(zip("ABC", (m * k // threads, n * k // threads, m * n // threads), strict=True))
    types = re.findall(_MMA_TYPE, found[0].split("_", 2)[2].partition("_")[0])
    return sizes, dict(zip("ABC", types[1:], strict=True)) if len(types) == 4 else {}


class _Tensor(NamedTuple):
    memory: str
    element: str
    shape: list[int]  # the size of each mode; 0 if it is not static
    text: str


def _tensor(text: str) -> _Tensor | None:
    inside = split(re.sub(r"^(?:const )?Tensor<(.*)>$", r"\1", text))
    shape = _modes(inside[-1]) if len(inside) == 2 else []
    if not shape:
        return None
    engine = re.match(r"([gsr]mem |)(?:const )?(.*?)(?: \*)?$", inside[0])
    memory, element = engine.groups() if engine else ("", "")
    return _Tensor(
        memory.strip(), element, shape, f"{memory}{element} {_SHAPE.split(inside[1])[0]}"
    )


_SHAPE = re.compile(r"(?<=[\w)]):(?=[(\w])")


def _modes(layout: str) -> list[int]:
    """Return the size of each mode of a layout as `simplified` writes it, ``(_4,(_2,_3)):(…)``."""
    if "<" in layout:  # a swizzle or another function over a layout
        return []
    shape = _SHAPE.split(layout)[0]
    shape = shape[1:-1] if shape.startswith("(") else shape
    sizes = [re.findall(r"[A-Za-z]\w*|\d+", mode.replace("_", "")) for mode in split(shape)]
    return [prod(map(int, s)) if all(n.isdigit() for n in s) else 0 for s in sizes]


def stated_sizes(condition: str, known: Mapping[str, str]) -> list[str]:
    """Return what each ``size<1>(A)`` of a condition is, by the layouts that a frame states."""
    found = []
    for each in re.finditer(r"\b(size|rank)(?:<(\d)>)?\((\w+)\)", condition):
        layout = known.get(f"{each[3]}Layout", "")
        modes = _modes(layout) if layout else []
        value = len(modes)
        if each[1] == "size" and modes:
            value = prod(modes[int(each[2]) :][:1] if each[2] else modes)
        if value:
            found.append(f"{each[0]} is {value} ({each[3]} is {layout})")
    return list(dict.fromkeys(found))

"""What a hint says with the user's own words: the argument that is 0, the prototype, the line to put it above.

Each function takes the match of a message's pattern and the `BuildContext`. It returns the values for
the templates of ``catalogue.ini``, or None where the source does not have what it would quote.
"""

from __future__ import annotations

import re

from rtcompile.messages.facts import BuildContext, Match, Values
from rtcompile.messages.types import simplified
from rtcompile.request import cxx

_MOST_SOURCE = 2 << 20  # characters that are searched
_BYTES = {"char": 1, "half_t": 2, "bfloat16_t": 2, "__half": 2, "float": 4, "int": 4, "double": 8}


def zero_size(match: Match, context: BuildContext) -> Values:
    """Return the template argument or the macro that is 0 or negative, and the user's line that has it."""
    frames = [line for line in match.string.split("\n") if "[with " in line]
    for frame in reversed(frames):  # the outermost is nearest to the user
        values = frame.partition("[with ")[2]
        zero = re.search(r"\b(?!\w*ARCH)\w+=(?:0|-\d+)\b", values)
        used = re.search(r"(\w+)<", simplified(frame.partition("[with ")[0]))
        if zero:
            what = f"{zero[0]}: the template argument {zero[0].partition('=')[0]}"
            pattern = rf"\b{used[1]}\s*<" if used else r"(?!)"
            line = _line_with(pattern, context.source)
            where = (
                f"in {line} give {used[1]} a greater one" if line and used else "give a greater one"
            )
            return {"what": what, "where": where}
    for name, value in _macros(context.options):
        if re.fullmatch(r"0|-\d+", value) and (line := _line_with(rf"\b{name}\b", context.source)):
            step = f"give -D{name}= a greater number; {line} uses it"
            return {"what": f"-D{name}={value}: the macro {name}", "where": step}
    where = 'one of the numbers in the line above, or of the arguments in the lines "from", must be greater'
    return {"what": "A size, a count or a divisor", "where": where}


def copy_width(match: Match, _: BuildContext) -> Values | None:
    """Return how many elements a CuTe copy moves at a time, and how many the tensor has."""
    text = match.string
    word = re.search(r"UniversalCopy<(?:\w+::)*(\w+)", text)
    element = re.search(r"CopyInternalType=(?:\w+::)*(\w+)", text)
    layout = re.search(r"\b(?:SLayout|SrcLayout)=(cute::Layout<[^=]*>), \w+=", text)
    if not (word and element):
        return None
    size = re.fullmatch(r"u?int(\d+)_t", word[1])
    wide = int(size[1]) // 8 if size else _BYTES.get(word[1], 0)
    narrow = re.fullmatch(r"u?int(\d+)_t", element[1])
    one = int(narrow[1]) // 8 if narrow else _BYTES.get(element[1], 0)
    if not (wide and one) or wide <= one:
        return None
    number = wide // one
    shape = simplified(layout[1]) if layout else ""
    extent = re.match(r"\(?_(\d+)", shape)
    has = f"this layout gives it {shape}"
    if extent and int(extent[1]) % number:
        has = f"the tensor has {extent[1]} (its layout: {shape})"
    return {"word": word[1], "element": element[1], "number": str(number), "has": has}


def gemm_arguments(match: Match, _: BuildContext) -> Values | None:
    """Return the number of arguments of a gemm with an MMA, if it is too small or too large."""
    given = simplified(match.string.partition("argument types are: ")[2].partition("\n")[0])
    depth, number = 0, 1
    for letter in given:
        depth += {"(": 1, "<": 1, ")": -1, ">": -1}.get(letter, 0)
        number += letter == "," and depth == 1
    if "MMA" not in given.partition("<")[0] or number in (4, 5):
        return None
    return {"number": str(number)}


def prototype(word: str, line: int, use: int, source: str) -> str:
    """Return what to put where, so that a function of `line` may be used in the line `use`; "" if it is none."""
    lines = source.split("\n")
    declared = re.match(
        rf"([^{{}};=]*\b{re.escape(word)}\s*\([^{{}};]*\))\s*(?:{{|$)", lines[line - 1]
    )
    if declared is None:
        return ""
    code, depth, begin = (
        cxx.blanked(source[:_MOST_SOURCE], literals=True, directives=True).split("\n"),
        0,
        1,
    )
    for number, text in enumerate(code[: use - 1], 1):
        if not depth and text.strip():
            begin = number
        depth += text.count("{") - text.count("}")
    begin = begin if depth else use
    return f"Put `{declared[1].strip()};` above line {begin}, or move the function there"


def outlived(word: str, line: int, source: str) -> str:
    """Return how to declare a variable of a loop or a block before it; "" if its type is not plain."""
    text = source.split("\n")[line - 1]
    declared = re.search(rf"((?:const |unsigned )?\b\w+[\s*&]+){re.escape(word)}\s*[=;:]", text)
    if declared is None or declared[1].split()[-1] in ("auto", "return"):
        return ""
    type_ = declared[1].strip()
    return f"Put `{type_} {word};` above line {line}, and take `{type_}` out of line {line}"


def run_time_size(match: Match, context: BuildContext) -> Values:
    """Return the array whose length is not constant, and the declaration that takes its place."""
    line = context.excerpt.partition("\n")[0]
    array = re.search(r"__shared__\s+([\w:<>]+)\s+(\w+)\s*\[([^\]]+)\]", line)
    value = re.search(r"the value of (?:parameter|variable) \"(\w+)\"", match.string)
    what = f"{value[1]}'s" if value else "this"
    if array:
        type_, name, length = array.groups()
        bytes_ = length if length.isidentifier() else f"({length})"
        return {
            "value": what,
            "step": f"Write `extern __shared__ {type_} {name}[];` and launch with shared_mem={bytes_} * "
            f"sizeof({type_}) bytes; or make {length} constexpr, a template parameter, or a macro (-DN=64)",
        }
    return {
        "value": what,
        "step": "Make it constexpr, a template parameter, or a macro of the options (-DN=64); for "
        "__shared__ memory declare extern __shared__ and give shared_mem= at the launch",
    }


def deduction(match: Match, context: BuildContext) -> Values:
    """Return which types one template parameter would have, and how the call would be right."""
    function = match["function"].rpartition("::")[2]
    given = re.search(r"argument types are: \(([^()<>]*)\)", match.string)
    types = given[1].split(", ") if given else []
    line = context.excerpt.partition("\n")[0]
    call = re.search(rf"\b{re.escape(function)}(\([^()]*\))", line)
    template = re.search(
        rf"template\s*<\s*(?:class|typename)\s+(\w+)\s*>[^;{{]{{0,200}}?\b{re.escape(function)}\s*\(([^()]*)\)",
        context.source,
    )
    if template and len(set(types)) > 1 and len(re.findall(rf"\b{template[1]}\b", template[2])) > 1:
        why = f"{template[1]} would be {' and '.join(dict.fromkeys(types))}: the arguments are ({given[1] if given else ''})"
    else:
        why = "two arguments give one parameter different types, or none gives it any"
    wide = next((t for t in ("double", "float", "long long", "int") if t in types), "float")
    right = f"{function}<{wide}>{call[1] if call else '(...)'}"
    return {"name": function, "why": why, "right": right}


def parameter(wanted: str, context: BuildContext) -> str:
    """Return the declaration and line of the called function's parameter of type `wanted`; "" if not found."""
    line = context.excerpt.partition("\n")[0]
    calls = re.findall(r"(\w+)\s*\(", line[: max(0, context.column - 1)])
    if not calls:
        return ""
    source = context.source.split("\n")
    for number, text in enumerate(source, 1):
        found = re.search(rf"\w[\s*&]+{calls[-1]}\s*\(([^()]*)\)", text)
        for each in found[1].split(",") if found and number != context.line else ():
            if each.replace(" ", "").startswith(wanted.replace(" ", "")):
                return f"`{each.strip()}` of {calls[-1]}, line {number}"
    return ""


def _macros(options: tuple[str, ...]) -> list[tuple[str, str]]:
    found = (re.fullmatch(r"(?:-D|--define-macro=)(\w+)=(.*)", option) for option in options)
    return [(each[1], each[2]) for each in found if each]


def _line_with(pattern: str, source: str) -> str:
    source = source[:_MOST_SOURCE]
    code = cxx.blanked(source, literals=True, directives=True).split("\n")
    for number, text in enumerate(code, 1):
        if re.search(pattern, text):
            return f"line {number} (`{source.split(chr(10))[number - 1].strip()[:100]}`)"
    return ""

"""What a hint says with the user's own words: the argument that is 0, what a condition is false for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

from rtcompile.messages.declared import operands, templates
from rtcompile.messages.diagnostics import arguments, line_in_source, simplified, split
from rtcompile.messages.facts import TABLES, BuildContext, Match, Values
from rtcompile.request import cxx


def zero_size(match: Match, context: BuildContext) -> Values:
    """Return the template argument or the macro that is 0 or negative, and the user's line that has it."""
    facts = {"size": "The size of an array is 0 or negative", "shift": "A shift count is negative"}
    fact = facts.get(match[0].split()[0], "The code divides by 0")
    frames = [line for line in match.string.split("\n") if "[with " in line]
    for frame in reversed(frames):  # the outermost is nearest to the user
        given = {n: v for n, v in arguments(frame).items() if re.fullmatch(r"0|-\d+", v)}
        zero = next((name for name in given if "ARCH" not in name), "")
        used = re.search(r"(\w+)<", simplified(frame.partition("[with ")[0]))
        if zero:
            line = _line_with(rf"\b{used[1]}\s*<", context) if used else ""
            meant = TABLES["numbers"].get(zero)
            where = f"in {line} give {used[1]} " if line and used else "give "
            where += "a greater one" + (f": {meant}" if meant else "")
            what = f": the template argument {zero}" + (f" of {used[1]}" if used else "")
            return {"fact": fact, "what": f"{what} is {given[zero]}", "where": where}
    for name, value in macros(context.options):
        if re.fullmatch(r"0|-\d+", value) and (line := _line_with(rf"\b{name}\b", context)):
            step = f"give -D{name}= a greater number; {line} uses it"
            return {"fact": fact, "what": f": the macro {name} is {value}", "where": step}
    where = 'one of the numbers in the line above, or of the arguments in the lines "from", must be greater'
    return {"fact": fact, "what": "", "where": where}


_ASM_BYTES = {"h": 2, "r": 4, "f": 4, "l": 8, "d": 8, "q": 16}
_ASM_FITTING = {2: '"h"', 4: '"r" ("f" for a float)', 8: '"l" ("d" for a double)', 16: '"q"'}
_ASM_OTHER = {
    "r": '"f" for a float',
    "l": '"d" for a double',
    "f": '"r" for an integer',
    "d": '"l" for an integer or a pointer',
}


def asm_operand(match: Match, context: BuildContext) -> Values:
    """Return why a constraint of inline assembly does not fit its operand, and which one would."""
    above = "\n".join(context.source.split("\n")[: context.line])
    text = f"{match.string}\n{above[above.rfind('asm') :]}" if "asm" in above else match.string
    size, letter = int(match["size"]), match["constraint"]
    takes, fitting = _ASM_BYTES.get(letter), _ASM_FITTING.get(size)
    fact = f'The operand has {size} bytes, and the constraint "{letter}" takes {takes}'
    step = f"Write {fitting} in its place, with an instruction for {size} bytes, or give a value of {takes} bytes"
    if size == 8 and letter == "r" and (address := re.search(r"\[\s*%\d+", text)):
        step = f'Write "l": an address ({address[0]}]) has 8 bytes. Another operand of 8 bytes needs an instruction for them'
        if re.search(r"\.shared\b|\bldmatrix\b|\bmbarrier\b", text):
            step = "An address in shared memory has 4 bytes there: pass "
            step += (
                '"r"((unsigned)__cvta_generic_to_shared(pointer)), and "l" for one in global memory'
            )
    if takes is None:
        fact = f'PTX has no constraint "{letter}"'
        step = 'Write "h", "r" or "l" for an integer of 2, 4 or 8 bytes, "f" for a float, "d" for a double'
    elif takes == size and letter in _ASM_OTHER:
        fact = f'The constraint "{letter}" takes another type of {size} bytes'
        step = f"Write {_ASM_OTHER[letter]}"
    elif fitting is None:
        fact = f"The operand has {size} byte{'s' * (size > 1)}, and no constraint takes that"
        step = 'Copy it to an int first, and pass this one with "r"'
    return {"fact": fact, "step": step}


def asm_number(match: Match, context: BuildContext) -> Values:
    """Return which operands the text of the message's inline assembly names."""
    if match["named"]:
        fact = "%[name] is how GCC names an operand of inline assembly, and no compiler of device code reads it"
        lines = context.source.split("\n")
        text = lines[context.line - 1] if 0 < context.line <= len(lines) else context.text
        names = re.findall(r"[:,]\s*\[(\w+)\]\s*(?=\")", text)
        right = re.sub(r"([:,]\s*)\[\w+\]\s*(?=\")", r"\1", text)
        for number, name in enumerate(names):
            right = right.replace(f"%[{name}]", f"%{number}")
        is_whole = names and "%[" not in right
        step = f"Write `{right.strip()}`" if is_whole else "Number them from %0 on, outputs first"
        return {"fact": fact, "step": step}
    named = sorted({int(each) for each in re.findall(r"%(\d{1,3})", context.text)})
    fact = "The inline assembly names an operand that is not passed to it"
    fact += f": its highest is %{named[-1]}" if named else ""
    step = "Number the operands from %0 on, outputs first, and pass as many as the text names"
    return {"fact": fact, "step": step}


def macro_name(match: Match, _: BuildContext) -> Values:
    """Return what is wrong with the name of a macro of the options."""
    name, equals, value = match["macro"].partition("=")
    plain = re.sub(r"\W", "_", name.strip())
    fact = f"`{name.strip()}` is no name of C++, which has letters, digits and _, and begins with no digit"
    if plain == name.strip() and plain.isidentifier():
        fact = f"A blank stands beside the macro's name {plain}, and belongs to neither the name nor the value"
    elif colon := re.fullmatch(r"([A-Za-z]\w*):(.+)", match["macro"]):
        plain, equals, value = colon[1], "=", colon[2]
    plain = plain if plain.isidentifier() else f"N{plain}"
    return {"fact": fact, "right": f"-D{plain}{equals}{value.strip()}"}


def macro_again(match: Match, context: BuildContext) -> Values:
    """Return whether an option defines a macro that the source defines again."""
    name = match["macro"]
    given = dict(macros(context.options))
    if name in given:
        fact = f"The option -D{name}={given[name]} defines {name}, and this line defines it again: from here on the option has no effect"
        return {
            "fact": fact,
            "step": f"Put #ifndef {name} and #endif around this line, or leave the option out",
        }
    return {
        "fact": f"{name} is defined twice, and the second value counts",
        "step": "Remove one, or write #undef before it",
    }


def assertion(_: Match, context: BuildContext) -> Values:
    """Return the condition of a static_assert, what its names stand for, and the line that says so."""
    condition = _condition(context)
    frames = [n for n in context.notes if _INSTANCE.match(n.message) and "[with " in n.message]
    known = {**dict(macros(context.options)), **(arguments(frames[0].message) if frames else {})}
    words = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", condition))
    names = [word for word in words if word in known]
    stated = [f"{name} is {known[name]}" for name in names]
    where = ""
    if frames and stated:
        values, at, name = {known[name] for name in names}, frames[-1], frames[-1].file
        for inner, outer in pairwise(frames):
            if not values <= {*arguments(outer.message).values()}:
                at = inner  # its caller computed the values
                break
        line = line_in_source(at, context.source, name) if "/include/" not in name else 0
        where = _shown(line, context).replace("l", "L", 1) or "What instantiates this"
    elif stated:
        where = f"The option -D{names[0]}="
    else:
        for word in words:
            if found := re.search(_CONSTANT.format(word), context.source):
                line = context.source.count("\n", 0, found.start()) + 1
                known[word] = found[1].strip()
                stated, where = [f"{word} is {known[word]}"], f"Line {line}"
    gives = f"{where} gives {'it' if len(stated) == 1 else 'them'}: {_change(condition, known)}"
    return {
        "false": f"`{condition}`" if condition else "A condition that the code requires",
        "known": f": {', '.join(stated)}" if stated else " for these arguments or types",
        "where": gives if where else _ASSERTED,
    }


def _change(condition: str, known: Mapping[str, str]) -> str:
    """Return how to change what makes a condition false, with a number that fits where one does."""
    for name, divisor, sign, limit in re.findall(_CLAUSE, condition):
        number = int(known[name]) if re.fullmatch(r"\d{1,9}", known.get(name, "")) else 0
        near = int(limit or 0) + {"<": -1, ">": 1}.get(sign, 0)
        if divisor and int(divisor):
            near = number // int(divisor) * int(divisor) or int(divisor)
        is_false = {"<": number > near, ">": number < near}.get(sign[:1], number != near)
        if number and is_false:
            return f"change it there, for example so that {name} is {near}"
    return "change it there, so that the condition holds"


_CLAUSE = r"\b([A-Za-z_]\w*) (?:% (\d{1,9}) == 0|([<>]=?|==) (\d{1,9}))(?= &&|$)"


_CONSTANT = r"(?:\bconst(?:expr)?\b[^;(]{{0,100}}\b{0}\s*=|#\s*define\s+{0}\b)\s*([^;\n]{{1,60}})"
_INSTANCE = re.compile(r"(?:detected during )?instantiation of ")
_ASSERTED = "The lines shown above lead there: change the arguments that they give"


def _condition(context: BuildContext) -> str:
    """Return what stands in the parentheses of a static_assert, without its text."""
    line = context.text.strip()
    own = context.source.split("\n")[context.line - 1 :][:10] if context.line else []
    whole = "\n".join(own) if own and own[0].strip() == line else line
    found = re.search(r"(?i:static_assert)\w*\s*\(", whole)
    if found is None:
        return ""
    text = cxx.enclosed(whole, found.end() - 1)
    return " ".join(re.sub(r',\s*(?:".*)?$', "", text, flags=re.DOTALL).split())


_NUMBER_TYPES = {
    f"{sign}{kind}"
    for sign in ("", "unsigned ")
    for kind in ("char", "short", "int", "long", "long long")
}
_NUMBER_TYPES |= {"float", "double", "__half", "__nv_bfloat16", "bool", "signed char"}


def deduction(match: Match, context: BuildContext) -> Values | None:
    """Return which types one template parameter would have, and how the call would be right."""
    if "/include/" in match.string.partition(": ")[0]:
        return None  # a library's own call: the arguments are not the user's
    function = match["function"].rpartition("::")[2]
    given = re.search(r"argument types are: \(([^()<>]*)\)", match.string)
    types = given[1].split(", ") if given else []
    line = context.text
    call = re.search(rf"\b{re.escape(function)}(\([^()]*\))", line)
    if known := _not_among_parameters(function, context):
        return known
    template = re.search(
        rf"template\s*<\s*(?:class|typename)\s+(\w+)\s*>[^;{{]{{0,200}}?\b{re.escape(function)}\s*\(([^()]*)\)",
        context.source,
    )
    why = ""
    if template and len(set(types)) > 1 and len(re.findall(rf"\b{template[1]}\b", template[2])) > 1:
        why = f": {template[1]} would be {' and '.join(dict.fromkeys(types))}"
    elif not template and not {*types} <= _NUMBER_TYPES:
        return None  # other types than numbers do not become one
    wide = next((t for t in ("double", "float", "long long", "int") if t in types), "float")
    code = f"{function}<{wide}>{call[1] if call else '(...)'}"
    right = f"Convert the arguments to one type, or name the type: {code}"
    edited = context.with_text(call[0], code) if call else ""
    return {"name": function, "why": why, "right": right, "edited": edited}


def parameter(wanted: str, context: BuildContext) -> tuple[str, str, int]:
    """Return the called function, its parameter of type `wanted` as declared, and the line; "" and 0 if not found."""
    line = context.text
    calls = re.findall(r"(\w+)\s*(?:<[^()]*>\s*)?\(", line[: max(0, context.column - 1)])
    source = context.source.split("\n") if calls else []
    for number, text in enumerate(source, 1):
        found = re.search(rf"\w[\s*&]+{calls[-1]}\s*\(([^()]*)\)", text)
        for each in found[1].split(",") if found and number != context.line else ():
            if each.replace(" ", "").startswith(wanted.replace(" ", "")):
                return calls[-1], each.strip(), number
    return "", "", 0


def to_const(given: str, wanted: str, context: BuildContext) -> str:
    """Return which of two pointers to declare otherwise, if const data are given to what may write."""
    function, declared, line = parameter(wanted, context)
    text = context.text
    argument = re.match(r"[\s&*(]*(\w+)", text[max(0, context.column - 1) :])
    own = argument and re.search(
        rf"\bconst\s+[\w:]+[\s*]{{1,9}}(?:__restrict__\s*)?\b{argument[1]}\b", context.source
    )
    at = context.source.count("\n", 0, own.start()) + 1 if own else 0
    plain = re.sub(r"\bconst\s+", "", own[0], count=1) if own else wanted
    drop = f"write `{plain}` in line {at}" if own else "take const off what is given"
    if not declared:
        return f"If it only reads, declare it as `{given}`; if it writes, {drop}"
    return (
        f"If {function} only reads, write `const {declared}` in line {line}; if it writes, {drop}"
    )


def _not_among_parameters(function: str, context: BuildContext) -> Values | None:
    """Return the parameters of the source's template that no argument can tell."""
    declared = templates(context.code).get(function, "")
    found = re.search(rf"\b{re.escape(function)}\s*\(", context.code) if declared else None
    if found is None or "..." in declared:
        return None
    inside = cxx.enclosed(context.code, found.end() - 1)
    names = [
        re.findall(r"\w+", each.partition("=")[0] or each)[-1]
        for each in split(declared)
        if "=" not in each
    ]
    missing = [name for name in names if not re.search(rf"\b{name}\b", inside)]
    if not missing:
        return None
    why = f": no parameter of it has {' or '.join(missing)} in its type, so the call must name {'it' if len(missing) == 1 else 'them'}"
    given = names[: names.index(missing[-1]) + 1]
    return {
        "name": function,
        "why": why,
        "right": f"Write {function}<{', '.join(given)}>(...), with your own for {' and '.join(given)}",
    }


_REMOVED = {  # what these macros of the CUDA headers leave out: the type, the part, and what does the same
    "__CUDA_NO_HALF_OPERATORS__": ("__half", "the operators", "__hadd(a, b), __hmul(a, b)"),
    "__CUDA_NO_HALF2_OPERATORS__": ("__half2", "the operators", "__hadd2(a, b), __hmul2(a, b)"),
    "__CUDA_NO_BFLOAT16_OPERATORS__": (
        "__nv_bfloat16",
        "the operators",
        "__hadd(a, b), __hmul(a, b)",
    ),
    "__CUDA_NO_BFLOAT162_OPERATORS__": (
        "__nv_bfloat162",
        "the operators",
        "__hadd2(a, b), __hmul2(a, b)",
    ),
    "__CUDA_NO_HALF_CONVERSIONS__": (
        "__half",
        "the conversions",
        "__float2half(x), __half2float(x)",
    ),
    "__CUDA_NO_BFLOAT16_CONVERSIONS__": (
        "__nv_bfloat16",
        "the conversions",
        "__float2bfloat16(x), __bfloat162float(x)",
    ),
}


def operators_removed(match: Match, context: BuildContext) -> Values | None:
    """Return the macro of the build that takes the operators or conversions from the type in the message."""
    named = {*re.findall(r"\b__(?:half2?|nv_bfloat16[2]?)\b", match.string)}
    named |= {
        f"__{name}" for name in re.findall(r"(?<!_)\b(half2?|nv_bfloat16[2]?)\b", match.string)
    }
    wanted = "the conversions" if match[0].startswith("no suitable") else "the operators"
    for macro, (kind, what, instead) in _REMOVED.items():
        given = any(
            re.match(rf"(?:-D ?|--define-macro=){macro}\b", each) for each in context.options
        )
        defined = re.search(rf"^[ \t]*#[ \t]*define[ \t]+{macro}\b", context.source, re.MULTILINE)
        if kind not in named or what != wanted or not (given or defined):
            continue
        line = context.source.count("\n", 0, defined.start()) + 1 if defined else 0
        where = f"which line {line} defines" if defined else "an option of this build"
        does = {"the operators": "calculate with", "the conversions": "convert with"}[what]
        return {
            "macro": macro,
            "where": where,
            "what": what,
            "type": kind,
            "instead": f"{does} {instead} and the like",
        }
    return None


_COMPLEX = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_VECTOR = r"u?(?:char|short|int|long|longlong)[1-4]|(?:float|double)[1-4]"


def operator_of_struct(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield what to write for an operator between complex numbers of cuComplex.h or between vectors."""
    found = _operator_of_struct(match)
    whole, left, right = operands(match["operator"], context)
    written = (
        re.search(r"Write ((?:make_|cuC|float)[^\n]*?\))(?:, or |$)", found["step"])
        if found
        else None
    )
    if found and written and whole:
        code = re.sub(r"\ba\b", lambda _: left, re.sub(r"\bb\b", lambda _: right, written[1]))
        step = found["step"].replace(written[1], f"`{code}`")
        yield {**found, "step": step, "edited": context.with_text(whole, code)}
    if found:
        yield found


def _operator_of_struct(match: Match) -> dict[str, str] | None:
    types, sign = match["types"], match["operator"][0]
    named = re.search(r"\bcu(Float|Double)?Complex\b", types)
    if named and sign in _COMPLEX:
        suffix = "" if named[1] == "Double" else "f"
        number = "double" if named[1] == "Double" else "float"
        step = f"Write cuC{_COMPLEX[sign]}{suffix}(a, b)"
        step += (
            f", or use cuda::std::complex<{number}> of <cuda/std/complex>, which has all operators"
        )
        return {"type": named[0], "step": step}
    small = re.search(r"\b__nv_fp(?:8|6|4)_e\dm\d\b", types)
    if small:
        step = f"Convert to float first: float(a) {match['operator']} float(b)"
        return {"type": small[0], "step": step}
    vector = re.search(rf"\b(?:{_VECTOR})\b", types)
    if vector is None or vector[0] == "uint3":  # threadIdx: nobody calculates with all of it
        return None
    if match["operator"] == "-" and types.startswith("-"):
        parts = ", ".join(f"-a.{name}" for name in "xyzw"[: int(vector[0][-1])])
        return {"type": vector[0], "step": f"Write make_{vector[0]}({parts})"}
    kind, names = vector[0][:-1], "xyzw"[: int(vector[0][-1])]
    scalar = not re.search(rf"\b(?:{_VECTOR})\b[^\n]*\b(?:{_VECTOR})\b", types)
    parts = ", ".join(f"a.{n} {sign} {'b' if scalar else f'b.{n}'}" for n in names)
    made = f"make_{kind}{len(names)}({parts})"
    other = {"longlong": "long long"}.get(kind, kind) if scalar else vector[0]
    compound = sign if match["operator"] != "==" and len(match["operator"]) > 1 else ""
    if compound and compound != "!":
        step = f"Write a = {made}, or declare `__device__ void operator{sign}=({vector[0]}& a, {other} b)` once"
        return {"type": vector[0], "step": step}
    step = f"Write {made}, or declare `__device__ {vector[0]} operator{sign}({vector[0]} a, {other} b)` once"
    if match["operator"] in ("==", "!="):
        step = f"Compare the members {', '.join(names)}"
    return {"type": vector[0], "step": step}


_MOST_PLACES = 3


def lines_with(pattern: str, context: BuildContext) -> str:
    """Return the lines of the source's code that match: ``"line 3 (`__shared__ float s[9];`)"``; "" if none does."""
    code = enumerate(context.code.split("\n"), 1)
    found = [number for number, text in code if re.search(pattern, text)]
    if len(found) == 1:
        return _shown(found[0], context)
    listed = ", ".join(map(str, found[:_MOST_PLACES]))
    more = " and further ones" if len(found) > _MOST_PLACES else ""
    return f"lines {listed}{more}" if found else ""


def asm_unparsed(match: Match, context: BuildContext) -> Values | None:
    """Return where the source has inline assembly, and what the text is that the assembler stopped at."""
    near = match["near"]
    is_register = re.fullmatch(r"%[a-z]+\d+", near)
    what = ", the register that the compiler chose for an operand" if is_register else ""
    for begin in re.finditer(r"\basm\b[^(;]*\(", context.code):
        length = len(cxx.enclosed(context.code, begin.end() - 1))
        inside = context.source[begin.end() : begin.end() + length]
        text = re.match(r'\s*((?:"(?:[^"\\]|\\.)*"\s*)*)', inside)
        parts = re.findall(r'"((?:[^"\\]|\\.)*)"', text[1]) if text else []
        whole = re.sub(r"//.*", "", "".join(parts).replace("\\n", "\n").replace("\\t", " ")).strip()
        line = context.code.count("\n", 0, begin.start()) + 1
        joined = [
            one
            for one, two in pairwise(parts)
            if re.search(r"[\w\])]\s*$", one) and re.match(r"\s*[a-z]", two)
        ]
        if joined or (whole and whole[-1] not in ";{}:"):
            where = f" behind `{joined[0].strip()}`" if joined else ""
            step = f"Put ; at the end of the instruction{where} in the asm of line {line}"
            return {"what": what, "step": step}
    places = lines_with(r"\basm\b", context)
    if not places:
        return None
    return {"what": what, "step": f"Compare the asm of {places} with the instruction's syntax"}


def unsynchronised(match: Match, context: BuildContext) -> Values:
    """Return the function or the inline assembly that became an instruction without .sync."""
    names = r"\b(__(?:shfl(?:_up|_down|_xor)?|ballot|any|all))\b"
    found = re.search(names, context.code)
    if found is None:
        name = match["instruction"]
        return {"what": "The inline assembly", "step": f"Write {name}.sync in its place"}
    line = context.code.count("\n", 0, found.start()) + 1
    what = f"{found[1]} in {_shown(line, context)}"
    return {"what": what, "step": f"Write {found[1]}_sync in its place"}


def macros(options: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the macros of the options that have values."""
    found = (re.fullmatch(r"(?:-D|--define-macro=)(\w+)=(.*)", option) for option in options)
    return [(each[1], each[2]) for each in found if each]


def _line_with(pattern: str, context: BuildContext) -> str:
    lines = enumerate(context.code.split("\n"), 1)
    return _shown(next((n for n, text in lines if re.search(pattern, text)), 0), context)


def _shown(line: int, context: BuildContext) -> str:
    text = context.source.split("\n")[line - 1].strip()[:100]
    return f"line {line} (`{text}`)" if line else ""

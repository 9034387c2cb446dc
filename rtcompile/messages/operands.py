"""What the operands of a message show: which types do not go together, what is const, no pointer or no number."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rtcompile.messages import quoted
from rtcompile.messages.declared import declared_as, operands, word_at
from rtcompile.messages.diagnostics import simplified
from rtcompile.messages.facts import DECLARED, BuildContext, Match, Values
from rtcompile.request import cxx

_NUMBERS = (
    r"(?:const\s+)?(?:unsigned|signed|bool|char|short|int|long|float|double|__half|size_t)\b[\w ]*"
)
_VECTOR = r"(?:u?(?:char|short|int|long|longlong)|float|double)[1-4]|dim3"


def _behind(context: BuildContext) -> str:
    """Return the code of the message's line from the caret on."""
    return cxx.blanked(context.text, literals=True)[max(0, context.column - 1) :]


def mismatch(match: Match, context: BuildContext) -> Values:
    """Return in what two types differ that C++ does not convert."""
    given, wanted = match["given"], match["wanted"]
    if given.replace("const ", "") == wanted.replace("const ", ""):
        why = "a pointer to const data into one that may write"
        step = quoted.to_const(given, wanted, context)
    elif given == "void *" and wanted.endswith("*"):
        why = "a void* by itself, as C does"
        cast = f"({wanted.replace(' *', '*')})"
        begin, rest = context.text[: context.column - 1], context.text[context.column - 1 :]
        edited = context.with_text(context.text, f"{begin}{cast}{rest}")
        return {"why": why, "step": f"Write {cast} before it", "edited": edited}
    elif "*" in given and "*" in wanted:
        why = "between pointers to different types"
        function, own, line = quoted.parameter(wanted, context)
        step = f"Give a pointer of type {wanted}"
        step += f", or declare `{own}` of {function}, line {line}, as {given}" if own else ""
        step += "; reinterpret_cast only where the bytes are meant"
    elif wanted == "const char *" and _behind(context)[:1] == " " and "'" in context.text:
        why, step = "a character into a text", "Write the text in double quotes"
    elif given == "const char *" and context.text[context.column - 1 :].lstrip(" =").startswith(
        '"'
    ):
        why, step = "a text into another type", "Write a number without quotes"
    elif re.search(
        rf"\benum\s+(?:class\s+|struct\s+)?(?:{re.escape(wanted)}|{re.escape(given)})\b",
        context.code,
    ):
        value = re.match(r"\s*=?\s*([^;{}]+?)\s*;", _behind(context))
        right = f"static_cast<{wanted}>({value[1] if value else '...'})"
        why, step = f"from {given} to {wanted}, of which one is an enum", f"Write `{right}`"
        edited = context.with_text(value[1], right) if value else ""
        return {"why": why, "step": step, "edited": edited, "known": "yes"}
    elif "*" in given or "*" in wanted:
        why = "between a pointer and a value"
        step = "Compare how both sides are declared"
    else:
        why, step = "one into the other", f"A value of type {wanted} is expected there"
    return {"why": why, "step": step}


def member_of(match: Match, context: BuildContext) -> Values:
    """Return what stands before a `.` that is a pointer or a number."""
    kind = match["type"]
    held = re.match(r"([\w\[\]()]+)\s*\.\s*(\w+)", _behind(context))
    name, member = (held[1], held[2]) if held else ("p", "member")
    if not kind.endswith("*"):
        step = f"Leave out .{member}, or declare it as a type with this member, such as float4"
        return {"fact": f"A {kind} has no members", "step": step}
    fact = f"`.` reads a member of an object, and {name} is a pointer ({kind})"
    if re.fullmatch(rf"{_NUMBERS}\*", kind):
        step = (
            "It has no length, shape or other members: pass such numbers as parameters of their own"
        )
        return {"fact": fact, "step": step}
    return {"fact": fact, "step": f"Write {name}->{member}, or {name}[i].{member} for one element"}


def subscript(match: Match, context: BuildContext) -> Values:
    """Return what is indexed although it has no elements, and how a matrix is indexed."""
    kind = match.groupdict().get("type")
    name, text = word_at(context), context.text
    what, line, declared = declared_as(name, context)
    if what == "function" and (kind is None or "(" in kind):
        return {"fact": f"`{name}` is a function (line {line})", "step": f"Call it: {name}(...)"}
    kinds = declared.removesuffix(name) if kind is None or "(" not in kind else ""
    unknown = next((word for word in re.findall(r"\w+", kinds) if word in DECLARED), "")
    if unknown and f"<{DECLARED[unknown]}" not in context.source:
        fact = f"`{declared}` (line {line}) has the type {unknown}, which <{DECLARED[unknown]}> declares"
        return {"fact": fact, "step": "#include it"}
    if kind is None or kind.endswith("*"):
        fact = (
            f"`{declared}` (line {line}) does not say how large an element is"
            if what
            else "The size of an element is not known here"
        )
        return {"fact": fact, "step": f"Declare it with a type: `float* {name or 'p'}`"}
    fact = f"Only a pointer or an array has elements, and this expression is of type {kind}"
    if what == "variable" and re.match(rf"{name}\s*\[[^\[\]]*\](?!\s*\[)", _behind(context)):
        step = f"Declare `{declared}` of line {line} as a pointer or an array, or leave out the [ ]"
        return {"fact": fact, "step": step}
    if re.search(r"\]\s*\[", text):
        return {
            "fact": fact,
            "step": "Index a matrix that is passed as one pointer by x[row * width + column]",
        }
    step = f"Leave out the [ ], or declare it as an array or a pointer: `{kind}*`"
    return {"fact": fact, "step": step}


_INTEGERS = {  # operators, and what floating-point numbers have in their place
    "%": ("`%` is for integers", "Use fmodf(a, b) for float, or fmod(a, b) for double"),
    "^": ("`^` is exclusive or, and for integers", "For a power write x * x, or powf(x, y)"),
    "<<": ("`<<` moves the bits of an integer", "Multiply by a power of two: ldexpf(x, n)"),
    ">>": ("`>>` moves the bits of an integer", "Divide by a power of two: ldexpf(x, -n)"),
    "&": ("`&` is for integers", "Convert to int first, or take the bits: __float_as_int(x)"),
    "|": ("`|` is for integers", "Convert to int first, or take the bits: __float_as_int(x)"),
    "~": ("`~` is for integers", "Convert to int first, or take the bits: __float_as_int(x)"),
    "[": ("An index is an integer", "Convert it: x[int(...)]"),
    "+": (
        "`+` moves a pointer by an integer, and joins neither two pointers nor two texts",
        "Use one of them",
    ),
    "switch (": ("A switch is for integers", "Convert to int first: switch (int(x))"),
}
_OPERAND = r"(?:[\w.]+|\([^()]*\))(?:\[[^\[\]]*\]|\([^()]*\)|(?:\.|->)\w+)*\s*"


def integers(_: Match, context: BuildContext) -> Values | None:
    """Return the operator beside the caret that takes integers only."""
    text = cxx.blanked(context.text, literals=True)
    at = max(0, context.column - 1)
    if launch := re.search(r"\b\w+<<([^<>]*)>>\s*\(", text):
        return {"fact": "A launch has three < and three >", "step": f"Write <<<{launch[1]}>>>"}
    begin = re.sub(r"\bswitch\s*\(", "switch (", text[:at]).rstrip()
    end = re.sub(rf"^{_OPERAND}", "", text[at:])
    for sign, (fact, step) in _INTEGERS.items():
        if (
            begin.endswith(sign)
            or (end.startswith(sign) and sign not in ("[", "~"))
            or text[at:].startswith("~")
        ):
            fact, step = _INTEGERS["~"] if text[at:].startswith("~") else (fact, step)
            return {"fact": fact, "step": step}
    return None


def const_write(_: Match, context: BuildContext) -> Iterator[Values]:
    """Yield why what stands at the caret cannot be changed."""
    yield from _compared(context)
    lines = context.source.split("\n")
    code, name = context.code, word_at(context)
    bodies = [*re.finditer(_CONST_BODY, code[: context.at])] if context.attempts else []
    for found in reversed(bodies):
        line = code.count("\n", 0, found.start()) + 1
        begin, end = found.span(2 if found[2] else 1)
        if found[1]:
            fact = f"`{name}` is a copy inside the lambda of line {line}, which is const unless it says mutable"
            edited = f"{context.source[:end]} mutable{context.source[end:]}"
            step = "Write mutable behind its parameters, or capture it by reference: [&]"
        else:
            fact = f"The member function of line {line} is const, and cannot change a member"
            edited = context.source[:begin] + context.source[end:]
            step = "Remove const behind its parameters, or declare the member mutable"
        yield {"fact": fact, "step": step, "edited": edited}
    if known := _unchangeable(context):
        yield known
        return
    what, line, declared = declared_as(name, context)
    for found in re.finditer(r"\bconst(?:expr)?\b ?", lines[max(0, line - 1)] if what else ""):
        own = lines[line - 1]
        edited = context.with_line(line, own[: found.start()] + own[found.end() :])
        step = f"Remove const in line {line}, or write to another variable"
        yield {"fact": f"`{declared}` is const (line {line})", "step": step, "edited": edited}


# A lambda, or a member function that is const: its body's begin.
_CONST_BODY = r"(\[[^\[\]\n]{0,200}\]\s*\([^(){}]{0,300}\))(?=\s*(?:->\s*\w+\s*)?\{)|\)(\s*const)(?=\s*(?:noexcept\s*)?\{)"


def _compared(context: BuildContext) -> Iterator[Values]:
    """Yield the condition of the message's line with == for each =."""
    head = re.search(r"\b(?:if|while)\s*\(", context.text)
    inside = cxx.enclosed(context.text, head.end() - 1) if head else ""
    right = re.sub(r"(?<![=!<>+*/%&|^-])=(?!=)", "==", inside)
    if right != inside and context.attempts:
        fact = "`=` assigns a value, and `==` compares two"
        yield {"fact": fact, "step": f"Write `{right}`", "edited": context.with_text(inside, right)}


def _unchangeable(context: BuildContext) -> Values | None:
    """Return what stands at the caret and can be changed nowhere."""
    text, name = _behind(context), word_at(context)
    left = re.split(r"[-+*/%&|^]?(?<![<>!=])=(?!=)|\+\+|--|;", text, maxsplit=1)[0]
    what, line, _ = declared_as(name, context)
    if re.search(r"\basm\b", context.text[: context.column]):
        return {
            "fact": "An output of inline assembly must be a variable",
            "step": "Name one, which is not const",
        }
    if name in ("threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize"):
        fact = f"{name} is set by the launch, and a kernel cannot change it"
        return {"fact": fact, "step": "Copy it to a variable of your own"}
    if re.search(r"[-+*/%<>|&]", re.sub(r"\[[^\[\]]*\]|->|^\W+", "", left)):
        return {
            "fact": "The left side is the result of an expression",
            "step": "Name one variable or element there",
        }
    if left.strip().replace(".", "").isdigit():
        return {
            "fact": f"`{left.strip()}` is a number",
            "step": "Write the variable on the left of =",
        }
    if what == "array" and left.strip() == name:
        step = "Copy its elements in a loop, or initialise it where it is declared"
        return {
            "fact": f"`{name}` is an array (line {line}), which cannot be assigned as a whole",
            "step": step,
        }
    return None


def power(_: Match, context: BuildContext) -> Iterator[Values]:
    """Yield what C++ writes for the power of two plain operands."""
    found = re.search(r"([A-Za-z_]\w*(?:\[[^\[\]]*\])?|\d[\w.]*)\s*\*\*\s*([\w.]+)", context.text)
    if found:
        value, exponent = found[1], found[2]
        is_square = exponent.rstrip("f.0") == "2"
        codes = [f"({value} * {value})"] * is_square + [f"powf({value}, {exponent})"]
        for code in codes:
            yield {"right": f"`{code}`", "edited": context.with_text(found[0], code)}
    yield {"right": "x * x, or pow(x, y), powf(x, y) for float"}


def const_member(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield where the source declares the member function that a const object cannot call."""
    name = match["function"].partition(" [")[0].rpartition("::")[2]
    step = "For const, write `const` behind the parameters of the function"
    code = context.code
    for found in re.finditer(rf"\b{re.escape(name)}\s*\(", code):
        inside = cxx.enclosed(code, found.end() - 1)
        end = found.end() + len(inside) + 1
        if re.match(r"\s*(?:noexcept\s*)?\{", code[end:]):
            line = code.count("\n", 0, found.start()) + 1
            edited = f"{context.source[:end]} const{context.source[end:]}"
            where = f" in line {line}"
            yield {
                "where": where,
                "step": f"Write `const` behind its parameters{where}",
                "edited": edited,
            }
    yield {"where": "", "step": step}


def captured(_: Match, context: BuildContext) -> Iterator[Values]:
    """Yield where the lambda begins that lacks a capture list."""
    lines = context.source.split("\n")[: context.line]
    lines[-1] = lines[-1][: context.column] if lines else ""
    before = "\n".join(lines)
    for found in reversed([*re.finditer(r"\[([^\[\]\n]*)\](?=\s*(?:\(|\{|__device__))", before)]):
        line = before.count("\n", 0, found.start()) + 1
        edited = f"{context.source[: found.start()]}[=]{context.source[found.end() :]}"
        yield {"list": found[0], "where": f" in line {line}", "edited": edited}
    yield {"list": "[...]", "where": ""}


_HALVES = {"__half": "half", "__nv_bfloat16": "bfloat16"}
_OTHERS = {
    "float": "__float2{}",
    "double": "__double2{}",
    "int": "__int2{}_rn",
    "unsigned int": "__uint2{}_rn",
}


def half_operands(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield how the other operand of an operator becomes a half or a bfloat16."""
    kind = match["type"]
    kind = kind if kind.startswith("__") else f"__{kind}"
    types = re.search(r"operand types are: ([^\n]*)", match.string)
    others = (
        [each.strip() for each in re.split(r"\s(?:[-+*/=!<>]+)\s|(?<=\w)[<>]", types[1])]
        if types
        else []
    )
    convert = next((_OTHERS[each] for each in others if each in _OTHERS), "")
    known = convert.format(_HALVES.get(kind, "half"))
    name = _HALVES.get(kind, "half")
    every = ", ".join(each.format(name) + "(x)" for each in _OTHERS.values())
    step = (
        f"Convert the other operand: {known}(x)" if known else f"Convert the other operand: {every}"
    )
    back = "__half2float" if name == "half" else "__bfloat162float"
    sign = match["operator"]
    whole, *each = operands(sign, context)
    is_float = re.search(
        r"\b(?:float|double)\s+\w+\s*=(?!=)", context.text
    )  # of a half, it keeps all digits
    to_float = back if is_float and {"float", "double"} & {*others} else known
    for convert in dict.fromkeys((to_float, known)) if known and whole else ():
        for at in (1, 0):
            sides = [
                f"{convert}({value})" if at == place else value for place, value in enumerate(each)
            ]
            code = f" {sign} ".join(sides)
            edited = context.with_text(whole, code)
            yield {"type": match["type"], "step": f"Write `{code}`", "edited": edited}
    yield {"type": match["type"], "step": f"{step}. Or calculate in float: {back}(x)"}


_CONVERSIONS = {  # from and to, and the function
    ("__half", "__half2"): "__half2half2(x)",
    ("float", "__half2"): "__float2half2_rn(x)",
    ("double", "__half2"): "__float2half2_rn(x)",
    ("__half2", "__half"): "__low2half(x) or __high2half(x)",
    ("__nv_bfloat16", "__nv_bfloat162"): "__bfloat162bfloat162(x)",
    ("float", "__nv_bfloat162"): "__float2bfloat162_rn(x)",
    ("__half", "__nv_bfloat16"): "__float2bfloat16(__half2float(x))",
    ("__nv_bfloat16", "__half"): "__float2half(__bfloat162float(x))",
}


def conversion(match: Match, _: BuildContext) -> Values:
    """Return how a value becomes one of another type that C++ does not convert to."""
    given, wanted = (match[name].removeprefix("const ").strip() for name in ("given", "wanted"))
    if known := _CONVERSIONS.get((given, wanted)):
        return {"step": f"Write {known}"}
    if re.fullmatch(rf"{_VECTOR}", wanted) and given.endswith("*"):
        return {"step": f"To read memory as {wanted}, write *reinterpret_cast<{wanted}*>(pointer)"}
    if re.fullmatch(_VECTOR, wanted) and wanted != "dim3":
        return {"step": f"Write make_{wanted}(...), with a value for each member"}
    if re.fullmatch(rf"{_VECTOR}", given):
        return {"step": "Use one of its members: .x, .y and so on"}
    return {"step": f"A value of type {wanted} is expected there"}


def no_operator(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield the operands that an operator is not defined for."""
    held = re.search(r"\bcomplex<(\w+)>", match.string)
    whole, left, right = operands(match["operator"], context) if held else ("", "", "")
    if held and whole:
        named = dict.fromkeys(re.findall(r"\b(?:class|typename)\s+(\w+)", context.code))
        for kind, sides in ((kind, at) for kind in (*named, held[1]) for at in (0, 1)):
            code = f" {match['operator']} ".join(
                f"{kind}({each})" if at == sides else each for at, each in enumerate((left, right))
            )
            fact = f"The operators of a complex number take numbers of its own type, {kind}"
            yield {
                "fact": fact,
                "step": f"Write `{code}`",
                "edited": context.with_text(whole, code),
            }
    sign = match["operator"]
    whole, left, right = operands(sign, context) if sign in ("*", "+") else ("", "", "")
    if whole:
        fact = f"`{sign}` is defined for these two types in the other order"
        code = f"{right} {sign} {left}"
        yield {"fact": fact, "step": f"Write `{code}`", "edited": context.with_text(whole, code)}
    yield _no_operator(match, context.code)


def _no_operator(match: Match, code: str) -> Values:
    found = re.search(r"operand types are: ([^\n]*)", match.string)
    types, sign = simplified(found[1].strip()) if found else "", match["operator"]
    fact = f"`{sign}` is not defined for {f'these types: {types}' if types else 'operands of these types'}"
    step = "Convert the operands, or call a function that takes these types"
    classes = (each for each in re.findall(r"[A-Za-z_]\w*", types) if f"struct {each}" in code)
    if own := next(classes, ""):
        step = f"Use the members of {own}, or declare an operator{sign} for it"
    left, _sign, right = (part.strip() for part in types.partition(f" {sign} "))
    pair = (right.removeprefix("const "), left.removeprefix("const "))
    known = _CONVERSIONS.get(pair) or _CONVERSIONS.get(pair[::-1])
    held = re.search(r"complex<(\w+)>", types)
    if sign == "=" and left.startswith("const "):
        fact, step = f"The left side is const: {left}", "Remove const, or write to another variable"
    elif sign == "=" and right:
        fact = f"No implicit conversion leads from {pair[0]} to {pair[1]}"
        step = f"Write {known}" if known else f"A value of type {pair[1]} is expected there"
    elif known:
        step = f"Convert one operand: {known}"
    elif held and re.search(r"\b(?:int|float|double|long)$|^(?:int|float|double|long)\b", types):
        step = f"Convert the number to the complex number's own type: {held[1]}(x)"
    elif vector := re.match(rf"(?:const )?({_VECTOR})\b", types):
        names = "xyz" if vector[1] == "dim3" else "xyzw"[: int(vector[1][-1])]
        step = f"Use its members: {', '.join(f'.{name}' for name in names)}"
    return {"fact": fact, "step": step}

"""What a hint says with the user's own words: what a condition is false for, and what is written that is no C++."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from rtcompile.messages.declared import BASIC, operands, templates
from rtcompile.messages.diagnostics import arguments, line_in_source, split
from rtcompile.messages.facts import BuildContext, Match, Values
from rtcompile.request import cxx


def assertion(_: Match, context: BuildContext) -> Values:
    """Return the condition of a static_assert, what its names stand for, and the line that says so."""
    condition = _condition(context)
    frames = [n for n in context.notes if _INSTANCE.match(n.message) and "[with " in n.message]
    known = {**dict(macros(context.options)), **(arguments(frames[0].message) if frames else {})}
    words = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", condition))
    stated = {word: known[word] for word in words if word in known}
    where = ""
    if frames and stated:
        at, name = frames[-1], frames[-1].file
        for inner, outer in pairwise(frames):
            if not {*stated.values()} <= {*arguments(outer.message).values()}:
                at = inner  # its caller computed the values
                break
        line = line_in_source(at, context.source, name) if "/include/" not in name else 0
        where = _shown(line, context).replace("l", "L", 1) or "What instantiates this"
    elif stated:
        where = f"The option -D{next(iter(stated))}="
    gives = f"{where} gives {'it' if len(stated) == 1 else 'them'}: change it there, so that the condition holds"
    texts = [f"{name} is {value}" for name, value in stated.items()]
    return {
        "false": f"`{condition}`" if condition else "A condition that the code requires",
        "known": f": {', '.join(texts)}" if texts else " for these arguments or types",
        "where": gives if where else _ASSERTED,
    }


_INSTANCE = re.compile(r"(?:detected during )?instantiation of ")
_ASSERTED = "Change the constants or arguments that it is about: the lines shown above lead there"


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


def not_among_parameters(match: Match, context: BuildContext) -> Values | None:
    """Return the parameters of the source's template that no argument can tell."""
    if "/include/" in match.string.partition(": ")[0]:
        return None  # a library's own call: the arguments are not the user's
    function = match["function"].rpartition("::")[2]
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
    given = names[: names.index(missing[-1]) + 1]
    return {
        "name": function,
        "missing": " or ".join(missing),
        "right": f"{function}<{', '.join(given)}>(...), with your own for {' and '.join(given)}",
    }


def operators_removed(match: Match, context: BuildContext) -> Values | None:
    """Return the macro of the options that takes the operators or conversions from a type in the message."""
    of_types = re.findall(r"\b(?:__)?(half2?|nv_bfloat162?)\b", match.string)
    for macro in re.findall(
        r"__CUDA_NO_\w+_(?:OPERATORS|CONVERSIONS)__", " ".join(context.options)
    ):
        kind = macro.removeprefix("__CUDA_NO_").partition("_")[0].lower()
        wanted = "CONVERSIONS" if match[0].startswith("no suitable") else "OPERATORS"
        if wanted in macro and kind in [name.removeprefix("nv_") for name in of_types]:
            return {"macro": macro, "type": f"__nv_{kind}" if kind[0] == "b" else f"__{kind}"}
    return None


_COMPLEX = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_VECTOR = r"\b(?:u?(?:char|short|int|long|longlong)[1-4]|(?:float|double)[1-4])\b"


def operator_of_struct(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield what to write for an operator between complex numbers of cuComplex.h or between vectors."""
    operator = match["operator"]
    whole, left, right = operands(operator, context)
    plain = ("", "a") if match["types"].startswith(operator) else ("a", "b")
    for a, b in ((left, right), plain) if whole else (plain,):
        kind, code, also = _without_operator(operator, match["types"], a, b)
        if kind:
            edited = context.with_text(whole, code) if whole and a == left else ""
            yield {"type": kind, "step": f"Write `{code}`{also}", "edited": edited}


def _without_operator(operator: str, types: str, a: str, b: str) -> tuple[str, str, str]:
    """Return the struct of the types, what calculates `a operator b`, and what else there is; "" for other types."""
    first, _, second = (each.strip() for each in types.partition(operator))
    sign = operator[0]
    if (named := re.search(r"\bcu(Float|Double)?Complex\b", types)) and sign in _COMPLEX:
        suffix, number = ("", "double") if named[1] == "Double" else ("f", "float")
        also = (
            f", or use cuda::std::complex<{number}> of <cuda/std/complex>, which has all operators"
        )
        return named[0], f"cuC{_COMPLEX[sign]}{suffix}({a}, {b})", also
    if small := re.search(r"\b__nv_fp(?:8|6|4)_e\dm\d\b", types):
        return small[0], f"float({a}) {operator} float({b})", ""
    vector = re.search(_VECTOR, types)
    if vector is None or vector[0] == "uint3":  # threadIdx: nobody calculates with all of it
        return "", "", ""
    a_part = f"{a}.%" if re.search(_VECTOR, first) else a if first else ""
    b_part = f"{b}.%" if re.search(_VECTOR, second) else b
    if operator in ("==", "!="):
        sign = operator
    each = f"{a_part} {sign} {b_part}" if first else f"{sign}{b_part}"
    parts = [each.replace("%", name) for name in "xyzw"[: int(vector[0][-1])]]
    if operator in ("==", "!="):
        return vector[0], (" && " if operator == "==" else " || ").join(parts), ""
    made = f"make_{vector[0]}({', '.join(parts)})"
    if operator.endswith("="):
        return vector[0], f"{a} = {made}", ""
    declared = f"operator{sign}({first} a, {second} b)" if first else f"operator{sign}({second} a)"
    return vector[0], made, f", or declare `__device__ {vector[0]} {declared}` once"


_MOST_PLACES = 3


def lines_with(pattern: str, context: BuildContext) -> str:
    """Return the lines of the source's code that match: ``" in line 3 (`__shared__ float s[9];`)"``; "" if none does."""
    code = enumerate(context.code.split("\n"), 1) if pattern else ()
    found = [number for number, text in code if re.search(pattern, text)]
    if len(found) == 1:
        return f" in {_shown(found[0], context)}"
    listed = ", ".join(map(str, found[:_MOST_PLACES]))
    more = " and further ones" if len(found) > _MOST_PLACES else ""
    return f" in lines {listed}{more}" if found else ""


def macros(options: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the macros of the options that have values."""
    found = (re.fullmatch(r"(?:-D|--define-macro=)(\w+)=(.*)", option) for option in options)
    return [(each[1], each[2]) for each in found if each]


def _shown(line: int, context: BuildContext) -> str:
    text = context.source.split("\n")[line - 1].strip()[:100]
    return f"line {line} (`{text}`)" if line else ""


# --- Placeholders, keywords as names, and macros that end early ----


def macro_of_option(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield the macro of the options at the caret, or beside it, and what its value would be right."""
    beside = re.findall(r"(\w+)\W{0,3}$", context.left)
    words = [*re.findall(r"^[\s=]*(\w+)", context.right), *beside]
    for name, value in macros(context.options):
        used = name in words if value else re.search(rf"\b{name}\b", context.text)
        if not used or (re.fullmatch(r"[\d.]+|[A-Za-z_]\w*", value) and name not in words[:1]):
            continue
        is_integer = re.fullmatch(r"-?\d+", value) or "instead of the required" not in match.string
        if (
            is_integer
            and re.fullmatch(r"-?(?:\d+|\d+\.\d*f?|\.\d+f?)", value)
            and not re.search(rf"(?:{BASIC}|[A-Za-z_>]\w*)\s*[*&\s]\s*$", context.left)
        ):
            continue
        one = re.fullmatch(r"\(([^(),]+),\)", value)  # Python's tuple of one
        right = one[1] if one else re.sub(r"^[(\[](.*,.*)[)\]]$", r"{\1}", value) or "VALUE"
        change = f", such as -D{name}={right}" if right != value else ""
        shown = {"macro": name, "value": f"`{value}`" if value else "nothing"}
        yield {**shown, "step": f"Leave out -D{name}={value}", "adding": f"-U{name}"}
        is_declared = re.search(rf"(?:{BASIC}|typename|class)\s+$", context.left)
        step = f"Give it a value that fits this line{change}, or another name"
        if is_declared and re.match(rf"{name}\b", context.right):
            step = (
                f"Give one of the two another name: the macro, or what line {context.line} declares"
            )
        yield {**shown, "step": step}


_TEMPLATES = r"\{\{ *[A-Za-z_]\w* *\}\}|\{%[^%\n]*%\}|%\(\w+\)[sdifg]|\$\{\w+\}|\$\w+|<%=? *\w+|@\w+@|(?<=[=(,<>+*/-])\s*%[sdifg]\b"
_FIELD = r"\{ *(?:[A-Za-z_][\w.]*(?:\[\w+\])?|\d*) *(?:![rsa])?(?::[^{}\n]*)?\}"


def placeholder(match: Match, context: BuildContext) -> Values | None:
    """Return the placeholder of Python's format, % or a template language on the message's line."""
    text = cxx.blanked(context.text, literals=True)
    found = re.search(_TEMPLATES, text)
    if found:
        return {"text": found[0].strip()}
    undefined = re.match(r'[^\n]*identifier "\w+" is undefined', match.string)
    for field in re.finditer(_FIELD, text):
        before, after = text[: field.start()].rstrip()[-1:], text[field.end() :].lstrip()[:1]
        is_part = (before and before in "[<*/+-%&|!<>") or (after and after in "*([&")
        is_value = undefined and (
            not text[: field.start()] or not re.match(r"[\w>)]", text[field.start() - 1])
        )
        if field.start() <= len(context.left) <= field.end() + 1 and (
            is_value or is_part or not before
        ):
            return {"text": field[0]}
    return None

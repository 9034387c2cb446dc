"""Fills hints with the user's own words: a condition that is false, an operator, a macro, a call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

from rtcompile.messages import changes
from rtcompile.messages.changes import in_line
from rtcompile.messages.declared import BASIC, declarations, operands, templates
from rtcompile.messages.diagnostics import arguments, line_in_source
from rtcompile.messages.facts import BRACKETS, TABLES, BuildContext, Match, Values, headers_in
from rtcompile.named import NamedTuple
from rtcompile.request import cxx


def assertion(_: Match, context: BuildContext) -> Values:
    """Return the condition of a static_assert, what its names stand for, and the line that gives them these values."""
    condition = _condition(context)
    frames = [
        n for n in context.error.notes if _INSTANCE.match(n.message) and "[with " in n.message
    ]
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
    """Return what stands in the parentheses of a static_assert, without its message."""
    line = context.text.strip()
    own = context.source.split("\n")[context.line - 1 :][:10] if context.line else []
    whole = "\n".join(own) if own and own[0].strip() == line else line
    found = re.search(r"(?i:static_assert)\w*\s*\(", whole)
    if found is None:
        return ""
    text = cxx.enclosed(whole, found.end() - 1)
    return " ".join(re.sub(r',\s*(?:".*)?$', "", text, flags=re.DOTALL).split())


def not_among_parameters(match: Match, context: BuildContext) -> Values | None:
    """Return the parameters of the source's template that cannot be deduced from an argument."""
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
        for each in cxx.split(declared)
        if each and "=" not in each
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


_MOST_LINES = 3


def lines_with(pattern: str, context: BuildContext) -> str:
    """Return the lines of the source's code that match: ``" in line 3 (`__shared__ float s[9];`)"``; "" if none does."""
    code = enumerate(context.code.split("\n"), 1) if pattern else ()
    found = [number for number, text in code if re.search(pattern, text)]
    if len(found) == 1:
        return f" in {_shown(found[0], context)}"
    listed = ", ".join(map(str, found[:_MOST_LINES]))
    more = " and further ones" if len(found) > _MOST_LINES else ""
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
    """Yield the macro of the options at the caret, or beside it, and a value that would be right."""
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


# --- Calls ----


def parameters_of(name: str, context: BuildContext) -> tuple[str, str]:
    """Return the parameters with which the source, or a header of CUDA, declares a function or a macro, and where."""
    code = cxx.blanked(context.source, literals=True)
    macro = re.search(rf"^[ \t]*#[ \t]*define[ \t]+{name}\(([^()]*)\)", code, re.MULTILINE)
    own = [macro] if macro else [d for d in declarations(name, context.code) if d[0][-1] == "("]
    if own:
        line = context.line_of(own[0].end())
        found = own[0][1] if macro else cxx.enclosed(code, own[0].end() - 1)
        return " ".join(found.split()), f" in line {line}"
    declared = re.compile(rf"^[A-Za-z_].*[\s*&]{name}\s*\(([^()]+)\)\s*(?:;|__)", re.MULTILINE)
    folders = dict.fromkeys(d.path for d in context.search if d.label in ("cudart", "crt"))
    files = [each for folder in folders for each in headers_in(folder, "*.h*", "crt/*.h*")]
    files.sort(key=lambda file: file[0] not in context.source)
    heads = (declared.search(text) for _, text in files if name in text)
    return next((" ".join(each[1].split()) for each in heads if each), ""), ""


def argument_count(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield how many arguments a function or a macro takes, and how many a call gives."""
    around, _, arguments = in_line(context).around
    name = match["macro"] or around
    given = len([begin for begin, end in arguments if end > begin])
    declared, where = parameters_of(name, context) if name else ("", "")
    if match["macro"] and where and context.source and not context.in_source:
        fact = f"The macro {name}{where} replaces a name of this header"
        yield {"fact": fact, "step": "Give it another name, or define it behind the includes"}
        return
    yield from changes.of("argument-count")(match, context)
    wanted = [each for each in cxx.split(declared) if each not in ("", "void")]
    least = len([each for each in wanted if "=" not in each])
    is_wrong = given < least if match["count"] == "few" else given > len(wanted)
    if (declared or where) and is_wrong and "..." not in wanted:
        fact = f"{name} takes {least} argument{'s' * (least != 1)}{f' to {len(wanted)}' * (least < len(wanted))} ({declared}){where}, and this call gives {given}"
        names = [re.sub(r"=.*", "", each).split()[-1].strip("*&") for each in wanted]
        yield {"fact": fact, "step": f"Call it as {name}({', '.join(names)})"}


_MOST_VERSIONS = 3


class _Call(NamedTuple):
    """A call that fits no version of a function, or several, as the compiler's notes and the source have it."""

    notes: str  # the message and its notes
    types: list[str] | None  # of the arguments; None if the compiler does not list them
    versions: list[list[str]]  # the parameters' types of each
    text: str  # empty if the source has no such call behind the caret
    arguments: list[str]  # as the source writes them


def _call(name: str, match: Match, context: BuildContext) -> _Call:
    """Return the call of a function at the message's caret."""
    notes = "\n".join([match.string, *(note.message for note in context.error.notes)])
    given = re.search(r"argument types are: \(([^\n]*)\)", notes)
    types = [*filter(None, cxx.split(given[1]))] if given else None
    lists = re.findall(
        rf'(?:function|template) "[^"\n]*?\b{re.escape(name)}(?:<[^"\n]*?>)?\(([^"\n]*)\)"', notes
    )
    versions = [list(filter(None, cxx.split(each))) for each in dict.fromkeys(lists)]
    call = re.search(rf"\b{re.escape(name)}\s*(?:<[^<>()]*>\s*)?\(", context.right)
    if call is None:
        return _Call(notes, types, versions, "", [])
    inside = cxx.enclosed(context.right, call.end() - 1)
    written = [*filter(None, cxx.split(inside, BRACKETS))]
    return _Call(notes, types, versions, f"{call[0]}{inside})", written)


def overload(match: Match, context: BuildContext) -> Values:
    """Return how a call differs from all versions of a function: an address, a number of arguments, a type."""
    name = (
        re.sub(r" \[with .*| .*::|<.*>(?=::)", "", match["function"]).rpartition("::")[2]
        or match["function"]
    )
    call = _call(name, match, context)
    types, versions, notes = call.types or [], call.versions, call.notes
    counts = sorted({len(each) for each in versions})
    few = [each for each in versions if len(each) == len(types)] or versions
    is_template = any(re.search(r"\b_?[A-Z]\w?\w? ?&|\b_Tp\b", each) for one in few for each in one)
    few = few if len(few) <= _MOST_VERSIONS and not is_template else []
    shown = " or ".join(f"`{name}({', '.join(each)})`" for each in few)
    step = f"Call it as {shown}" if shown and len(shown) < 3 * _LONGEST_VERSION else _COMPARE
    fact = f"{name} has no version for this number of arguments, or for these types"
    named = re.search(
        rf"\b{re.escape(name)}\s*<([^<>;()]*[A-Za-z_]\w*[^<>;()]*)>\s*\(", context.text
    )
    if named and "substituting explicit template arguments" in notes:
        fact = f"No version of {name} takes the template arguments <{named[1]}>"
        step = "A value among them must be known at compile time: a number, a constexpr variable or a template parameter"
        return {"fact": fact, "step": step}
    unfit = {int(each) for each in re.findall(r"does not match because argument #(\d{1,3})", notes)}
    if call.text and len(call.arguments) != len(types):  # the compiler could not read one of them
        return {"fact": fact, "step": _COMPARE}
    if call.types is not None and counts and not unfit and len(types) not in counts:
        fact = (
            f"The versions of {name} are declared with {' or '.join(map(str, counts))} parameters"
        )
        fact = f"{fact.removesuffix('s') if counts == [1] else fact}, and this call gives {len(types)} arguments"
    elif len(unfit) == 1 and max(unfit) <= len(types):
        number = max(unfit)
        fact = f"No version of {name} for this number of arguments takes {types[number - 1]} as argument {number}"
    elif call.types is not None:
        fact = f"{name} has no version for the types ({', '.join(types)})"
    return {"fact": fact, "step": step}


_LONGEST_VERSION = 100
_COMPARE = "Compare the number and the types of the arguments with the candidates in the notes; `.log` has all of them"
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
    call = _call(name, match, context)
    values = call.arguments
    fitting = [each for each in call.versions if len(each) == len(values)]
    if not call.types or len(values) != len(call.types) or not fitting:
        return None
    types = [TABLES["aliases"].get(each, each) for each in call.types]
    fits = [
        sum(map(str.__eq__, each, types)) - _MANY * sum(map(_loses, types, each))
        for each in fitting
    ]
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
    right = f"{name}({', '.join(casts)})"
    edited = context.with_text(call.text, right)
    step = f"Convert the arguments to the types of one version, as in `{right}`"
    if any(map(_loses, types, chosen)):
        shown = " and ".join(f"`{name}({', '.join(each)})`" for each in fitting[:_MOST_VERSIONS])
        step = f"Its versions are {shown}, and a conversion to one of them would drop the digits behind the point"
        edited = ""
    return {"name": name, "types": ", ".join(types), "step": step, "edited": edited}


_MANY = 100  # more than a function has parameters


def _loses(given: str, wanted: str) -> bool:
    """Return whether a conversion drops the digits behind the point."""
    is_real = given.removeprefix("const ") in ("float", "double", "__half", "__nv_bfloat16")
    return (
        is_real
        and re.fullmatch(
            r"(?:const )?(?:unsigned |signed )?(?:bool|char|short|int|long|long long)", wanted
        )
        is not None
    )


def of_numba(match: Match, context: BuildContext) -> Values:
    """Return what CUDA C++ writes for a name of Numba's module `cuda`."""
    call = re.search(rf"\bcuda{re.escape(match['name'])}\(", context.text)
    inside = cxx.enclosed(context.text, call.end() - 1) if call else ""
    with suppress(LookupError):
        return {"right": f"`{TABLES['numba'][match['name']].format(*cxx.split(inside))}`"}
    return {"right": "it without `cuda.`, or the function of CUDA C++ that does the same"}

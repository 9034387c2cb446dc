"""What a call shows: one of a variable or a number, and one that fits several versions of a function or none."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from rtcompile.messages import changes
from rtcompile.messages.changes import expressions, in_line
from rtcompile.messages.declared import declarations
from rtcompile.messages.facts import TABLES, BuildContext, Match, Values, headers_in
from rtcompile.request import cxx


def _around(context: BuildContext) -> tuple[str, str]:
    """Return the function, or "", whose call encloses the caret, and the call's arguments."""
    spot = in_line(context)
    name, opening, _ = spot.around
    return name, cxx.enclosed(spot.code, opening) if name else ""


def parameters_of(name: str, context: BuildContext) -> tuple[str, str]:
    """Return the parameters with which the source, or a header of CUDA, declares a function or a macro, and where."""
    code = cxx.blanked(context.source, literals=True)
    macro = re.search(rf"^[ \t]*#[ \t]*define[ \t]+{name}\(([^()]*)\)", code, re.MULTILINE)
    own = (
        [macro]
        if macro
        else [each for each in declarations(name, context.code) if each[0][-1] == "("]
    )
    if own:
        line = code.count("\n", 0, own[0].end()) + 1
        found = own[0][1] if macro else cxx.enclosed(code, own[0].end() - 1)
        return " ".join(found.split()), f" in line {line}"
    for folder in dict.fromkeys(
        each.path for each in context.search if each.label in ("cudart", "crt")
    ):
        for inner in ("", "crt"):
            headers = sorted(
                headers_in(os.path.join(folder, inner)),
                key=lambda header: header[0] not in context.source,
            )
            for _, text in headers:
                if found_in := name in text and re.search(
                    rf"^[A-Za-z_].*[\s*&]{name}\s*\(([^()]+)\)\s*(?:;|__)", text, re.MULTILINE
                ):
                    return " ".join(found_in[1].split()), ""
    return "", ""


def argument_count(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield how many arguments a function or a macro takes, and how many a call gives."""
    name, inside = _around(context)
    name = match["macro"] or name
    given = len([*filter(None, expressions(inside))])
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
    fact = f"The {match['where']} has too {match['count']} arguments for its declaration"
    yield {"fact": fact, "step": "Pass as many as are declared"}


_MOST_VERSIONS = 3


def overload(match: Match, context: BuildContext) -> Values:
    """Return how a call differs from all versions of a function: an address, a number of arguments, a type."""
    name = (
        re.sub(r" \[with .*| .*::|<.*>(?=::)", "", match["function"]).rpartition("::")[2]
        or match["function"]
    )
    notes = "\n".join([match.string, *(note.message for note in context.notes)])
    given = re.search(r"argument types are: \(([^\n]*)\)", notes)
    types = [*filter(None, cxx.split(given[1]))] if given else []
    lists = re.findall(
        rf'(?:function|template) "[^"\n]*?\b{re.escape(name)}(?:<[^"\n]*?>)?\(([^"\n]*)\)"', notes
    )
    versions = [list(filter(None, cxx.split(each))) for each in dict.fromkeys(lists)]
    counts = sorted({len(each) for each in versions})
    alike = [each for each in versions if len(each) == len(types)]
    few = alike or versions
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
    text = context.right
    call = re.search(rf"\b{re.escape(name)}\s*(?:<[^<>()]*>\s*)?\(", text)
    written = expressions(cxx.enclosed(text, call.end() - 1)) if call else types
    if len([*filter(None, written)]) != len(types):  # the compiler could not read one of them
        return {"fact": fact, "step": _COMPARE}
    if given and counts and not unfit and len(types) not in counts:
        fact = (
            f"The versions of {name} are declared with {' or '.join(map(str, counts))} parameters"
        )
        fact = f"{fact.removesuffix('s') if counts == [1] else fact}, and this call gives {len(types)} arguments"
    elif len(unfit) == 1 and max(unfit) <= len(types):
        number = max(unfit)
        fact = f"No version of {name} for this number of arguments takes {types[number - 1]} as argument {number}"
    elif given:
        fact = f"{name} has no version for the types ({given[1]})"
    return {"fact": fact, "step": step}


_LONGEST_VERSION = 100
_COMPARE = "Compare the number and the types of the arguments with the candidates in the notes; `.log` has all of them"
ALIASES = {"size_t": "unsigned long", "uint64_t": "unsigned long", "int64_t": "long"}
ALIASES |= {
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
    call = re.search(rf"\b{re.escape(name)}\s*\(", text[len(context.left) :])
    if given is None or call is None:
        return None
    types = [*cxx.split(given[1])]
    values = expressions(cxx.enclosed(text[len(context.left) :], call.end() - 1))
    lists = re.findall(rf'function (?:template )?"[^"\n]*?\b{re.escape(name)}\(([^"\n]*)\)"', notes)
    fitting = [each for each in map(list, map(cxx.split, lists)) if len(each) == len(types)]
    if len(values) != len(types) or not fitting:
        return None
    types = [ALIASES.get(each, each) for each in types]
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
    edited = context.with_text(whole_call(context.right, call), right)
    step = f"Convert the arguments to the types of one version, as in `{right}`"
    if any(map(_loses, types, chosen)):
        shown = " and ".join(f"`{name}({', '.join(each)})`" for each in fitting[:_MOST_VERSIONS])
        step = f"Its versions are {shown}, and a conversion to one of them would drop the digits behind the point"
        edited = ""
    return {"name": name, "types": ", ".join(types), "step": step, "edited": edited}


_MANY = 100  # parameters of a function, and more


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


def whole_call(text: str, call: Match) -> str:
    """Return the text of a call, of which the function's name and ( are found."""
    return text[call.start() : call.end() + len(cxx.enclosed(text, call.end() - 1)) + 1]


def of_numba(match: Match, context: BuildContext) -> Values:
    """Return what CUDA C++ writes for a name of Numba's module `cuda`."""
    call = re.search(rf"\bcuda{re.escape(match['name'])}\(", context.text)
    inside = cxx.enclosed(context.text, call.end() - 1) if call else ""
    with suppress(LookupError):
        return {"right": f"`{TABLES['numba'][match['name']].format(*cxx.split(inside))}`"}
    return {"right": "it without `cuda.`, or the function of CUDA C++ that does the same"}

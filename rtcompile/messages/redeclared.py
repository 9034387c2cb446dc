"""Changes of a declaration with which the message's line fits: each is compiled before it is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rtcompile.messages.calls import around, expressions
from rtcompile.messages.declared import class_head, declarations, word_at
from rtcompile.messages.facts import BuildContext, Match, Values
from rtcompile.messages.repairs import Spot, spot_of
from rtcompile.request import cxx


def declared_otherwise(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield changes of the declaration of what the message's line uses."""
    spot, text = spot_of(context), match.string.partition("\n")[0]
    for pattern, changes in _CHANGES.items() if spot else ():
        if spot and re.search(pattern, text):
            yield from changes(match.string, spot, context)


def _star(_message: str, spot: Spot, context: BuildContext) -> Iterator[Values]:
    """Yield a `*` for a variable behind another one's comma: in `float* a, b` only a is a pointer."""
    left = re.search(r"(\w+)\s*$", context.text[: max(0, context.column - 1)])
    for name in filter(None, dict.fromkeys((word_at(context), left[1] if left else ""))):
        value = r"(?:\s*=[^,;(){}]*)?"
        behind = rf"\*\s*(\w+){value}(?:\s*,\s*\w+{value})*?\s*,\s*{name}\b(?=\s*[,;=])"
        for found in re.finditer(behind, spot.code):
            fact = f"In line {spot.line(found.end())} the * belongs to {found[1]} alone, so {name} is no pointer"
            end = spot.code.find(";", found.end())
            rest = re.sub(r"(,\s*)(?=\w+\s*[,=;])", r"\1*", spot.source[found.start(1) : end + 1])
            step = f"Write `{' '.join(rest.rstrip(';').split())}` behind the type"
            if end > 0 and "(" not in rest:
                yield spot.change(found.start(1), end + 1, rest, fact, step)
            yield spot.change(
                found.end() - len(name), found.end(), f"*{name}", fact, f"Write `*{name}` there"
            )


def _rows(message: str, spot: Spot, _context: BuildContext) -> Iterator[Values]:
    """Yield a parameter that takes an array of two dimensions for one that takes pointers to pointers."""
    given = re.search(r'type "([\w ]+) \(\*\)((?:\[\d+\])+)"', message)
    kind, sizes = given.groups() if given else ("", "")
    for found in re.finditer(rf"\b{kind}\s*\*\s*\*\s*(\w+)", spot.code) if kind else ():
        right = f"{kind} (*{found[1]}){sizes}"
        fact = f"An array of two dimensions is its rows behind each other, and {kind}** points to pointers"
        step = f"Declare the parameter in line {spot.line(found.start())} as `{right}`"
        yield spot.change(*found.span(), right, fact, step)


def _reference(_message: str, spot: Spot, context: BuildContext) -> Iterator[Values]:
    """Yield const for the parameter that takes a reference to what may be no variable."""
    name, inside = around(context)
    before = context.text[: max(0, context.column - 1)]
    at = len(expressions(before[before.rfind(name) :].partition("(")[2])) - 1 if name else -1
    for found in declarations(name, spot.code) if inside and at >= 0 else ():
        begin = found.end()
        parameters = [*cxx.split(cxx.enclosed(spot.code, begin - 1))]
        own = parameters[at] if at < len(parameters) else ""
        if found[0][-1] == "(" and "&" in own and "const" not in own:
            start = spot.code.index(own, begin)
            line = spot.line(start)
            fact = f"The parameter `{own}` of {name} (line {line}) takes a variable, and this is a value without an address"
            yield spot.change(start, start, "const ", fact, f"Declare it as `const {own}`")


def _overrider(message: str, spot: Spot, _context: BuildContext) -> Iterator[Values]:
    """Yield const for a member function that would override a const one."""
    class_ = re.search(r'abstract class type "(?:\w+::)*(\w+)', message)
    pure = re.search(r'pure virtual function "(?:\w+::)*?(\w+)::([\w~]+)', message)
    if class_ is None or pure is None:
        return
    head = class_head(class_[1], spot.code)
    inside = cxx.enclosed(spot.code, head.end() - 1) if head else ""
    for found in re.finditer(rf"\b{pure[2]}\s*\([^()]{{0,300}}\)()\s*(?:override\s*)?{{", inside):
        at = (head.end() if head else 0) + found.start(1)
        line = spot.line(at)
        fact = f"{pure[1]}::{pure[2]} is const, and {class_[1]}::{pure[2]} in line {line} is not, so it does not override it"
        step = "Write const behind its parameters"
        yield spot.change(at, at, " const", fact, step)
    fact = f"{class_[1]} does not define {pure[1]}::{pure[2]}, which is declared with = 0, and so has no objects"
    yield {"fact": fact, "step": "Define it there, with the same parameters, and const if that is"}


def _for_const(message: str, spot: Spot, _context: BuildContext) -> Iterator[Values]:
    """Yield a second member function, for const objects."""
    named = re.search(r'function "([^"]+?)(?: \[with [^"]*)?" matches', message)
    sign = re.search(r'no operator "([^"]+)" matches', message)
    name = named[1].rpartition("::")[2] if named else f"operator{sign[1]}" if sign else ""
    for found in re.finditer(
        rf"[^;{{}}]{{0,300}}\b{re.escape(name)}\s*\(", spot.code if name else ""
    ):
        end = found.end() + len(cxx.enclosed(spot.code, found.end() - 1)) + 1
        if not re.match(r"\s*{", spot.code[end:]):
            continue
        line = spot.line(found.end())
        begin = end - len(spot.source[found.start() : end].lstrip())
        fact = f"The object is const, and {name} in line {line} is not declared so"
        yield spot.change(end, end, " const", fact, "Write const behind its parameters")
        opening = spot.code.index("{", end)
        stop = opening + len(cxx.enclosed(spot.code, opening)) + 2
        head = spot.source[begin:end]
        head = head[: found.end() - begin].replace("&", "") + head[found.end() - begin :]
        second = f"{head} const {spot.source[opening:stop]}"
        step = f"Declare a second one beside it, which returns a value: `{' '.join(head.split())} const`"
        yield spot.change(stop, stop, f"\n    {second}", fact, step)


def _constexpr(_message: str, _spot: Spot, context: BuildContext) -> Iterator[Values]:
    """Yield constexpr for a static member with a value."""
    own = re.search(r"\bstatic\s+const\b|\bconst\s+static\b", context.text)
    if own:
        fact = "In a class, only a static member of an integer type may be const and have a value"
        edited = context.with_text(own[0], "static constexpr")
        yield {"fact": fact, "step": "Write `static constexpr`", "edited": edited}


def _order(_message: str, spot: Spot, context: BuildContext) -> Iterator[Values]:
    """Yield designated initializers in the order of the members."""
    for braces in re.finditer(r"{\s*\.", context.text):
        inside = cxx.enclosed(context.text, braces.start())
        parts = {
            part.strip()[1:].partition("=")[0].strip(): part.strip() for part in cxx.split(inside)
        }
        for body in re.finditer(r"\b(?:struct|class)\b[^;{}()]{0,300}{([^{}]{0,3000})}", spot.code):
            members = re.findall(r"(\w+)\s*(?=[;,=\[])", body[1])
            if {*parts} <= {*members}:
                right = f" {', '.join(parts[name] for name in members if name in parts)} "
                fact = "C++ wants designated initializers in the order in which the members are declared"
                edited = context.with_text(inside, right)
                yield {"fact": fact, "step": f"Write `{{{right}}}`", "edited": edited}


def _using(message: str, spot: Spot, context: BuildContext) -> Iterator[Values]:
    """Yield the source without the directive that brings another declaration of one of its names."""
    whole = re.search(r'"((?:\w+::)*(\w+))[^"]*" is (?:missing|ambiguous)', message)
    name = whole[2] if whole else ""
    if not name or not re.search(rf"\b(?:struct|class|enum|union)\s+{name}\b", spot.code):
        return
    for found in re.finditer(r"\busing\s+namespace\s+([\w:]+)\s*;", spot.code):
        line = spot.line(found.start())
        fact = f"`{found[0]}` in line {line} brings another `{name}` beside the one that the source declares"
        step = "Leave it out, and write this namespace before the names that are used of it"
        yield spot.change(*found.span(), "", fact, step)
        edited = context.with_word(name, f"{name}_")
        yield {
            "fact": fact,
            "step": f"Give your own another name, such as {name}_",
            "edited": edited,
        }


def _function_type(_message: str, spot: Spot, _context: BuildContext) -> Iterator[Values]:
    """Yield a type of pointers to functions for one of functions."""
    for found in re.finditer(
        r"\btypedef\s+(\w[\w ]{0,80}?)\s*\*?\s*(\w+)\s*\(([^()]{0,300})\)\s*;", spot.code
    ):
        right = f"typedef {found[1]} (*{found[2]})({found[3]});"
        fact = f"{found[2]} of line {spot.line(found.start())} is a type of functions, and no pointer to one"
        yield spot.change(*found.span(), right, fact, f"Write `{right}`")


def _function_parameter(_message: str, spot: Spot, _context: BuildContext) -> Iterator[Values]:
    """Yield a pointer to a function for a parameter that is a function which returns a pointer."""
    for found in re.finditer(
        r"\b(\w+)\s*\*\s*(\w+)\s*\(([\w\s,*&]{0,300})\)(?=\s*[,)])", spot.code
    ):
        right = f"{found[1]} (*{found[2]})({found[3]})"
        fact = f"{found[2]} of line {spot.line(found.start())} is a function that returns {found[1]}*, and no pointer to one that returns {found[1]}"
        yield spot.change(*found.span(), right, fact, f"Write `{right}`")


def _constructor(message: str, spot: Spot, _context: BuildContext) -> Iterator[Values]:
    """Yield a constructor without arguments for a class that has none."""
    named = re.search(r'(?:constructor of|exists for class) "(?:\w+::)*(\w+)', message)
    name = named[1] if named else ""
    head = class_head(name, spot.code)
    if head is None:
        return
    public = re.compile(r"[^{}]*?\bpublic\s*:").match(spot.code, head.end())
    at = public.end() if public and head[1] == "class" else head.end()
    for body in (f"{name}() = default;", f"__device__ {name}() {{}}"):
        fact = f"{name} of line {spot.line(head.start())} has no constructor without arguments, which an array or a variable without a value needs"
        yield spot.change(
            at, at, f"\n    {body}", fact, f"Declare one in it, `{body}`, or give a value"
        )


def _friend(_message: str, _spot: Spot, context: BuildContext) -> Iterator[Values]:
    """Yield friend for an operator of a class that takes both operands."""
    right = re.sub(r"\)\s*const\b(?=[^()]*$)", ")", f"friend {context.text.strip()}")
    fact = (
        "An operator that is a member has its left operand in *this, and takes the right one only"
    )
    step = "Write friend before it, and no const behind it, or leave out the first parameter"
    yield {"fact": fact, "step": step, "edited": context.with_text(context.text.strip(), right)}


def _not_static(_message: str, spot: Spot, _context: BuildContext) -> Iterator[Values]:
    """Yield the source without static before the function around the caret."""
    for found in reversed(
        [*re.finditer(r"\bstatic\s+(?=[^;{}()]{0,300}\()", spot.code[: spot.at])][-3:]
    ):
        fact = f"The function of line {spot.line(found.start())} is static, and so has no object whose members it could read"
        step = "Leave out static, or pass the member as an argument"
        yield spot.change(*found.span(), "", fact, step)


def _other_type(message: str, _spot: Spot, context: BuildContext) -> Iterator[Values]:
    """Yield the type that a function wants for the one with which the source declares its argument."""
    found = re.search(
        r'of type "(?:const )?(\w+) \*"[^"]*?(?:"[^"]*"\) )?is incompatible with parameter of type "(?:const )?(\w+) \*"',
        message,
    )
    if found and len(found[1]) > _SHORTEST and found[1] != found[2]:
        fact = f"A {found[2]} is expected here, and {found[1]} is another type"
        edited = context.with_word(found[1], found[2])
        yield {"fact": fact, "step": f"Declare it as {found[2]} everywhere", "edited": edited}


_SHORTEST = 8  # of a type that is no number


def _itself(message: str, spot: Spot, _context: BuildContext) -> Iterator[Values]:
    """Yield a pointer for a member that has the type of its own class."""
    named = re.search(r'incomplete type "(?:\w+::)*(\w+)"', message)
    name = named[1] if named else ""
    head = class_head(name, spot.code)
    inside = cxx.enclosed(spot.code, head.end() - 1) if head else ""
    right = re.sub(rf"\b{name}\s+(?=\w+\s*;)", f"{name}* ", inside)
    if head and right != inside:
        fact = f"A {name} cannot contain a {name}: it would have no end"
        step = f"Keep pointers (`{name}*`) or indices in it"
        yield spot.change(head.end(), head.end() + len(inside), right, fact, step)
        yield {"fact": fact, "step": step}


_CHANGES = {
    r"(?:argument|value) of type|must have pointer-to-object type": _star,
    r'of type "[^"]*\(\*\)\[': _rows,
    r"reference to non-const must be an lvalue": _reference,
    r"object of abstract class type": _overrider,
    r"type qualifiers that prevent a match|no operator": _for_const,
    r"cannot have an in-class initializer": _constexpr,
    r"out-of-order initializers": _order,
    r'" is ambiguous|argument list for class template "[^"]*" is missing': _using,
    r"array of functions is not allowed": _function_type,
    r"must have arithmetic": _function_parameter,
    r"no default constructor exists|default constructor of [^\n]* deleted function": _constructor,
    r"too many parameters for this operator": _friend,
    r"nonstatic member reference must be relative": _not_static,
    r"is incompatible with parameter of type": _other_type,
    r"incomplete type": _itself,
}

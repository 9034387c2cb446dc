"""Which name was meant: what another library's is called here, where a name is declared, or the nearest one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import zip_longest

from rtcompile.cubin import simple_name
from rtcompile.messages.declared import (
    all_qualified,
    closest,
    declarations,
    declared_words,
    qualified,
    scope_end,
    templates,
)
from rtcompile.messages.facts import DECLARED, STD, TABLES, BuildContext, Match, Values, renamed
from rtcompile.request import cxx
from rtcompile.request.option_table import SPECS


def elsewhere(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield what CUDA C++ has in place of a name, a namespace or a class of another library or language."""
    named = re.match(r'identifier "(\w+)"', match[0])
    table = TABLES["scopes" if match[0].startswith("name followed by") else "elsewhere"]
    beside = re.findall(r"(\w+)\W*$", context.left)
    for word in [named[1]] if named else [context.word, *beside]:
        instead = table.get(word)
        if word == "__global" and re.search(rf"\b{word}\s+void\b", context.text):
            instead = "`__global__`"
        is_variable = rf"\b{word}\b\s*(?:\[[^\[\]]*\]\s*)*=(?!=)"
        if not instead or re.search(is_variable, context.code):
            continue  # a variable of the source, whose declaration the compiler did not read
        whose = TABLES["whose"].get(word)
        about = f"a name of {whose}'s, not of CUDA C++" if whose else "not a name of CUDA C++"
        about = about.replace("CUDA C++", "device code") if whose == "C" else about
        right = re.match(r"`([^`]+)`", instead)
        edited = renamed(context.source, word, right[1]) if right else ""
        known = "yes" if named or word == context.word else ""
        yield {"word": word, "about": about, "instead": instead, "edited": edited, "known": known}


def std_instead(match: Match, context: BuildContext) -> Values | None:
    """Name what device code uses in place of a member, or a header, of the standard library."""
    quoted = match.string[match.start("member") :].partition('")')[0]
    others = re.findall(r"\bstd::(?:__\w+::)*(\w+)", quoted.partition("(")[0])
    names = [name.removeprefix("basic_") for name in (match["member"], *others)]
    member = next((name for name in names if name in TABLES["std"]), names[0])
    instead = TABLES["std"].get(member)
    if instead is None:
        header = STD.get(member)
        if header is None or match[0].startswith("namespace"):  # the header may declare it
            return None
        instead = f"cuda::std::{member} of <cuda/std/{header}>"
    line = "".join(context.source.split("\n")[context.line - 1 : context.line])
    written = re.findall(r"\w+", line) if context.line > 0 else []
    if member not in written:  # std::cout is an ostream, and its user wrote cout
        member = next((w for w in written if TABLES["std"].get(w) == instead), member)
    why = TABLES["why"].get(member)
    return {"member": member, "instead": instead, "why": f": {why}" if why else ""}


def declared_further(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield where the source declares the name, if not where the error looks for it."""
    word = match["identifier"]
    for where, right in (*_in_scopes(word, context), *_inside(word, context)):
        edited = context.with_text(word, right)
        yield {"where": where, "step": f"Write {right}", "edited": edited}
    if not qualified(word, context.code) and (values := _out_of_scope(word, context)):
        yield values


def _in_scopes(word: str, context: BuildContext) -> Iterator[tuple[str, str]]:
    """Yield a base class, or the namespaces and classes, that declare a name, and how it is written there."""
    every = [*dict.fromkeys(all_qualified(word, context.code))]
    scope = every[0].split("::")[-2] if every else ""
    if every and re.search(rf":[^;{{}}?]{{0,300}}\b{scope}\s*<[^;{{}}]{{0,300}}{{", context.code):
        yield (
            f"is a member of the base class {scope}, which depends on a template's parameter, so C++ does not look for it there",
            f"this->{word}",
        )
    for each in every:
        yield f"is declared in a namespace or class, as {' and as '.join(every)}", each


def _inside(word: str, context: BuildContext) -> Iterator[tuple[str, str]]:
    """Yield the enumeration or the class that has a value or a member, and the name with what it needs before it."""
    code = context.code
    for found in re.finditer(
        r"\benum\s+(?:(?:class|struct)\s+)?(\w+)[^{};]{0,80}{([^{}]{0,3000})}", code
    ):
        if re.search(rf"(?:^|,)\s*{word}\s*(?:$|[,=])", found[2]):
            enum = qualified(found[1], code) or found[1]
            where = (
                f"is a value of the enumeration {found[1]} of line {context.line_of(found.start())}"
            )
            yield where, f"{enum}::{word}"
            yield where, f"{enum.rpartition('::')[0]}::{word}"
    for found in re.finditer(r"\b(?:struct|class)\s+(\w+)[^{};]{0,300}{", code):
        if not re.search(rf"\b{word}\s*[;,=(\[{{]", cxx.enclosed(code, found.end() - 1)):
            continue
        where = f"is a member of {found[1]}, which line {context.line_of(found.start())} declares"
        objects = re.findall(
            rf"\b{found[1]}(?:<[^<>;]*>)?\s*(?:const\s*)?([*&]?)\s*(\w+)\s*[;,)=({{]", code
        )
        parts = [f"{name}{'->' if star == '*' else '.'}{word}" for star, name in objects]
        yield from ((where, each) for each in (f"{found[1]}::{word}", *dict.fromkeys(parts)))


def _out_of_scope(word: str, context: BuildContext) -> Values | None:
    """Return the declaration of a name that stands below its use, or in a scope that has ended."""
    line, source, code = context.line, context.source, context.code
    found = declarations(word, code) if context.in_source else []
    lines = [context.line_of(each.end()) for each in found]
    if not lines or line in lines:  # what looks like a declaration is the use
        return None
    use = sum(len(text) + 1 for text in source.split("\n")[: line - 1])
    if lines[0] > line:
        depth = 0
        for each in re.findall(r"[(){}]", code[use : found[0].start(1)]):
            depth = depth + 1 if each in "({" else max(0, depth - 1)
        if depth:
            return None  # of another function
        where = f"is declared below, in line {lines[0]}; C++ reads from the top"
        step = "Move the declaration above its first use, or declare it there first"
    else:
        if not 0 <= scope_end(found[-1].start(1), code) <= use:
            return None  # the compiler skipped the declaration, behind another error
        text = source.split("\n")[lines[-1] - 1]
        loop = re.search(rf"\b(for|while|if|switch)\s*\([^;]*\b{word}\b", text)
        scope = f"the `{loop[1]}`" if loop else "a block, a loop or a function"
        where = f"of line {lines[-1]} belongs to {scope} that has ended before this line"
        step = "Declare it in the scope that encloses both lines, and assign it in the inner one without a type"
        head = code[: code.rfind("{", 0, found[-1].start(1)) + 1].rpartition(";")[2]
        if re.search(r"\bif\s*\([^{}]*\bthreadIdx\b[^{}]*{$", head):
            step += ", and as __shared__ if other threads read it: not all run the `if`"
    return {"where": where, "step": step}


def nearest(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield the nearest of the source's, the language's and the compiler's names."""
    word = match.groupdict().get("identifier") or context.word
    if len(word) < 3:
        return
    known = (*declared_words(word, context), *TABLES["language"], *DECLARED)
    bare = {name.strip("_"): name for name in TABLES["language"] if name.startswith("__")}
    functions = {*context.device_names()}
    plain = word.strip("_") if word.strip("_") in functions - {word} else ""
    found = (bare.get(word.strip("_")), closest(word, known), plain, closest(word, functions))
    for near in filter(None, dict.fromkeys(found)):
        header = DECLARED.get(near, "")
        why = ": capital letters count" if near.lower() == word.lower() else ""
        also = f", of <{header}>" if header else ""
        edited = renamed(context.source, word, near)
        yield {"word": word, "near": near, "why": why, "also": also, "edited": edited}


def scope_of_source(_: Match, context: BuildContext) -> Values | None:
    """Apply to the source's own lines: in a header, the template's arguments are the cause."""
    return {} if not context.source or context.in_source else None


def symbol_name(match: Match, context: BuildContext) -> Values:
    """Return the name of a symbol that nothing defines, and where the source declares it."""
    name = simple_name(match["symbol"])
    found = declarations(name.rpartition("::")[2], context.code)
    line = context.line_of(found[0].end()) if found else 0
    return {"name": name, "where": f" in line {line}" if line else ""}


_MOST_PARTS = 4  # of a vector
_PAIR = 2
_OBJECT = r"\w+(?:\[[^\[\]]*\]|\(\w*\)|->\w+|\.\w+)*?"


def member(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield the nearest member of a class: of a vector type its components."""
    class_, word = match["class"], match["member"]
    vector = re.fullmatch(r"(?:u?(?:char|short|int|long|longlong)|float|double|dim)([1-4])", class_)
    if vector:
        names = "xyzw"[: int(vector[1])]
        parts = word.removeprefix("s").translate(str.maketrans("rgba0123", "xyzwxyzw"))
        held = re.search(rf"({_OBJECT})\s*\.\s*{word}\b", context.text)
        fact, step = f"{class_} has the members {', '.join(names)}", "Use one of them."
        if held and {*parts} <= {*names} and len(parts) <= _MOST_PARTS:
            each = ", ".join(f"{held[1]}.{part}" for part in parts)
            kind = class_.rstrip("1234")
            right = each if len(parts) < _PAIR else f"make_{kind}{len(parts)}({each})"
            edited = context.with_text(held[0], right)
            yield {"fact": fact, "step": f"Write `{right}`.", "edited": edited}
        yield {"fact": fact, "step": step}
        return
    body = re.search(  # a class with functions is not read: their words are no members
        rf"\b(?:struct|class|union)\s+{re.escape(class_)}\b[^;{{]*{{([^{{}}]*)}}", context.code
    )
    if body is None and "{{" in context.code:  # the message about the braces states the cause
        return
    declared = re.findall(r"\b(\w+)\s*(?:[;,=\[({]|$)", body[1]) if body else []
    found = [name for name in dict.fromkeys(declared) if name not in (word, *TABLES["language"])]
    fact = f"{class_} declares {', '.join(found) or f'no {word}'}"
    if near := closest(word, found):
        edited = context.with_text(word, near)
        yield {"fact": fact, "step": f"Is `{near}` meant?", "edited": edited}
    yield {"fact": fact, "step": "Use a member that it declares."}


_LONG = 6  # letters of an option that is part of one other's name


def option(match: Match, _: BuildContext) -> Values | None:
    """Name the compiler's option that is spelled most like the given one."""
    name, equals, value = match["option"].lstrip("-").partition("=")
    known = {
        n.replace("-", "_"): n for spec in SPECS for n in (spec.name, *spec.also) if len(n) > 2
    }
    plain = name.replace("-", "_")
    parts = [each for each in known if len(plain) >= _LONG and plain in each]
    near = known.get(closest(plain, known) or (plain if plain in known else ""))
    near = near or (known[parts[0]] if len(parts) == 1 else None)
    return {"near": f"--{near}{equals}{value}"} if near else None


def expression(match: Match, context: BuildContext) -> Values:
    """Return what is wrong with a name expression, and how it would be right."""
    found = re.search(r"nv_mangled_name (?P<text>[^\n]+)", match.string)
    named = re.search(r'Input name expression was: \\?"([^"\n]+)', match.string)
    given = (found["text"] if found else named[1] if named else "").strip()
    if not given:
        return {"fact": "A name expression names nothing in the source.", "step": _SPELL}
    if "non-__global__ function" in match.string:
        fact = (
            f"`{given}` is a __device__ function, and a name expression names a kernel or variable."
        )
        return {"fact": fact, "step": "Name a kernel, or mark the function with __global__."}
    base, _, arguments = given.partition("<")
    base = base.strip().lstrip("&")
    plain = base.rpartition("::")[2]
    unknown = re.search(r'identifier "(\w+)" is undefined', match.string)
    whole, declared = qualified(plain, context.code), templates(context.code).get(plain)
    if unknown and unknown[1] != plain:
        fact = f"`{unknown[1]}` in '{given}' is no type or constant of the source."
        step = _for_unknown(unknown[1], given, context)
    elif whole and whole != base and (unknown or "::" in base):
        fact = f"`{base}` alone is not declared: its whole name is {whole}."
        step = f"Write '{given.replace(base, whole, 1)}'."
    elif declared and not unknown:
        return _arguments(given, base, arguments.rstrip("> "), declared)
    elif arguments and not declared and declarations(plain, context.code):
        fact, step = f"`{plain}` is no template, and takes no <...>.", f"Write '{base}'."
    elif declarations(plain.partition("(")[0], context.code):
        return {"fact": f"`{given}` names no one function or variable.", "step": _ONE}
    else:
        fact = f"The source declares no `{base}`."
        near = closest(plain, declared_words(plain, context))
        step = f"Is '{given.replace(plain, near, 1)}' meant?" if near else _SPELL
    return {"fact": fact, "step": step}


def _for_unknown(word: str, given: str, context: BuildContext) -> str:
    """Return what to write for a name in a name expression that the compiler does not know."""
    spelled = re.search(rf"(?:\w+::)+{word}\b", context.code)
    whole = spelled[0] if spelled else ""
    if re.search(rf"#\s*include\s*<cuda/std/{STD.get(word, word)}>", context.source):
        whole = f"cuda::std::{word}"
    if whole:
        right = re.sub(rf"(?<![:\w]){word}\b", whole, given)
        return f"Write '{right}'."
    if instead := TABLES["elsewhere"].get(word):
        return f"Write {instead}."
    if header := DECLARED.get(word):
        return f"#include <{header}>."
    return "Give a type or a constant, or declare it in the source, or #include its header."


_SPELL = (
    "Spell it as C++ would at the end of the file: namespaces in full, template arguments given."
)
_ONE = "Write its name without parameters, a cast for one of several overloads, as in '(void(*)(float*))f', and & for a variable, as in '&m'."


_COMPARE = "Compare the kinds of its arguments and defaults with the notes"


def _arguments(given: str, base: str, arguments: str, declared: str) -> Values:
    """Return which arguments of a template are of the wrong kind or missing, and arguments that would do."""
    parameters, values = ([*filter(None, cxx.split(each))] for each in (declared, arguments))
    required = [each for each in parameters if not re.search(r"=|\.\.\.", each)]
    number = max(len(required), min(len(values), len(parameters)))
    rows = [*zip_longest(parameters[:number], values[:number])]
    moved = [value for each, value in rows if value and not _fits(value, each)]
    wrong, right = list[str](), list[str]()
    for each, value in rows:
        name = re.findall(r"\w+", each.partition("=")[0] or each)[-1]
        kind, example = ("type", "float") if _is_type(each) else ("value", "4")
        if not value:
            wrong.append(f"{name} is missing")
        elif not _fits(value, each):
            wrong.append(f"{name} must be a {kind} and was given {value}")
        fitting = (one for one in (value, *moved) if one and _fits(one, each))
        right.append(next(fitting, "true" if "bool" in each else example))
    if len(values) > len(parameters) and "..." not in declared:
        wrong.append(f"'{given}' gives {len(values)} of {len(parameters)} arguments")
    fact = "; ".join(wrong) or f"no instance for '{given}' was found"
    step = _COMPARE
    if wrong:
        step = f"Write '{base}<{', '.join(right)}>', or with your own types and values"
    whole = f"the template is `template <{declared}> {base}`"
    return {"fact": f"{fact[0].upper()}{fact[1:]}: {whole}.", "step": f"{step}."}


def _is_type(parameter: str) -> bool:
    return re.match(r"(?:class|typename)\b", parameter) is not None


def _fits(value: str, parameter: str) -> bool:
    """Return whether a template's argument may be of its parameter's kind."""
    other = r"[-+]?[\d.]|'|(?:true|false)$" if _is_type(parameter) else _TYPE_WORDS
    return re.match(other, value) is None


_TYPE_WORDS = (
    r"(?:const |unsigned |signed )?(?:float|double|int|char|short|long|bool|__half|unsigned)\b"
)


def template(match: Match, context: BuildContext) -> Values | None:
    """Quote the declaration of the class template that was given wrong arguments."""
    name = match.groupdict().get("template")
    if not name:
        line = context.left
        used = re.search(r"(\w+)\s*<[^<>;]*$", line)
        name = used[1] if used else ""
    codes = (context.code, *(text for text in context.included(2) if name and name in text))
    declared = next(
        (found for code in codes if (found := templates(cxx.blanked(code)).get(name))), None
    )
    given = re.search(rf"\b{name}\s*<([^;{{}}]*)>", context.text)
    if declared is None or given is None or "..." in declared:
        return None
    values = _arguments(f"{name}<{given[1]}>", name, given[1], declared)
    if values["step"] == f"{_COMPARE}.":  # its arguments are right: the mistake is another one
        return None
    return {key: re.sub(r"'([^']+<[^']*>)'", r"`\1`", text) for key, text in values.items()}


def file_name(_: Match, context: BuildContext) -> Values | None:
    """Apply only to a source that is the name of a file."""
    text = context.source.strip()
    if not re.fullmatch(r"[\w./~\\: +-]{1,500}\.(?:cu|cuh|cpp|cc|cxx|c|h|hpp|ptx|cubin|py)", text):
        return None
    return {"file": text}


def character(_: Match, context: BuildContext) -> Values | None:
    """Name the character that C++ does not have, and what to type in its place."""
    line = context.text
    odd = next((c for c in context.right + line if not c.isascii()), context.right[:1])
    if not odd or odd in "@`#$":
        return None
    name = unicodedata.name(odd, f"U+{ord(odd):04X}").lower()
    instead = TABLES["characters"].get(odd)
    if instead:
        step = f"Type {instead} in its place, throughout the source"
    elif unicodedata.category(odd) in ("Zs", "Cf"):
        step = "Replace it by a plain blank: it looks like one, or is invisible"
    else:
        step = "Remove it"
    shown = odd if odd.isprintable() and not odd.isspace() else f"U+{ord(odd):04X}"
    whence = "" if odd.isascii() else ": it came with text copied from a document or a web page"
    if odd == "\ufeff" and context.error.column <= 1:
        whence = ": editors put this byte order mark at the start of a file"
        step = "Read the file with encoding='utf-8-sig', which leaves it out"
    return {"shown": shown, "name": name, "step": step, "whence": whence}


def directive(match: Match, _: BuildContext) -> Values:
    """Name the directive that is nearly what was written, or how the line is a comment."""
    near = closest(match["word"], TABLES["directives"]) if len(match["word"]) > 2 else None
    comment = f"Begin a comment with //: `// {match['text']}`."
    return {"word": match["word"], "step": f"Is `#{near}` meant?" if near else comment}


def name_taken(match: Match, context: BuildContext) -> Values | None:
    """Return the source with another name for one that a function of CUDA has."""
    name, is_function = match["name"], "overloaded function" in match[0]
    own = len(declarations(name, context.code)) > 1 or '#include "' in context.source
    if name not in context.device_names() and (own or not is_function):
        return None
    return {"edited": renamed(context.source, name, f"{name}_")}

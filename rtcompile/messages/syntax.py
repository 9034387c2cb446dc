"""What the source shows where the compiler cannot parse it: brackets, and the words beside the caret."""

from __future__ import annotations

import re

from rtcompile.messages.declared import BASIC, templates
from rtcompile.messages.facts import TABLES, BuildContext, Match, Values

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_NAMES = {")": "(", "]": "[", "}": "{"}
_NEAR = 300  # characters before the caret: more would take minutes in a source of one pattern


def _before(context: BuildContext) -> tuple[str, str]:
    """Return the source's code before the caret, and the code from there on; "" for both if the line is not its own."""
    if not context.line:  # the end of the source
        return context.code, ""
    lines = context.source.split("\n")
    own = lines[context.line - 1] if 0 < context.line <= len(lines) else ""
    if context.text and own.strip() != context.text.strip():
        return "", ""
    at = sum(len(line) + 1 for line in lines[: context.line - 1]) + max(0, context.column - 1)
    code = context.code
    return code[:at], code[at:]


def _unclosed(code: str) -> list[tuple[str, int]]:
    """Return the brackets of some code that are not closed, outer ones first, with their lines."""
    opened: list[tuple[str, int]] = []
    line = 1
    for token in re.finditer(r"[()\[\]{}\n]", code):
        if token[0] == "\n":
            line += 1
        elif token[0] in _CLOSING:
            opened.append((token[0], line))
        elif opened and opened[-1][0] == _NAMES[token[0]]:
            opened.pop()
    return opened


def bracket(match: Match, context: BuildContext) -> Values | None:
    """Return which bracket is not closed, or which two words stand side by side where it is expected."""
    wanted = match["bracket"]
    opening = _NAMES.get(wanted, "")
    before, after = _before(context)
    head = re.search(r"\b(if|while|for|switch)\s*$", before[-_NEAR:])
    if wanted == "(" and after.startswith("constexpr"):
        fact = "`if constexpr` is C++17, and this build reads an older standard"
        return {"fact": fact, "step": "Use -std=c++17"}
    if wanted == ":" and re.search(r"\?[^;{}]*$", before[-_NEAR:]):
        return {"fact": "The ? before the caret has no :", "step": "Write `condition ? a : b`"}
    third = re.search(r"\bfor\s*\(([^{}]*)$", before[-_NEAR:])
    if wanted == ")" and after.startswith(";") and third and third[1].count(";") > 1:
        return {
            "fact": "The head of this for has a third ;",
            "step": "Remove it: for (int i = 0; i < n; ++i)",
        }
    if wanted == "(" and head:
        return {
            "fact": f"What follows `{head[1]}` has no ( before it",
            "step": f"Write {head[1]} (...)",
        }
    if not before or not opening:
        return None
    missing = context.code.count(opening) - context.code.count(wanted)
    line = next((line for each, line in reversed(_unclosed(before)) if each == opening), 0)
    if missing > 0:
        counts = f"The source has {context.code.count(opening)} {opening} and {context.code.count(wanted)} {wanted}"
        fact = f"{counts}" + (
            f", and the {opening} of line {line} is not closed here" if line else ""
        )
        return {"fact": fact, "step": f"Add {wanted} where the part in these brackets ends"}
    last = re.search(r"([\w.]+(?:\[[^\[\]]*\])?|\))\s*$", before[-_NEAR:])
    word = re.match(r"[\w.]+", after)
    if (
        wanted == ")"
        and after.startswith(";")
        and not re.search(r"\bfor\s*\([^()]*$", before[-_NEAR:])
    ):
        return {"fact": "A ; stands inside ( )", "step": "Write , between parameters and arguments"}
    if last is None or word is None:
        return None
    if instead := TABLES["elsewhere"].get(last[1]) or TABLES["elsewhere"].get(word[0]):
        odd = last[1] if last[1] in TABLES["elsewhere"] else word[0]
        return {"fact": f"`{odd}` is no word of CUDA C++", "step": f"Write {instead}"}
    return {
        "fact": f"`{last[1]}` and `{word[0]}` stand side by side, and nothing joins them",
        "step": "Put a comma, a semicolon or an operator between them, or remove one",
    }


def _begun(before: str, found: str, code: str) -> Values | None:
    """Return what is known of what stands before an extern, a type or a closing bracket."""
    end = before.rstrip()
    if found == "extern" and re.search(r"\btemplate\s*<[^{};]*>$", end[-_NEAR:]):
        step = "Remove extern \"C\", and request an instance by a name expression: name_expressions=['f<float>']"
        return {"fact": 'A template cannot be declared extern "C"', "step": step}
    if found == "extern" and end and end[-1] not in ";{}>":
        line = end.count("\n") + 1
        return {"fact": f"Line {line} does not end with a ;", "step": "Put ; at its end"}
    is_listed = [each for each, _line in _unclosed(before)][-1:] == ["("]
    if found and re.fullmatch(BASIC, found) and end.endswith(",") and not is_listed:
        fact = "Behind a comma the declaration goes on with the same type"
        return {
            "fact": f"{fact}, and {found} begins another",
            "step": "Write ; in place of the comma",
        }
    if found and found in ")]" and code.count(found) > code.count(_NAMES[found]):
        counts = f"{code.count(found)} {found} and {code.count(_NAMES[found])} {_NAMES[found]}"
        fact = f"This {found} closes nothing: the source has {counts}"
        return {"fact": fact, "step": "Remove it, or add the one that it should close"}
    return None


def parsed(_: Match, context: BuildContext) -> Values | None:
    """Return what is known of a } that closes nothing, an else without an if, and a declaration without a type."""
    before, after = _before(context)
    word = re.match(r"\w+|[})\]]", after)
    found = word[0] if word else ""
    code = context.code
    if begun := _begun(before, found, code):
        return begun
    if (
        not _unclosed(before)
        and re.match(r"\w+(?:\[[^\[\]\n]*\])?\s*[-+*/]?=(?!=)", after)
        and "storage class" in _.string
    ):
        step = 'Put it into a kernel: `extern "C" __global__ void name(...) { ... }`'
        return {"fact": "This statement stands outside of every function", "step": step}
    if found == "}" and code.count("}") > code.count("{"):
        fact = (
            f"This }} closes nothing: the source has {code.count('}')} }} and {code.count('{')} {{"
        )
        return {"fact": fact, "step": "Remove it, or one of those before it"}
    empty = re.search(r"\bif\s*\((?:[^(){};]|\([^()]*\))*\)\s*;", before[-_NEAR:])
    if found == "else" and empty:
        return {"fact": "A ; stands directly behind the if, and ends it", "step": "Remove this ;"}
    if found == "}" and re.search(r"\breturn\s*$", before[-_NEAR:]):
        return {"fact": "`return` before this } has no ;", "step": "Put ; before the }"}
    if found == "else":
        step = "Put { } around all that stands between its if and the else, or add the if"
        return {"fact": "This else does not follow the statement of an if", "step": step}
    is_bare = re.search(
        r"(?:^|[;}])\s*(?:(?:__\w+__|static|inline|const|extern|\"C\")\s+)*$", before[-_NEAR:]
    )
    if found and is_bare and re.match(r"\w+\s*\(", after) and "explicit type" in _.string:
        fact = f"No type stands before {found}, and C++ wants the type of what a function returns"
        return {"fact": fact, "step": f"Write it: `void {found}(...)`, or float, int and so on"}
    return None


def semicolon(match: Match, context: BuildContext) -> Values | None:
    """Return what stands before the caret, where a statement should have ended."""
    if "/include/" in match.string.partition(": ")[0]:
        return None
    before, after = _before(context)
    end, word = before.rstrip(), re.match(r"[\w.]+|\S", after)
    last = re.search(r"[\w.]+(?:\[[^\[\]\n]*\])*$|.$", end[-_NEAR:])
    if word and last and (known := _unended(before, last[0], word[0], context.code)):
        return known
    is_pair = word and last and re.match(r"[\w.(]", word[0]) and re.search(r"[\w\])]$", last[0])
    if word is None or last is None or not is_pair or "\n" in before[len(end) :]:
        return {"fact": _NO_END, "step": _SOMEWHERE}
    fact = f"`{last[0]}` and `{word[0]}` stand side by side"
    if context.code.count(")") > context.code.count("(") and not _unclosed(before):
        fact = f"The source has more ) than (, and {fact}"
        return {"fact": fact, "step": "Put ( where its ) belongs, perhaps between these two"}
    step = "Put a semicolon or an operator between them"
    return {"fact": f"{fact}, and nothing joins them", "step": step}


# A line that ends with one of these words continues on the next line.
_SPECIFIERS = (
    "__global__",
    "__device__",
    "__host__",
    "__forceinline__",
    "inline",
    "static",
    "const",
    "constexpr",
)


def _unended(before: str, last: str, word: str, code: str) -> Values | None:
    """Return what ends without a semicolon before the word at the caret, if brackets or a line's end show it."""
    end = before.rstrip()
    if word in ")]}" and code.count(word) > code.count(_NAMES[word]):
        fact = f"This {word} closes nothing: the source has more {word} than {_NAMES[word]}"
        return {"fact": fact, "step": "Remove it, or add the one that it should close"}
    if re.search(r"\bfor\s*\([^{}]*$", end[-_NEAR:]) and word == ")":
        step = "Write `for (int i = 0; i < n; ++i)`"
        return {"fact": "The head of a for has two ;", "step": step}
    if word == "{" and (last != ")" or not _unclosed(before)):
        return None
    if word == "{":
        fact = "What looks like a function begins inside another one, and C++ has none there"
        step = "Move it before the function, or write a lambda: auto f = [&](float a) { ... };"
        return {"fact": fact, "step": step}
    if word == "}":
        fact = f"The statement that ends with `{last}` before this }} has no ;"
        return {"fact": fact, "step": "Put ; before the }"}
    if "\n" in before[len(end) :] and last not in _SPECIFIERS:
        line = end.count("\n") + 1
        fact = f"The statement before this line, which ends with `{last}` in line {line}, has no ;"
        return {"fact": fact, "step": f"Put ; at the end of line {line}"}
    return None


_SOMEWHERE = "Put ; at the end of the statement, which may be on the line above"
_NO_END = "The statement before the caret has no end: a semicolon is missing, or the word before is not a type or operator of C++"


def class_end(_: Match, context: BuildContext) -> Values | None:
    """Return the class before the message's line that ends without a semicolon."""
    before, _after = _before(context)
    head = before.rstrip()
    if not head.endswith("}"):
        head = re.sub(r"[^;{}]*$", "", head).rstrip()
    if not head.endswith("}"):
        return None
    depth, at = 0, len(head)
    while at:
        at -= 1
        depth += {"}": 1, "{": -1}.get(head[at], 0)
        if depth == 0:
            break
    kind = re.search(r"\b(struct|class|union|enum)\s+(\w+)[^;{}()]*$", head[:at][-_NEAR:])
    if kind is None:
        return None
    line = head.count("\n") + 1
    return {"kind": f"{kind[1]} {kind[2]}", "line": str(line)}


def dependent(_: Match, context: BuildContext) -> Values | None:
    """Return the name before the caret that depends on a template's parameter and is meant as a type."""
    before, after = _before(context)
    member = re.search(r"(?:\.|->)(\w+)(<[^<>;()]*>)\(\s*$", before[-_NEAR:])
    if member and member[1] in templates(context.code):
        what = "is a template of a type that depends on a parameter"
        return {"name": member[1], "what": what, "right": f".template {member[1]}{member[2]}()"}
    name, word = (
        re.search(r"\b(\w+)((?:<[^<>;]*>)?::\w+)\s+$", before[-_NEAR:]),
        re.match(r"\w+", after),
    )
    if name is None or word is None:
        return None
    whole = f"{name[1]}{name[2]}"
    arguments = {name[1], *re.findall(r"\w+", name[2].partition("::")[0])}
    named = {*re.findall(r"\b(?:class|typename)\s+(\w+)", before)}
    found = sorted(arguments & named)
    what = f"depends on the template's parameter {found[0]}" if found else ""
    return {"name": whole, "what": what, "right": f"typename {whole} {word[0]}"} if found else None


_FIXED = "Use a constexpr variable, a template parameter, or a macro of the options (-DN=64)"
_DYNAMIC = "Declare it without a size, `extern __shared__ float s[];`, and pass its bytes at the launch (shared_mem=)"
_CONSTANTS = (  # what stands before the caret, what it is, and what to write where it is not constant
    (
        r"\bstatic_assert\s*\(",
        "The condition of a static_assert",
        "Use `assert(...)`, which the kernel checks",
    ),
    (
        r"\b__shared__\b",
        "The size of a __shared__ array",
        f"{_DYNAMIC}. {_FIXED.replace('Use', 'Or use')}",
    ),
    (r"\[\s*$", "The size of an array", _FIXED),
    (r"<[^;()]*$", "A template argument", _FIXED),
    (r"\bcase\s*$", "The value of a case", "Use if and else"),
    ("", "This value", _FIXED),
)


def cpp11(_: Match, context: BuildContext) -> Values | None:
    """Return the option that chooses C++11, if there is one."""
    found = [each for each in context.options if re.search(r"std=(?:c|gnu)\+\+(?:11|0x)$", each)]
    return {"given": found[-1]} if found else None


def constant(_: Match, context: BuildContext) -> Values | None:
    """Return what must be known at compile time on the message's line, and what to write if it is not."""
    before = context.text[: max(0, context.column - 1)]
    # The function that initializes a constexpr variable may be what is not constant.
    if re.search(r"\bconstexpr\b[^;]*=\s*$", before):
        return None
    what, step = next((w, step) for pattern, w, step in _CONSTANTS if re.search(pattern, before))
    return {"what": what, "step": step}


def returned(_: Match, context: BuildContext) -> Values | None:
    """Return the function that is declared void around the message's line."""
    before, _after = _before(context)
    heads = [
        *re.finditer(
            r"([\w:*&<> ]{1,100}?)\b(\w+)\s*\([^;{}]{0,500}\)\s*(?:const\s*)?\{",
            before[-10 * _NEAR :],
        )
    ]
    heads = [each for each in heads if each[2] not in ("if", "for", "while", "switch")]
    if not heads or not re.search(r"\bvoid\s*$", heads[-1][1]):
        return None
    kernel = re.search(r"__global__[\w\s()]*$", before[-10 * _NEAR :][: heads[-1].start(2)])
    step = (
        "write the value to an array that is a parameter"
        if kernel
        else "declare it with the type that it returns"
    )
    return {"function": heads[-1][2], "step": step[0].upper() + step[1:]}


def literal(_: Match, context: BuildContext) -> Values | None:
    """Return the number with a suffix at the caret, and how C++ writes it."""
    found = re.match(r"(\d+)(\.?\d*)([A-Za-z]\w*)", context.text[max(0, context.column - 1) :])
    if found is None:
        return None
    whole, digits, suffix = found[1], found[2], found[3]
    fortran = re.match(r"(\d+\.?\d*)[dD]([+-]?\d+)", context.text[max(0, context.column - 1) :])
    if fortran:
        number = fortran[1] if "." in fortran[1] else f"{fortran[1]}.0"
        right = number if int(fortran[2]) == 0 else f"{fortran[1]}e{fortran[2]}"
        why = f"d{fortran[2]} is the exponent of a double in Fortran"
        return {"literal": fortran[0], "why": why, "right": right}
    if suffix in ("f", "F") and not digits:
        why, right = "the suffix f needs a decimal point before it", f"{whole}.0f"
    elif suffix in ("j", "J"):
        why, right = (
            "j is Python's imaginary unit",
            f"complex<float>(0, {whole}) of <cupy/complex.cuh>",
        )
    elif suffix not in ("d", "D", "f32", "f64", "F64", "h") and len({*suffix.lower()} - {*"ulf"}):
        why, right = f"no operator stands before {suffix}", f"{whole}{digits} * {suffix}"
    else:
        number = f"{whole}{digits}" if digits else f"{whole}.0"
        why = f"it has no suffix {suffix}"
        right = f"{number}f for a float, or {number} for a double"
    return {"literal": found[0], "why": why, "right": right}


_LABEL = re.compile(r"(?:case\b.*|default\s*|public\s*|private\s*|protected\s*|\w+\s*):")


def brace_by_indentation(_: Match, context: BuildContext) -> Values | None:
    """Return where the indentation shows that a } is missing or superfluous, if the braces are not as many."""
    code = context.code
    more = code.count("{") - code.count("}")
    # Of an #if and its #else, the compiler reads one, so braces cannot be counted.
    is_chosen = re.search(r"^[ \t]*#[ \t]*el", context.source, re.MULTILINE)
    if not more or is_chosen or {" ", "\t"} <= set(re.findall(r"^[ \t]", code, re.MULTILINE)):
        return None
    counts = f"The source has {code.count('{')} {{ and {code.count('}')} }}, and line"
    # Each open { has its statement's line and indentation, and its block's indentation.
    stack: list[list[int]] = []
    first = head = 0
    last = ";"
    for number, line in enumerate(code.split("\n"), 1):
        text = line.strip()
        if not text or _LABEL.match(text):
            continue
        indented = len(line) - len(line.lstrip())
        first, head = (number, indented) if last in ";{}" else (first, min(head, indented))
        if stack and stack[-1][2] < 0:
            stack[-1][2] = indented
        begin, outer, inner = stack[-1] if stack else (number, -1, 0)
        if begin != number and inner > outer:
            if more > 0 and indented < outer + (text[0] not in "{}"):
                fact = f"{counts} {number} is indented no further than line {begin}, whose {{ is still open"
                return {"fact": fact, "step": f"Add a }} before line {number}"}
            is_before = not context.line or number <= context.line
            if more < 0 and is_before and text[0] == "}" and indented > outer:
                fact = (
                    f"{counts} {number} is indented further than line {begin}, whose {{ it closes"
                )
                return {"fact": fact, "step": f"Remove the }} of line {number}"}
        for brace in re.findall(r"[{}]", text):
            if brace == "{":
                stack.append([first, head, -1])
            else:
                del stack[-1:]
        last = text[-1]
    return None

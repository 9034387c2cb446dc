"""What the source shows where the compiler cannot parse it: brackets, and the words beside the caret."""

from __future__ import annotations

import re

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
    last, word = re.search(r"([\w.]+)\s*$", before[-_NEAR:]), re.match(r"\w+", after)
    if last is None or word is None:
        return None
    if instead := TABLES["elsewhere"].get(last[1]) or TABLES["elsewhere"].get(word[0]):
        odd = last[1] if last[1] in TABLES["elsewhere"] else word[0]
        return {"fact": f"`{odd}` is no word of CUDA C++", "step": f"Write {instead}"}
    return {
        "fact": f"`{last[1]}` and `{word[0]}` stand side by side, and nothing joins them",
        "step": "Put a comma, a semicolon or an operator between them, or remove one",
    }


def parsed(_: Match, context: BuildContext) -> Values | None:
    """Return what is known of a } that closes nothing, an else without an if, and a declaration without a type."""
    before, after = _before(context)
    word = re.match(r"\w+|\}", after)
    found = word[0] if word else ""
    code = context.code
    if found == "}" and code.count("}") > code.count("{"):
        fact = (
            f"This }} closes nothing: the source has {code.count('}')} }} and {code.count('{')} {{"
        )
        return {"fact": fact, "step": "Remove it, or one of those before it"}
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
    return {"name": whole, "parameter": found[0], "word": word[0]} if found else None


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


def constant(_: Match, context: BuildContext) -> Values:
    """Return what must be known at compile time on the message's line, and what to write if it is not."""
    before = context.text[: max(0, context.column - 1)]
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
    kernel = "__global__" in heads[-1][1]
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
    if suffix in ("f", "F") and not digits:
        why, right = "the suffix f needs a decimal point before it", f"{whole}.0f"
    else:
        number = f"{whole}{digits}" if digits else f"{whole}.0"
        why = f"it has no suffix {suffix}"
        right = f"{number}f for a float, or {number} for a double"
    return {"literal": found[0], "why": why, "right": right}


_PLACEHOLDER = r"%\(\w+\)[sdifg]|\{{1,2} *\w+ *\}{1,2}|\$\{?\w+\}?|@\w+@"


def macro_value(_: Match, context: BuildContext) -> Values | None:
    """Return the macro at the caret, or beside it, that was defined with a semicolon or an equals sign."""
    at = max(0, context.column - 1)
    beside = re.search(r"(\w+)\W*$", context.text[:at])
    words = [*re.findall(r"^\w+", context.text[at:]), *(beside.groups() if beside else ())]
    for word in words:
        defined = re.search(
            rf"^[ \t]*#[ \t]*define[ \t]+(?P<name>{word}(?:\([^()\n]*\))?)[ \t]+"
            rf"(?P<value>=[^\n]*|[^\n;{{}}]*;|{_PLACEHOLDER})[ \t]*(?://[^\n]*)?$",
            context.source,
            re.MULTILINE,
        )
        if defined:
            value = defined["value"].strip()
            part = "the =" if value.startswith("=") else "the semicolon"
            why = f": {part} becomes part of this line"
            right = f"Write `#define {defined['name']} {value.lstrip('= ').rstrip('; ')}`"
            if re.fullmatch(_PLACEHOLDER, value):
                why = ", which looks like a placeholder that was not filled in"
                right = (
                    f"Fill it in before compiling, or leave the line out and pass -D{word}=VALUE"
                )
            line = context.source.count("\n", 0, defined.start()) + 1
            return {"macro": word, "value": value, "line": str(line), "why": why, "right": right}
    return None


def doubled(_: Match, context: BuildContext) -> Values | None:
    """Apply only where the caret stands at a doubled brace."""
    at = max(0, context.column - 1)
    found = context.text[max(0, at - 1) : at + 2]
    doubles = [each for each in ("{{", "}}") if each in found]
    return {"doubled": doubles[0]} if doubles else None


def comment_division(_: Match, context: BuildContext) -> Values | None:
    """Return the line above the caret that ends in a // with the rest of a statement behind it."""
    lines = context.source.split("\n")[: max(0, context.line)]
    for number in range(len(lines), max(0, len(lines) - 3), -1):
        found = re.search(
            r"([\w)\]]+)\s*//\s*[\w(][\w()\[\].+*-]*(?:\s*[-+*/%]\s*\w+)*\s*\)*\s*;\s*$",
            lines[number - 1],
        )
        if found:
            return {"line": str(number), "before": found[1]}
    return None


def unclosed_by_indentation(_: Match, context: BuildContext) -> Values | None:
    """Return the first { that a } of a lesser indentation closes, in a source with more { than }."""
    code = context.code
    opened, closed = code.count("{"), code.count("}")
    if opened <= closed:
        return None
    stack: list[tuple[int, int]] = []  # line and indentation of each { that is open
    for number, line in enumerate(code.split("\n"), 1):
        indented = len(line) - len(line.lstrip())
        for brace in re.findall(r"[{}]", line):
            if brace == "{":
                stack.append((number, indented))
            elif stack:
                begin, outer = stack.pop()
                if indented < outer and begin != number:
                    return {
                        "line": str(begin),
                        "end": str(number),
                        "opened": str(opened),
                        "closed": str(closed),
                    }
    return None

"""What the source shows where the compiler cannot parse it: brackets, and the words beside the caret."""

from __future__ import annotations

import re

from rtcompile.messages.facts import TABLES, BuildContext, Match, Values
from rtcompile.request import cxx

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
            r"([\w)\]]+)\s*//=?\s*[\w(][\w()\[\].+*-]*(?:(?:\s*[-+*/%]\s*\w+)*\s*\)*\s*;\s*$|\s*[;)].*[;{]\s*$)",
            lines[number - 1],
        )
        if found:
            return {"line": str(number), "before": found[1]}
    return None


_LABEL = re.compile(r"(?:case\b.*|default\s*|public\s*|private\s*|protected\s*|\w+\s*):")


def brace_by_indentation(_: Match, context: BuildContext) -> Values | None:
    """Return where the indentation shows that a } is missing or superfluous, if the braces are not as many."""
    code = context.code
    more = code.count("{") - code.count("}")
    if not more or {" ", "\t"} <= set(re.findall(r"^[ \t]", code, re.MULTILINE)):
        return None
    counts = f"The source has {code.count('{')} {{ and {code.count('}')} }}, and line"
    stack: list[
        list[int]
    ] = []  # of each open {: its statement's line and indentation, its block's indentation
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


def macro_ended(_: Match, context: BuildContext) -> Values | None:
    """Return the macro of the message's line that a blank or a comment behind a backslash ends."""
    name, ended = "", 0
    for number, line in enumerate(context.source.split("\n"), 1):
        defined = re.match(r"[ \t]*#[ \t]*define[ \t]+(\w+)", line)
        name = defined[1] if defined and not ended else name
        behind = re.search(r"\\(?:[ \t]*(//.*|/\*.*)|[ \t]+)$", line.rstrip("\r"))
        if name and behind and not ended:
            ended, what = number, "a comment" if behind[1] else "a blank"
        if ended and (number == context.line != ended or re.search(rf"\b{name}\b", context.text)):
            return {"macro": name, "line": str(ended), "what": what}
        if number != ended and not line.rstrip().endswith("\\"):
            name, ended = "", 0
    return None


_TYPE = (
    r"(?:unsigned|signed|bool|char|short|int|long|float|double|half|__half|void|auto|\w+_t"
    r"|(?:u?(?:char|short|int|long|longlong)|float|double)[1-4])"
)


def keyword(_: Match, context: BuildContext) -> Values | None:
    """Return the word of the language that the message's line declares as a name."""
    line = cxx.blanked(context.text, literals=True)
    words = "|".join(TABLES["keywords"])
    declared = rf"\b{_TYPE}[\s*&]+(?:__restrict__\s+)?({words})\s*(?:[;,)]|=(?!=)|\[\s*\w|\((?!\)))"
    found = re.search(declared, line) or re.search(rf"\b{_TYPE}[\s*&]+({_TYPE})\s*=", line)
    return {"word": found[1]} if found else None


_TEMPLATES = r"\{\{ *\w+ *\}\}|\{%[^%\n]*%\}|%\(\w+\)[sdifg]|\$\{\w+\}|\$\w+|<%=? *\w+|@\w+@|(?<=[=(,<>+*/-])\s*%[sdifg]\b"
_FIELD = r"\{ *(?:[A-Za-z_][\w.]*(?:\[\w+\])?|\d*) *(?:![rsa])?(?::[^{}\n]*)?\}"


def placeholder(match: Match, context: BuildContext) -> Values | None:
    """Return the placeholder of Python's format, % or a template language on the message's line."""
    text = cxx.blanked(context.text, literals=True)
    found = re.search(_TEMPLATES, text)
    if found:
        return {"text": found[0].strip()}
    at = max(0, context.column - 1)
    undefined = re.match(r'[^\n]*identifier "\w+" is undefined', match.string)
    for field in re.finditer(_FIELD, text):
        before, after = text[: field.start()].rstrip()[-1:], text[field.end() :].lstrip()[:1]
        is_part = (before and before in "[<*/+-%&|!<>") or (after and after in "*([&")
        if field.start() <= at <= field.end() + 1 and (undefined or is_part or not before):
            return {"text": field[0]}
    return None


_NO_CXX = (  # what other languages write, what it is, and what C++ writes
    (
        r"\bfor\s*\(?\s*(?:\w+\s+)?\w+\s+in\b",
        "Python's loop",
        "`for (int i = 0; i < n; ++i) { ... }`",
    ),
    (r"\belif\b", "Python's", "`else if (...)`"),
    (
        r"\b(?:if|while)\b[^\n({]*:\s*$|\belse\s*:",
        "Python's syntax",
        "`if (a) { ... } else { ... }` or `while (i < n) { ... }`, with braces instead of indentation",
    ),
    (r"^\s*def\s+\w+\s*\(", "Python's function", "`__device__ float f(float a) { ... }`"),
    (
        r"(?<!\belse)(?<=[\w)\]])\s+if\b[^;\n]*\belse\b",
        "Python's conditional expression",
        "`condition ? a : b`",
    ),
    (
        r"(?<=[\w\])])\s+is\s+(?:not\s+)?(?:None|True|False)\b",
        "Python's comparison",
        "`==` or `!=`",
    ),
    (r"\bif\s*\(?\s*[\w\[\]]+\s+(?:not\s+)?in\b", "Python's test", "a loop over the elements"),
    (r"=\s*\[[^\[\]\n]*\](?=\s*[;,)])", "Python's list", "`float a[] = {1, 2, 3};`"),
    (r"\w\[[^\[\]?\n]*(?<!:):(?!:)[^\[\]\n]*\]", "Python's slice", "a loop over the elements"),
    (r"^\s*(?:```|~~~).*", "Markdown", "nothing in its place: such lines frame a source in a text"),
    (r"(?<=\S)\s*#(?!#).*$", "Python's comment", "`// ...`"),
    (
        r"^\s*@\w[\w.]*",
        "a decorator of Python or an attribute of another language",
        "nothing in its place",
    ),
    (r"^\s*\[numthreads\b.*", "HLSL's", "nothing in its place: the launch gives the block's size"),
    (r"^\s*layout\s*\(.*", "GLSL's", "nothing in its place: the launch gives the block's size"),
    (r"\blambda\b[\w\s,]*:", "Python's", "`[=](float a) { return a; }`"),
    (r"\*\*=", "Python's", "`x = x * x`, or `pow(x, y)`"),
    (r"^\s*(?:from\s+\w+\s+)?import\s+\w+", "Python's", "`#include <header>`"),
    (r"(?<![=!])===|!==", "JavaScript's operator", "`==` or `!=`"),
    (r"(?<![<])=>(?!=)", "no operator of C++", "`>=`"),
    (r"(?<=[\w)\]])\s*=\s*<(?=\s*\w+\s*[;)&|])", "no operator of C++", "`<=`"),
    (r"(?<!template)\s<>\s", "no operator of C++", "`!=`"),
    (
        r"\b\d+(?:_\d+)+\b",
        "Python's separator of digits",
        "the digits without `_`, or `'` in its place",
    ),
)


def no_cxx(_: Match, context: BuildContext) -> Values | None:
    """Return what on the message's line is another language's syntax, and how C++ writes it."""
    text = cxx.blanked(context.text, literals=True)
    for pattern, about, right in _NO_CXX:
        if found := re.search(pattern, text):
            written = found[0].strip()
            written = "A line of three backquotes" if "```" in written else f"`{written}`"
            about += "" if about.startswith("no ") else ", and no C++"
            return {"written": written, "about": about, "right": right}
    return None

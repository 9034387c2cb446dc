"""What is written in the source and is no C++: placeholders, other languages, keywords as names, macros that end early."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rtcompile.messages.declared import BASIC
from rtcompile.messages.facts import TABLES, BuildContext, Match, Values
from rtcompile.messages.quoted import macros
from rtcompile.request import cxx

_PLACEHOLDER = r"%\(\w+\)[sdifg]|\{{1,2} *\w+ *\}{1,2}|\$\{?\w+\}?|@\w+@"


def macro_gap(match: Match, context: BuildContext) -> Values | None:
    """Return the macro of the message's line whose parameters stand behind a blank, and so are part of its value."""
    for word in re.findall(r"\b\w+(?=\()", context.text):
        defined = re.search(
            rf"^[ \t]*#[ \t]*define[ \t]+{word}[ \t]+(\([\w ,]*\))[ \t]*([^\n]+)",
            context.source,
            re.MULTILINE,
        )
        if defined and match["identifier"] in re.findall(r"\w+", defined[1]):
            line = context.source.count("\n", 0, defined.start()) + 1
            return {
                "macro": word,
                "line": str(line),
                "right": f"#define {word}{defined[1]} {defined[2].strip()}",
                "edited": context.with_line(
                    line, f"#define {word}{defined[1]} {defined[2].strip()}"
                ),
            }
    return None


def macro_of_option(match: Match, context: BuildContext) -> Iterator[Values]:
    """Yield the macro of the options at the caret, or beside it, and what its value would be right."""
    at = max(0, context.column - 1)
    beside = re.search(r"(\w+)\W{0,3}$", context.text[:at])
    words = [*re.findall(r"^[\s=]*(\w+)", context.text[at:]), *(beside.groups() if beside else ())]
    for name, value in macros(context.options):
        used = name in words if value else re.search(rf"\b{name}\b", context.text)
        if not used or (re.fullmatch(r"[\d.]+|[A-Za-z_]\w*", value) and name not in words[:1]):
            continue
        is_integer = re.fullmatch(r"-?\d+", value) or "instead of the required" not in match.string
        if (
            is_integer
            and re.fullmatch(r"-?(?:\d+|\d+\.\d*f?|\.\d+f?)", value)
            and not re.search(rf"(?:{BASIC}|[A-Za-z_>]\w*)\s*[*&\s]\s*$", context.text[:at])
        ):
            continue
        one = re.fullmatch(r"\(([^(),]+),\)", value)  # Python's tuple of one
        right = one[1] if one else re.sub(r"^[(\[](.*,.*)[)\]]$", r"{\1}", value) or "VALUE"
        change = f", such as -D{name}={right}" if right != value else ""
        shown = {"macro": name, "value": f"`{value}`" if value else "nothing"}
        yield {**shown, "step": f"Leave out -D{name}={value}", "adding": f"-U{name}"}
        is_declared = re.search(rf"(?:{BASIC}|typename|class)\s+$", context.text[:at])
        step = f"Give it a value that fits this line{change}, or another name"
        if is_declared and re.match(rf"{name}\b", context.text[at:]):
            step = (
                f"Give one of the two another name: the macro, or what line {context.line} declares"
            )
        yield {**shown, "step": step}


def macro_value(_: Match, context: BuildContext) -> Values | None:
    """Return the macro at the caret, or beside it, that was defined with a semicolon or an equals sign."""
    at = max(0, context.column - 1)
    beside = re.search(r"(\w+)\W*$", context.text[:at])
    words = [*re.findall(r"^\w+", context.text[at:]), *(beside.groups() if beside else ())]
    for word in words:
        defined = re.search(
            rf"^[ \t]*#[ \t]*define[ \t]+(?P<name>{word}(?:\([^()\n]*\))?)(?:[ \t]+|(?==))"
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
            found = {"macro": word, "value": value, "line": str(line), "why": why, "right": right}
            if right.startswith("Write"):
                found["edited"] = context.with_line(line, right[len("Write `") : -1])
            return found
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
            own = lines[number - 1]
            at = own.index("//", found.end(1))
            edited = context.with_line(number, f"{own[:at]}/{own[at + 2 :]}")
            return {"line": str(number), "before": found[1], "edited": edited}
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
            own = context.source.split("\n")[ended - 1]
            right = re.sub(r"\\(?:[ \t]*(?://.*|/\*.*)|\s+)$", r"\\", own)
            edited = context.with_line(ended, right)
            return {"macro": name, "line": str(ended), "what": what, "edited": edited}
        if number != ended and not line.rstrip().endswith("\\"):
            name, ended = "", 0
    return None


def comment_odd(_: Match, context: BuildContext) -> Iterator[Values]:
    """Yield the comment above the line that goes on in the next line, or ends earlier than it seems."""
    source = context.source
    end = sum(len(line) + 1 for line in source.split("\n")[: context.line]) or len(source)
    for found in re.finditer(r"//[^\n]*?([\\][ \t]*)$", source[:end], re.MULTILINE):
        line = source.count("\n", 0, found.start()) + 1
        fact = f"The comment of line {line} ends with a backslash, so line {line + 1} is part of it"
        edited = source[: found.start(1)] + source[found.end(1) :]
        yield {"fact": fact, "step": "Remove the backslash", "edited": edited}
    for found in re.finditer(r"/\*(?:(?!\*/)[\s\S])*?/\*[\s\S]*?(\*/)", source[:end]):
        line, last = (source.count("\n", 0, at) + 1 for at in (found.start(), found.start(1)))
        fact = f"The comment of line {line} ends at the */ in line {last}: a comment has no other one inside"
        step = f"Remove this */, or put #if 0 and #endif around the part that begins in line {line}"
        edited = source[: found.start(1)] + source[found.end(1) :]
        yield {"fact": fact, "step": step, "edited": edited}


def for_head(_: Match, context: BuildContext) -> Iterator[Values]:
    """Yield the head of a for with a semicolon for each comma."""
    head = re.search(r"\bfor\s*\(([^;{}]*)\)", context.text)
    if head:
        right = head[0].replace(",", ";")
        yield {"right": f"`{right}`", "edited": context.with_text(head[0], right)}
    yield {"right": "`for (int i = 0; i < n; ++i)`"}


def template_linkage(_: Match, context: BuildContext) -> Values:
    """Return the block of extern "C" that the template of the message's line is in."""
    lines = context.source.split("\n")
    found = [n for n, text in enumerate(lines, 1) if re.search(r'\bextern\s+"C"\s*\{', text)]
    is_block = bool(found) and found[0] <= context.line
    step = "Move it out of this block" if is_block else 'Remove extern "C"'
    head = re.match(r"[^;{}]*?\b(\w+)\s*\(", "\n".join(lines[max(0, context.line - 1) :]))
    if head and "__global__" in head[0]:
        name = f"name_expressions=['{head[1]}<float>']"
        step += f", and request an instance by a name expression: {name}"
    begin = next((n for n in reversed(found) if n <= context.line), 0)
    where = f', and the block of extern "C" that begins in line {begin} contains it'
    return {"where": where if is_block else "", "step": step}


def redeclared(match: Match, context: BuildContext) -> Values:
    """Return which header is read twice, or that one scope has two declarations of a name."""
    file = match.string.partition(": ")[0]
    again = re.search(r"at line (\d+)\)", match.string.partition("\n")[0])
    if again and int(again[1]) == context.line and "." in file:
        fact = f"{file} is read twice, since it has nothing that prevents this"
        return {"fact": fact, "step": "Write #pragma once in its first line"}
    fact = "One scope has two declarations of this name"
    return {"fact": fact, "step": "Rename or remove one of them"}


_PARAMETERS = "class|new|delete|template|union|struct|enum|default|private|public|register|using"


def keyword(_: Match, context: BuildContext) -> Values | None:
    """Return the word of the language that the message's line declares as a name."""
    line = cxx.blanked(context.text, literals=True)
    words = "|".join(TABLES["keywords"])
    declared = rf"\b{BASIC}[\s*&]+(?:__restrict__\s+)?(?!operator\s*=\s*\()({words})\s*(?:[;,)]|=(?!=)|\[\s*\w|\((?!\)))"
    found = re.search(declared, line) or re.search(rf"\b{BASIC}[\s*&]+({BASIC})\s*=", line)
    found = found or re.search(
        rf"[(,]\s*(?:const\s+)?[A-Za-z_]\w*\s*[*&\s]\s*({_PARAMETERS})\s*[,)]", line
    )
    if found is None:
        return None
    return {"word": found[1], "edited": context.with_word(found[1], f"{found[1]}_")}


_TEMPLATES = r"\{\{ *[A-Za-z_]\w* *\}\}|\{%[^%\n]*%\}|%\(\w+\)[sdifg]|\$\{\w+\}|\$\w+|<%=? *\w+|@\w+@|(?<=[=(,<>+*/-])\s*%[sdifg]\b"
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
        is_value = undefined and (
            not text[: field.start()] or not re.match(r"[\w>)]", text[field.start() - 1])
        )
        if field.start() <= at <= field.end() + 1 and (is_value or is_part or not before):
            return {"text": field[0]}
    return None


_NO_CXX = (  # what other languages write, what it is, and what C++ writes
    (
        r"\bfor\s*\(?\s*(?:\w+\s+)?\w+\s+in\b(?!\s*[=;,[])",
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
        r"(?<!\belse)(?<=[\w)\]])\s+if\b[^;{}\n]*\belse\b",
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
    (
        r"^\s*layout\s*\(\s*(?:local_size|binding|location|set|std)\w*\b.*",
        "GLSL's",
        "nothing in its place: the launch gives the block's size",
    ),
    (
        r"\b\w+ \w+(?:\s*,\s*\w+)+\s*=\s*[\w.]+\s*,\s*[\d.]+",
        "Python's assignment to several names",
        "`float a = 1, b = 2;`",
    ),
    (r"(?<=[=(,])\s*lambda\b[\w\s,]*:", "Python's", "`[=](float a) { return a; }`"),
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
    above = context.source.split("\n")[max(0, context.line - 2) : context.line]
    if any(line.strip().endswith('"""') for line in above):
        return {
            "written": '`"""`',
            "about": "a text of Python's, and no comment of C++",
            "right": "`// ...` or `/* ... */`",
        }
    for pattern, about, right in _NO_CXX:
        found = re.search(pattern, text)
        if found and not ("#" in pattern and text.lstrip().startswith("#")):
            written = found[0].strip()
            written = "A line of three backquotes" if "```" in written else f"`{written}`"
            about += "" if about.startswith("no ") else ", and no C++"
            return {"written": written, "about": about, "right": right}
    return None

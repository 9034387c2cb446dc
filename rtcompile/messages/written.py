"""What is written in the source and is no C++: placeholders, other languages, keywords as names, macros that end early."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rtcompile.messages.declared import BASIC
from rtcompile.messages.facts import TABLES, BuildContext, Match, Values
from rtcompile.messages.quoted import macros
from rtcompile.request import cxx

_PLACEHOLDER = r"%\(\w+\)[sdifg]|\{{1,2} *\w+ *\}{1,2}|\$\{?\w+\}?|@\w+@"


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

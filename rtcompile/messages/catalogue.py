"""The catalogue of messages of compilers, linkers and the driver, with causes and fixes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from rtcompile.diagnostic import Diagnostic
from rtcompile.messages import available, changes, facts, names, quoted
from rtcompile.messages.diagnostics import CONSEQUENCES
from rtcompile.messages.facts import BuildContext


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """A section of ``catalogue.ini``."""

    id: str  # its name in ``rtcompile explain`` and the documentation
    pattern: re.Pattern[str]
    cause: str
    fix: str
    since: str
    values: facts.Fill | None
    needs: tuple[str, ...] = ()  # the fields of the build that must be known
    general: bool = False  # not shown below another error that is explained
    headline: bool = False  # the cause replaces the compiler's message
    lines: str = ""  # a pattern; ``{lines}`` stands for the lines of the source that match it

    def hint(self, match: re.Match[str], context: BuildContext) -> str:
        """Fill in the templates; return "" if the explanation does not apply to this build."""
        if not all(getattr(context, name) for name in self.needs):
            return ""
        values = self.values(match, context) if self.values else {}
        values, proof = _proved(values, context) if values is not None else (None, "")
        if values is None:
            return ""
        groups = {name: _decimal(text or "") for name, text in match.groupdict().items()}
        lines = quoted.lines_with(self.lines, context)
        filled = {**facts.of_build(context), **groups, "lines": lines, **values}
        cause, fix = self.cause.format_map(filled), self.fix.format_map(filled)
        written = re.search(r"`(.*)`", proof)
        if written and f"`{written[1]}`" in fix:
            proof = f"With this change{proof[written.end() :]}"
        return " ".join(filter(None, (cause, fix, proof)))


def _decimal(text: str) -> str:
    number = re.fullmatch(r"0x[0-9a-f]+", text)
    return str(int(text, 16)) if number else text.replace("__nv_bool", "bool")


def _proved(
    values: facts.Values | Iterator[facts.Values], context: BuildContext
) -> tuple[facts.Values | None, str]:
    """Return the first values whose change of the source helps, with what it does; values without a change as they are."""
    is_only = isinstance(values, Mapping)
    for each in (values,) if isinstance(values, Mapping) else values:
        edited = each.get("edited", "")
        if not (context.attempts and context.error.message and (edited or "adding" in each)):
            return each, ""
        if edited == context.source and "adding" not in each:
            if is_only:
                return each, ""
            continue  # what was to be changed is not there
        adding = tuple(each.get("adding", "").split())
        proof = context.attempts.proof(context.error, edited or context.source, adding)
        if proof or each.get("known"):  # what was looked up is true without the change
            return each, proof
    return None, ""


_MADE: dict[str, Callable[[str], facts.Fill]] = {
    "changed": changes.of,
    "row": facts.row_of,
    "given": facts.with_option,
    "before": facts.older_than,
}


def _function(values: str, section: str) -> facts.Fill | None:
    """Return what a section's ``values`` names."""
    what, _, of = values.partition(" ")
    if what in _MADE:
        return _MADE[what](of.removeprefix("of ") or section)
    found = (vars(module).get(what) for module in (available, facts, names, quoted, changes))
    return next(filter(None, found)) if what else None


def _read() -> tuple[KnownMessage, ...]:
    parser = facts.read_sections("catalogue.ini")
    return tuple(
        KnownMessage(
            name,
            re.compile(row["pattern"].replace("\n", "")),
            row["cause"].replace("\n", " "),
            row["fix"].replace("\n", " "),
            row["since"],
            _function(row.get("values", ""), name),
            tuple(row.get("needs", "").split()),
            "general" in row,
            "headline" in row,
            row.get("lines", ""),
        )
        for name, row in parser.items()
        if name != parser.default_section
    )


MESSAGES = _read()


_MOST_ANNOTATED = 50  # a log with a thousand errors has one cause, visible in the first ones
_LONGEST_SUBJECT = 20_000
# An error of the driver or the runtime of which only the number is given: "CUDA error 700", "[700] Call to cuLaunchKernel".
_NUMBER = re.compile(
    r"(?:^CUDA: |\b(?:CUDA|cuda|Cu|cu)\w*(?:[ _]\w+)?[ _](?:error|status)(?: code)?[ :=#(]{1,3}|\bCuError[ :=(]{1,2}"
    r"|^:? ?error code[ :=]{1,2}|^:? ?(?:error )?\(?(?=\d{3}\)?\s*$)|\bcu[A-Z]\w+[^\n\d]{0,30}[ :=(]|\[(?=\d+\] Call to cu))(\d{1,3})(?![.\w])"
)
_UNREAD = re.compile(r"no instance of|no operator|more than one")
_ARTICLE = re.compile(r"^(?:The|This|No|Neither)(?= )")


def hint_for(message: Diagnostic | str, context: BuildContext | None = None) -> str:
    """Return the cause and the fix of a message, a log or a driver error; "" if unknown."""
    found = explain(message, context)
    return found[1] if found else ""


def explain(
    message: Diagnostic | str, context: BuildContext | None = None
) -> tuple[KnownMessage, str] | None:
    """Return the catalogue's first row that matches a message, and its rendered hint."""
    # The patterns search `file: message`, the excerpt and the notes, one per line.
    subject, context = str(message), context or BuildContext()
    if isinstance(message, Diagnostic):
        parts = [f"{message.file}: {message.message}", message.excerpt.partition("\n")[0]]
        subject = "\n".join([*parts, *(note.message for note in message.notes[:5])])
        context = replace(context, error=message)
    if _is_unread(subject):  # an earlier error states why
        return None
    for known in MESSAGES:
        match = known.pattern.search(subject[:_LONGEST_SUBJECT])
        if match is not None and (hint := known.hint(match, context)):
            return known, hint
    number = _NUMBER.search(subject[:_LONGEST_SUBJECT])
    name = available.error_of_number(number[1], context) if number else ""
    if number and name and (found := explain(name, context)):
        return found[0], f"Error {number[1]} is {name}. {found[1]}"
    return None


def _is_unread(subject: str) -> bool:
    """Return whether the compiler could not read a type that a message names."""
    first, *lines = subject.split("\n")
    if "<error-type>" in first or "<error-constant>" in first:
        return True
    unread = any("types are: " in line and "<error-type>" in line for line in lines)
    return unread and _UNREAD.search(first) is not None


def annotate(diagnostics: Iterable[Diagnostic], context: BuildContext) -> tuple[Diagnostic, ...]:
    """Return the diagnostics with hints; no hint appears twice."""
    annotated: list[Diagnostic] = []
    given: set[str] = set()
    for diagnostic in diagnostics:
        hint = cause = ""
        follows = given and CONSEQUENCES.match(diagnostic.message)
        if len(annotated) < _MOST_ANNOTATED and not follows:
            found = explain(diagnostic, context)
            if found and found[1] not in given and not (given and found[0].general):
                hint = found[1]
                given.add(hint)
                if found[0].headline:
                    cause = _ARTICLE.sub(lambda word: word[0].lower(), hint.partition(". ")[0])
        annotated.append(replace(diagnostic, hint=hint, cause=cause))
    return tuple(annotated)

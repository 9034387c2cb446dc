"""Hints: what to do about a compiler's message in this build, looked up in the catalogue.

>>> context = BuildContext(arch=Arch(9, 0), versions={"nvrtc": "12.9.86"})
>>> hint_for("Instruction 'wgmma.fence' not supported on .target 'sm_90'", context)
"'wgmma.fence' is … Compile with arch='sm_90a'."
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rtcompile.messages.catalogue import MESSAGES, KnownMessage
from rtcompile.messages.diagnostics import Diagnostic
from rtcompile.messages.facts import BuildContext

_MOST_ANNOTATED = 50  # a log of a thousand errors has one cause, which the first ones show
_LONGEST_SUBJECT = 20_000


def hint_for(message: Diagnostic | str, context: BuildContext | None = None) -> str:
    """Return the cause of a message, a log or a driver error, and what to do; "" if unknown."""
    found = explain(message, context)
    return found[1] if found else ""


def explain(
    message: Diagnostic | str, context: BuildContext | None = None
) -> tuple[KnownMessage, str] | None:
    """Return the first row of the catalogue that fits a message, and its hint filled in."""
    context = context or BuildContext()
    subject = _subject(message)
    for known in MESSAGES:
        match = known.pattern.search(subject)
        if match is not None:
            hint = known.hint(match, context)
            if hint:
                return known, hint
    return None


def annotate(diagnostics: Iterable[Diagnostic], context: BuildContext) -> tuple[Diagnostic, ...]:
    """Return the diagnostics with their hints filled in; one hint is given once."""
    annotated: list[Diagnostic] = []
    given: set[str] = set()
    for diagnostic in diagnostics:
        hint = hint_for(diagnostic, context) if len(annotated) < _MOST_ANNOTATED else ""
        annotated.append(diagnostic if hint in given else replace(diagnostic, hint=hint))
        given.add(hint)
    return tuple(annotated)


def _subject(message: Diagnostic | str) -> str:
    """Lay out what patterns match: ``file: message``, the excerpt, the notes, a line each."""
    if isinstance(message, str):
        return message[:_LONGEST_SUBJECT]
    parts = [f"{message.file}: {message.message}", message.excerpt.partition("\n")[0]]
    parts += [note.message for note in message.notes[:5]]
    return "\n".join(parts)[:_LONGEST_SUBJECT]

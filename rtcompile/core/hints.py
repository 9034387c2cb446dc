"""What to do about a compiler's message: the catalogue looked up, its answer true of this build.

>>> context = BuildContext(arch=Arch(9, 0), versions={"nvrtc": "12.9.86"})
>>> hint_for("Instruction 'wgmma.fence' not supported on .target 'sm_90'", context)
"'wgmma.fence' is … Compile with arch='sm_90a'."
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from rtcompile.core.arch import Arch
from rtcompile.core.context import BuildContext
from rtcompile.core.diagnostics import Diagnostic
from rtcompile.core.known_messages import MESSAGES, KnownMessage

__all__ = ["BuildContext", "KnownMessage", "annotate", "check_code", "explain", "hint_for"]

_MOST_ANNOTATED = 50  # a log of a thousand errors has one cause; its first ones tell
_LONGEST_SUBJECT = 20_000


def hint_for(message: Diagnostic | str, context: BuildContext | None = None) -> str:
    """Return the cause of a message and what to do about it.

    Parameters
    ----------
    message : Diagnostic or str
        A message, or a whole log of an unknown format, or the name of a driver error.
    context : BuildContext, optional
        The build it belongs to; without one the hint is general.

    Returns
    -------
    str
        Sentences; empty where nothing is known.
    """
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


_TRAPS = re.compile(
    rb"Attempting to use (?P<what>[ -~]{1,80}?) without (?P<needs>[ -~]{1,60})"
    rb"|Arch conditional MMA instruction used without targeting (?P<arch>[ -~]{1,60})"
)
_STATIC_SHARED_LIMIT = 48 << 10


def check_code(code: bytes, arch: Arch) -> tuple[str, ...]:
    """Find what a compiler accepted in silence and a device would not run as meant.

    Parameters
    ----------
    code : bytes
        A cubin, or anything else, in which nothing is found.
    arch : Arch
        The architecture it was compiled for.

    Returns
    -------
    tuple of str
        One warning each: instructions that CuTe or CUTLASS replaced by a trap because the
        architecture has them not; more static shared memory than a kernel may have.
    """
    return (*_traps(code, arch), *_oversized(code))


def _traps(code: bytes, arch: Arch) -> list[str]:
    # CuTe guards each instruction by a macro of its own; without it the call prints and aborts.
    found = {match[0].decode("ascii"): match for match in _TRAPS.finditer(code)}
    if not found:
        return []
    specific = Arch(arch.major, arch.minor, "a")
    advice = f"compile for {specific}" if not arch.suffix and arch.major >= 9 else "another atom"
    quoted = ", ".join(sorted(found)[:3])
    return [
        f"The code holds traps instead of instructions: CuTe or CUTLASS says {quoted!r}. "
        f"{arch} has not what the source asks for: {advice}."
    ]


def _oversized(code: bytes) -> list[str]:
    from rtcompile.core import cubin  # read only when a build is checked, not for every hint

    try:
        kernels = cubin.read(code).kernels
    except ValueError:
        return []
    return [
        f"{kernel.name} has {kernel.shared_bytes} bytes of static shared memory; a kernel may have "
        f"{_STATIC_SHARED_LIMIT}. Make it dynamic (extern __shared__) and set "
        "max_dynamic_shared_size_bytes."
        for kernel in kernels
        if kernel.shared_bytes > _STATIC_SHARED_LIMIT
    ]

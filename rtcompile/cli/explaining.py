"""``rtcompile explain``: a log, a message or the name of an error, explained."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from rtcompile import toolkit
from rtcompile.cli import output
from rtcompile.cli.pasted import message_in
from rtcompile.core.arch import Arch
from rtcompile.errors import InvalidRequest
from rtcompile.messages import diagnostics, hints, rendering
from rtcompile.messages.catalogue import MESSAGES
from rtcompile.messages.diagnostics import Diagnostic
from rtcompile.messages.facts import BuildContext
from rtcompile.toolkit.packages import missing_header

_MOST_BYTES = 64 << 20  # bytes read of a log; diagnostics.parse looks at both its ends only


def run(given: Namespace) -> int:
    """Print what is known; exits with 1 where nothing is."""
    row = next((known for known in MESSAGES if known.id == given.what), None)
    if row is not None:
        text = f"{row.id}: {row.pattern.pattern}\n{row.cause}\n{row.fix}\nSeen since {row.since}."
        fields = {"id": row.id, "pattern": row.pattern.pattern, "cause": row.cause, "fix": row.fix}
        output.say(given, fields, text)
        return 0
    text = _text(given.what)
    if not text.strip():
        raise InvalidRequest("nothing to explain: give a message, a file, or a log on stdin")
    found = hints.annotate(diagnostics.parse(message_in(text)), _context(given))
    explained = any(diagnostic.hint for diagnostic in found)
    if given.json:
        output.print_json({"ok": explained, "diagnostics": [asdict(d) for d in found]})
    else:
        print(_rendered(found, given))
        if not explained:
            print("  Nothing is known about it; `rtcompile doctor` looks at the install.")
    return 0 if explained else 1


def _rendered(found: Sequence[Diagnostic], given: Namespace) -> str:
    width = output.terminal_width(sys.stdout, 100)
    return rendering.render(found, width=width, color=output.uses_color(given, sys.stdout))


def _text(what: str | None) -> str:
    if what is None:
        if sys.stdin.isatty():
            print("paste a log or a traceback; Ctrl-D ends it", file=sys.stderr, flush=True)
        return sys.stdin.buffer.read(_MOST_BYTES).decode("utf-8", "replace")
    if os.path.isfile(what):
        with open(what, "rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    return what


def _context(given: Namespace) -> BuildContext:
    """Return the context for hints: this machine's toolchain, and the given architecture."""
    try:
        arch = Arch.parse(given.arch) if given.arch else None
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    toolchain = toolkit.current()
    return BuildContext(
        arch=arch,
        versions=toolchain.versions,
        search=toolchain.search,
        package_of=partial(missing_header, toolchain=toolchain),
    )

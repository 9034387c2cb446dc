"""``rtcompile explain`` and ``doctor``: explain a message or an installation."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from dataclasses import asdict

from rtcompile.checkup import examine, explain, verdict
from rtcompile.checkup.checks import Check
from rtcompile.cli import output
from rtcompile.errors import InvalidRequest
from rtcompile.messages.catalogue import MESSAGES
from rtcompile.messages.rendering import render
from rtcompile.styling import filled, painted

_MOST_BYTES = 64 << 20  # bytes read of a log; diagnostics.parse looks at both its ends only


def run(given: Namespace) -> int:
    """Print what is known about the messages; exit with 1 if nothing is."""
    row = next((known for known in MESSAGES if known.id == given.what), None)
    if row is not None:
        text = f"{row.id}: {row.pattern.pattern}\n{row.cause}\n{row.fix}\nSeen since {row.since}."
        fields = {"id": row.id, "pattern": row.pattern.pattern, "cause": row.cause, "fix": row.fix}
        output.print_result(given, fields, text)
        return 0
    text = _text(given.what)
    if not text.strip():
        raise InvalidRequest("nothing to explain: give a message, a file, or a log on stdin")
    found = explain(text, arch=given.arch)
    explained = any(diagnostic.hint for diagnostic in found)
    if given.json:
        output.print_json({"ok": explained, "diagnostics": [asdict(d) for d in found]})
    else:
        width = output.terminal_width(sys.stdout, 100)
        print(painted(render(found, width=width), output.uses_color(sys.stdout)))
        if not explained:
            print("  Nothing is known about it; `rtcompile doctor` checks the installation.")
    return 0 if explained else 1


def _text(what: str | None) -> str:
    if what is None:
        if sys.stdin.isatty():
            print("paste a log or a traceback; Ctrl-D ends it", file=sys.stderr, flush=True)
        return sys.stdin.buffer.read(_MOST_BYTES).decode("utf-8", "replace")
    if os.path.isfile(what):
        with open(what, "rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    return what


# --- ``rtcompile doctor`` -------------------------------------------------------------------------

_CHECK_MARKS = {"ok": "✓", "note": "·", "warning": "!", "error": "✗"}
_WIDTH = 100  # where there is no terminal
_SUMMARY = {0: "All is well.", 1: "Something is worth a look.", 2: "Something does not work."}


def doctor(given: Namespace) -> int:
    """Print each check when it is done; return the verdict as exit code."""
    color = output.uses_color(sys.stdout)
    width = output.terminal_width(sys.stdout, _WIDTH)
    done: list[Check] = []
    for check in examine(probes=not given.no_probes):
        done.append(check)
        if not given.json:
            print(_check_lines(check, color, width), flush=True)
    code = verdict(done)
    if given.json:
        output.print_json({"ok": code == 0, "verdict": code, "checks": [asdict(c) for c in done]})
    else:
        print(painted([("location", _SUMMARY[code])], color))
    return code


def _check_lines(check: Check, color: bool, width: int) -> str:
    """Return a check's lines: the mark, the name and the detail, and below them what to do."""
    mark = painted([(check.status, _CHECK_MARKS[check.status])], color)
    text = filled(f"{check.name}: {check.detail}", width - 2, "", "    ")
    hint = "\n" + filled(f"→ {check.hint}", width, "    ", "      ") if check.hint else ""
    return f"{mark} {text}{hint}"

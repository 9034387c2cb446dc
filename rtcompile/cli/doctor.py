"""``rtcompile doctor``: the checks of `rtcompile.doctor`, as text or JSON, and an exit code."""

from __future__ import annotations

import sys
import textwrap
from argparse import Namespace
from dataclasses import asdict

from rtcompile.cli import output
from rtcompile.doctor import Check, examine, verdict

__all__ = ["run"]

_MARKS = {"ok": "✓", "note": "·", "warning": "!", "error": "✗"}
_SUMMARY = {0: "All is well.", 1: "Something is worth a look.", 2: "Something does not work."}


def run(given: Namespace) -> int:
    """Print each check when it is done; the exit code is the verdict."""
    color = output.uses_color(given, sys.stdout)
    done: list[Check] = []
    for check in examine(probes=not given.no_probes):
        done.append(check)
        if not given.json:
            print(_line(check, color), flush=True)
    code = verdict(done)
    if given.json:
        output.print_json({"ok": code == 0, "verdict": code, "checks": [asdict(c) for c in done]})
    else:
        print(output.paint(_SUMMARY[code], "bold", color))
    return code


def _line(check: Check, color: bool) -> str:
    mark = output.paint(_MARKS[check.status], check.status, color)
    text = f"{mark} {check.name:28} {check.detail}"
    if check.hint:
        text += "\n" + textwrap.fill(
            check.hint,
            96,
            initial_indent=" " * 31 + "→ ",
            subsequent_indent=" " * 33,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return text

"""``rtcompile doctor``: the checks of `rtcompile.doctor`, as text or JSON, and an exit code."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import asdict

from rtcompile.cli import output
from rtcompile.doctor import examine, verdict
from rtcompile.doctor.checks import Check
from rtcompile.styling import filled

_MARKS = {"ok": "✓", "note": "·", "warning": "!", "error": "✗"}
_NAME_WIDTH = 28
_WIDTH = 100  # where there is no terminal
_NARROW = 90  # in fewer columns the detail does not fit beside the name
_SUMMARY = {0: "All is well.", 1: "Something is worth a look.", 2: "Something does not work."}


def run(given: Namespace) -> int:
    """Print each check when it is done; return the verdict as exit code."""
    color = output.uses_color(given, sys.stdout)
    width = output.terminal_width(sys.stdout, _WIDTH)
    done: list[Check] = []
    for check in examine(probes=not given.no_probes):
        done.append(check)
        if not given.json:
            print(_line(check, color, width), flush=True)
    code = verdict(done)
    if given.json:
        output.print_json({"ok": code == 0, "verdict": code, "checks": [asdict(c) for c in done]})
    else:
        print(output.paint(_SUMMARY[code], "location", color))
    return code


def _line(check: Check, color: bool, width: int) -> str:
    """Return a check's lines, with the detail beside the name, or below it in a narrow terminal."""
    mark = output.paint(_MARKS[check.status], check.status, color)
    beside = width >= _NARROW
    indent = " " * (_NAME_WIDTH + 3 if beside else 4)
    name = f"{mark} {check.name:{_NAME_WIDTH}} " if beside else f"{mark} {check.name}\n{indent}"
    text = name + filled(check.detail, width, indent, indent).lstrip()
    if check.hint:
        text += "\n" + filled(f"→ {check.hint}", width, indent, f"{indent}  ")
    return text

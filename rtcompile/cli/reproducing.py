"""``rtcompile repro``: lists the folders with reproducers of crashes, and runs one again."""

from __future__ import annotations

import json
import os
import subprocess
from argparse import Namespace
from typing import Any

from rtcompile.cache.folder import Folder
from rtcompile.cli import output
from rtcompile.errors import InvalidRequest
from rtcompile.settings import Settings


def run(given: Namespace) -> int:
    """List the reproducers, show one, or run one and return the compiler's exit code."""
    kept = Folder(Settings.from_environ().cache_dir)
    home = kept.file("reproducers")
    names = sorted(name for name, _ in kept.listing("reproducers") if not name.startswith("."))
    if given.folder is None:
        return _list(home, names, given)
    folder = os.path.join(home, given.folder) if given.folder in names else given.folder
    report = _report(folder)
    if report is None:
        raise InvalidRequest(
            f"{given.folder}: no reproducer; `rtcompile repro` lists those in {home}"
        )
    if given.run:
        return subprocess.run([os.path.join(folder, "run.sh")]).returncode
    if given.json:
        output.print_json({"folder": folder, **report})
    else:
        print(folder)
        print("\n".join(f"  {label}: {_text(value)}" for label, value in report.items()))
        print(f"  again: {os.path.join(folder, 'run.sh')}")
    return 0


def _list(home: str, names: list[str], given: Namespace) -> int:
    reports = {name: report for name in names if (report := _report(os.path.join(home, name)))}
    if given.json:
        output.print_json({"directory": home, "reproducers": reports})
    elif not reports:
        print(f"no reproducers in {home}")
    else:
        rows = [(name, r.get("program", ""), r.get("what", "")) for name, r in reports.items()]
        print(output.table(("folder", "program", "what"), rows))
    return 0


def _report(folder: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(folder, "report.json"), encoding="utf-8") as file:
            report = json.load(file)
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) else None


def _text(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return str(value)

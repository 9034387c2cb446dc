"""``rtcompile clangd``: the compile database of a project's kernels, for an editor."""

from __future__ import annotations

import os
from argparse import Namespace

from rtcompile.cli import output
from rtcompile.core.arch import Arch
from rtcompile.editor import database
from rtcompile.settings import Settings


def run(given: Namespace) -> int:
    """Write the database and say what is in it."""
    settings = Settings.from_environ()
    arch = Arch.parse(given.arch or "sm_80")
    root = os.path.abspath(given.root)
    entries = database.write(root, given.paths or [root], given.compiler_options, arch, settings)
    path = os.path.join(root, "compile_commands.json")
    shown = [(os.path.relpath(e.origin, root), os.path.relpath(e.file, root)) for e in entries]
    rows = [(origin, file if file != origin else "") for origin, file in shown]
    where = ", ".join(given.paths or [root])
    listed = f"{where}: no .cu or .cuh file, and no kernel that is a literal of a Python file"
    if rows:
        listed = output.table(("kernel of", "written to"), rows)
    files = [{"file": entry.file, "origin": entry.origin} for entry in entries]
    text = f"{listed}\n{path}: {len(entries)} file{'s' * (len(entries) != 1)}"
    output.say(given, {"path": path, "files": files}, text)
    return 0

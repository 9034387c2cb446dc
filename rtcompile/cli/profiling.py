"""``rtcompile profile``: where the time of a build goes."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from rtcompile.cli import output
from rtcompile.cli.requests import overrides, requests
from rtcompile.errors import InvalidRequest
from rtcompile.settings import Settings
from rtcompile.watching.profiling import profile


def run(given: Namespace) -> int:
    """Print a profile per architecture, or one JSON object of them."""
    for name, suffix in (("html", ".html"), ("trace", ".json")):
        file = getattr(given, name)
        if file is not None and not file.endswith(suffix):
            raise InvalidRequest(f"--{name} needs a file that ends in {suffix}, not {file!r}")
    settings = Settings.from_environ().override(**overrides(given))
    asked = list(requests(given, given.file))
    if len(asked) > 1 and (given.html or given.trace):
        raise InvalidRequest("--html and --trace are for one architecture: give one by --arch")
    profiles = []
    for request in asked:
        found = profile(request, settings)
        profiles.append(found.fields())
        if not given.json:
            print(found.text(max(1, given.top), output.terminal_width(sys.stdout, 0)))
        for file in filter(None, (given.html, given.trace)):
            found.save(file)
            if not given.json:
                print(f"\n{os.path.abspath(file)}")
    if given.json:
        output.print_json({"ok": True, "file": given.file, "profiles": profiles})
    return 0

"""``rtcompile inspect`` and ``profile``: what kernels take of a device, and their builds of time."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from rtcompile.build import pipeline
from rtcompile.build.measured import measure
from rtcompile.cli import output
from rtcompile.cli.caching import find_entry
from rtcompile.cli.output import overrides, requests
from rtcompile.errors import InvalidRequest
from rtcompile.extras.devtools.profile import Profile
from rtcompile.extras.resources import REPORT_SPILLS, Report
from rtcompile.inspect.cubin import kind_of
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.values import absolute
from rtcompile.settings import Settings


def run(given: Namespace) -> int:
    """Print the resources of each kernel."""
    results = []
    for code in _subjects(given):
        found = Report.of(code, given.kernel, given.block, given.dynamic_shared)
        results.append(found.as_dict())
        if not given.json:
            table = output.table(*found.rows()) if found.kernels else output.NO_KERNELS
            print(f"{found.title}\n{table}")
    if given.json:
        output.print_json({"what": given.what, "results": results})
    return 0


def _subjects(given: Namespace) -> list[ObjectCode | bytes]:
    """Return the codes to inspect: a cubin, those of a source, or that of a cache entry."""
    if not os.path.isfile(given.what):
        return [find_entry(given.what).obj]
    with open(given.what, "rb") as file:
        data = file.read()
    kind = kind_of(data)
    if kind == "cubin":
        return [data]
    if kind is not None:
        why = "only a cubin contains its kernels' resources"
        raise InvalidRequest(f"{given.what} is {kind}: {why}")
    settings = Settings.from_environ().override(**overrides(given))
    found = requests(given, given.what, REPORT_SPILLS)
    return [pipeline.build(request, settings) for request in found]


def profile_kernels(given: Namespace) -> int:
    """Print a profile per architecture, or one JSON object of them."""
    if given.trace is not None and not given.trace.endswith(".json"):
        raise InvalidRequest(f"--trace needs a file that ends in .json, not {given.trace!r}")
    settings = Settings.from_environ().override(**overrides(given))
    requested = list(requests(given, given.file))
    if len(requested) > 1 and given.trace:
        raise InvalidRequest("--trace is for one architecture: give one by --arch")
    profiles = []
    for request in requested:
        found = Profile.of(measure(request, settings))
        profiles.append(found.fields())
        if not given.json:
            print(found.text(max(1, given.top), output.terminal_width(sys.stdout, 0)))
        if given.trace:
            found.save(given.trace)
            if not given.json:
                print(f"\n{absolute(given.trace)}")
    if given.json:
        output.print_json({"ok": True, "file": given.file, "profiles": profiles})
    return 0

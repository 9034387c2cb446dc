"""``rtcompile profile``: where the time of a build goes; ``headers``: what a source includes."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rtcompile.building import planned
from rtcompile.building.failures import as_error
from rtcompile.building.plan import Plan
from rtcompile.cli import output
from rtcompile.cli.requests import overrides, requests
from rtcompile.compilers import nvrtc
from rtcompile.core import command_lines, cxx
from rtcompile.core.header import SearchDir
from rtcompile.core.includes import labelled, place
from rtcompile.core.units import CompileFailure, Limits, TranslationUnit
from rtcompile.errors import InvalidRequest, RtcompileError
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


@dataclass(slots=True)
class _Header:
    """One inclusion: the file, and the files that it includes in turn."""

    path: str
    depth: int
    first: bool  # a later inclusion of the same file costs almost nothing, thanks to its guard
    included: list[_Header] = field(default_factory=list)

    def walk(self) -> Iterator[_Header]:
        yield self
        for header in self.included:
            yield from header.walk()

    def cost(self) -> tuple[int, int]:
        """The numbers of files and bytes that were read because of this inclusion."""
        sizes = [_size(header.path) for header in self.walk() if header.first]
        return len(sizes), sum(sizes)


@dataclass(frozen=True, slots=True)
class _FrontEnd:
    """The headers that the front end read, and the time it took."""

    included: list[_Header]
    milliseconds: float
    error: RtcompileError | None


def headers(given: Namespace) -> int:
    """Print one tree per architecture; exits with 1 where the source does not parse."""
    settings = Settings.from_environ().override(timeout=given.timeout)
    results, code = [], 0
    for request in requests(given, given.file):
        plan = planned.plan(request, settings)
        parsed = _parse(plan, request.source, settings)
        times = _times(plan, settings) if given.time else {}
        if given.json:
            results.append(_header_fields(plan, parsed, times))
        else:
            print("\n".join(_header_lines(plan, parsed, times, given)))
        if parsed.error is not None:
            code = 1
            if not given.json:
                output.failure(parsed.error, given, given.file)
    if given.json:
        output.print_json({"ok": code == 0, "file": given.file, "results": results})
    return code


def _parse(plan: Plan, source: str, settings: Settings) -> _FrontEnd:
    """Run only NVRTC's front end, in a worker."""
    library = plan.toolchain.require_nvrtc()
    directories = [directory.path for directory in plan.search]
    flags = command_lines.for_nvrtc(
        plan.options, plan.choice.arch, "ptx", library.version_pair, directories
    )
    unit = TranslationUnit(
        source, plan.question.name, (*flags, "--fdevice-syntax-only"), (), "ptx", plan.choice.arch
    )
    limits = Limits(settings.timeout, settings.memory_limit)
    reply, _ = nvrtc.observe("compile_unit", unit, library, limits)
    if isinstance(reply, CompileFailure):
        raise as_error(reply, plan)
    error = None
    if reply["error"]:
        error = as_error(CompileFailure(reply["error"], reply["log"], flags, "nvrtc"), plan)
    spans = {phase: end - begin for phase, begin, end in reply["spans"]}
    seconds = spans.get("front end", spans["compile"])
    return _FrontEnd(_tree(reply["trace"] or b""), seconds * 1e3, error)


def _tree(trace: bytes) -> list[_Header]:
    """Parse the trace, which has a line per inclusion, indented by its level."""
    roots: list[_Header] = []
    branch: list[_Header] = []
    seen: set[str] = set()
    for line in trace.decode("utf-8", "surrogateescape").split("\n"):
        path = line.lstrip(" ")
        if not path or path.startswith("__nv_"):
            continue
        header = _Header(path, len(line) - len(path), path not in seen)
        seen.add(path)
        del branch[header.depth :]
        (branch[-1].included if branch else roots).append(header)
        branch.append(header)
    return roots


def _times(plan: Plan, settings: Settings) -> dict[str, float]:
    """Return the front end's milliseconds for each of the source's includes, compiled alone."""
    empty = _parse(plan, "", settings).milliseconds
    times = {}
    for directive in cxx.Text(plan.request.source).directives():
        if directive.included[:1] not in ("<", '"'):
            continue
        alone = _parse(plan, f"#include {directive.included}\n", settings)
        if alone.included:
            times[alone.included[0].path] = max(0.0, alone.milliseconds - empty)
    return times


def _header_fields(plan: Plan, parsed: _FrontEnd, times: dict[str, float]) -> dict[str, Any]:
    def branch(header: _Header) -> dict[str, Any]:
        files, size = header.cost()
        fields: dict[str, Any] = {
            "path": header.path,
            "label": _label(header.path, plan.search),
            "files": files,
            "bytes": size,
            "first": header.first,
        }
        if header.path in times and header.depth == 0:
            fields["milliseconds"] = round(times[header.path], 1)
        return {**fields, "included": [branch(child) for child in header.included]}

    return {
        "arch": str(plan.choice.arch),
        "milliseconds": round(parsed.milliseconds, 1),
        "error": output.error_fields(parsed.error) if parsed.error else None,
        "included": [branch(header) for header in parsed.included],
    }


def _header_lines(
    plan: Plan, parsed: _FrontEnd, times: dict[str, float], given: Namespace
) -> Iterator[str]:
    everything = [header for root in parsed.included for header in root.walk()]
    if given.why is not None:
        yield from _chain(parsed.included, given.why, plan.search)
        return
    size = sum(_size(header.path) for header in everything if header.first)
    count = sum(header.first for header in everything)
    yield (
        f"{given.file} for {plan.choice.arch}: {count} header{'s' * (count != 1)}, "
        f"{output.human_size(size)}, "
        f"front end {parsed.milliseconds:.0f} ms"
    )
    shown = everything if given.all else parsed.included
    rows = []
    for header in shown:
        files, size = header.cost()
        alone = f"{times[header.path]:.0f} ms" if not header.depth and header.path in times else ""
        name = "  " * header.depth + labelled(header.path, plan.search)
        rows.append((files, output.human_size(size), *([alone] if times else []), name))
    columns = ("files", "size", *(["alone"] if times else []), "header")
    if rows:
        yield output.table(columns, rows)


def _chain(included: Sequence[_Header], what: str, search: Sequence[SearchDir]) -> Iterator[str]:
    """Yield the chain of includes from the source to a header's first inclusion, a line each."""

    def find(headers: Sequence[_Header]) -> list[_Header] | None:
        for header in headers:
            if header.path == what or header.path.endswith(f"/{what}"):
                return [header]
            rest = find(header.included)
            if rest is not None:
                return [header, *rest]
        return None

    chain = find(included)
    if chain is None:
        raise InvalidRequest(f"{what} is not included")
    for header in chain:
        yield "  " * header.depth + labelled(header.path, search)


def _label(path: str, search: Sequence[SearchDir]) -> str:
    index, _ = place(path, search)
    return search[index].label if index >= 0 else ""


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0

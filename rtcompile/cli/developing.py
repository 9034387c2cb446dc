"""``rtcompile clangd``, ``profile`` and ``headers``: tools for authors of kernels."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from rtcompile import toolkit
from rtcompile.build import planned
from rtcompile.build.failures import as_error
from rtcompile.build.plan import Plan
from rtcompile.build.profile import profile
from rtcompile.cli import output
from rtcompile.cli.output import overrides, requests
from rtcompile.compilers import nvrtc
from rtcompile.errors import InvalidRequest, RtcompileError
from rtcompile.extras.devtools import compile_database
from rtcompile.files.headers import SearchDir
from rtcompile.request import command_lines, cxx
from rtcompile.request.sources import labelled, split_path
from rtcompile.request.units import CompileFailure, Limits, TranslationUnit
from rtcompile.request.values import Arch
from rtcompile.settings import Settings

# --- ``rtcompile clangd`` -------------------------------------------------------------------------


def write_database(given: Namespace) -> int:
    """Write the database and print its contents."""
    search = toolkit.current(Settings.from_environ()).search
    arch = Arch.parse(given.arch or "sm_80")
    root = os.path.abspath(given.root)
    entries = compile_database.write(
        root, given.paths or [root], given.compiler_options, arch, search
    )
    path = os.path.join(root, "compile_commands.json")
    shown = [(os.path.relpath(e.origin, root), os.path.relpath(e.file, root)) for e in entries]
    rows = [(origin, file if file != origin else "") for origin, file in shown]
    where = ", ".join(given.paths or [root])
    listed = f"{where}: no .cu or .cuh file, and no kernel that is a literal of a Python file"
    if rows:
        listed = output.table(("kernel of", "written to"), rows)
    files = [{"file": entry.file, "origin": entry.origin} for entry in entries]
    text = f"{listed}\n{path}: {len(entries)} file{'s' * (len(entries) != 1)}"
    output.print_result(given, {"path": path, "files": files}, text)
    return 0


# --- ``rtcompile profile`` and ``rtcompile headers`` ------------------------------------------------

# One inclusion: its path, the files and bytes read because of it, and the headers it includes.
_Header = dict[str, Any]


def profile_kernels(given: Namespace) -> int:
    """Print a profile per architecture, or one JSON object of them."""
    for name, suffix in (("html", ".html"), ("trace", ".json")):
        file = getattr(given, name)
        if file is not None and not file.endswith(suffix):
            raise InvalidRequest(f"--{name} needs a file that ends in {suffix}, not {file!r}")
    settings = Settings.from_environ().override(**overrides(given))
    requested = list(requests(given, given.file))
    if len(requested) > 1 and (given.html or given.trace):
        raise InvalidRequest("--html and --trace are for one architecture: give one by --arch")
    profiles = []
    for request in requested:
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


def headers(given: Namespace) -> int:
    """Print one tree of includes per architecture; exits with 1 where the source does not parse."""
    settings = Settings.from_environ().override(timeout=given.timeout)
    results, code = [], 0
    for request in requests(given, given.file):
        plan = planned.plan(request, settings)
        included, milliseconds, error = _front_end(plan, request.source, settings)
        if given.time:
            _add_times(included, plan, settings)
        found = {
            "arch": str(plan.choice.arch),
            "milliseconds": round(milliseconds, 1),
            "error": output.error_fields(error) if error else None,
            "included": included,
        }
        results.append(found)
        if not given.json:
            print(
                "\n".join(
                    _chain(found, plan, given)
                    if given.why is not None
                    else _rows(found, plan, given)
                )
            )
        if error is not None:
            code = 1
            if not given.json:
                output.failure(error, given, given.file)
    if given.json:
        output.print_json({"ok": code == 0, "file": given.file, "results": results})
    return code


def _front_end(
    plan: Plan, source: str, settings: Settings
) -> tuple[list[_Header], float, RtcompileError | None]:
    """Run only NVRTC's front end, in a worker; return the tree of includes, milliseconds, the error."""
    library = plan.toolchain.require_nvrtc()
    directories = [directory.path for directory in plan.search]
    flags = command_lines.for_nvrtc(
        plan.options, plan.choice.arch, "ptx", library.version_pair, directories
    )
    unit = TranslationUnit(
        source, plan.key_inputs.name, (*flags, "--fdevice-syntax-only"), (), "ptx", plan.choice.arch
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
    return _tree(reply["trace"] or b"", plan.search), seconds * 1e3, error


def _tree(trace: bytes, search: Sequence[SearchDir]) -> list[_Header]:
    """Return the inclusions in a trace, which has a line for each, indented by its level."""
    roots: list[_Header] = []
    branch: list[_Header] = []
    seen: set[str] = set()
    for line in trace.decode("utf-8", "surrogateescape").split("\n"):
        path = line.lstrip(" ")
        if not path or path.startswith("__nv_"):
            continue
        del branch[len(line) - len(path) :]
        position, _ = split_path(path, search)
        header: _Header = {
            "path": path,
            "label": search[position].label if position >= 0 else "",
            "files": 0,
            "bytes": 0,
            "first": path not in seen,
            "included": [],
        }
        (branch[-1]["included"] if branch else roots).append(header)
        branch.append(header)
        # A later inclusion of the same file costs almost nothing, thanks to its guard.
        for each in branch if header["first"] else ():
            each["files"] += 1
            each["bytes"] += _size(path)
        seen.add(path)
    return roots


def _add_times(included: list[_Header], plan: Plan, settings: Settings) -> None:
    """Add the front end's milliseconds for each of the source's includes, compiled alone."""
    _, empty, _ = _front_end(plan, "", settings)
    times = {}
    for directive in cxx.Text(plan.request.source).directives():
        if directive.included[:1] in ("<", '"'):
            found, alone, _ = _front_end(plan, f"#include {directive.included}\n", settings)
            if found:
                times[found[0]["path"]] = round(max(0.0, alone - empty), 1)
    for header in included:
        if header["path"] in times:
            header["milliseconds"] = times[header["path"]]


def _walk(included: Sequence[_Header], depth: int = 0) -> Iterator[tuple[int, _Header]]:
    for header in included:
        yield depth, header
        yield from _walk(header["included"], depth + 1)


def _rows(found: dict[str, Any], plan: Plan, given: Namespace) -> Iterator[str]:
    """Yield the totals, and a table of all inclusions or of the source's own."""
    included: list[_Header] = found["included"]
    count, size = (sum(header[what] for header in included) for what in ("files", "bytes"))
    yield (
        f"{given.file} for {found['arch']}: {count} header{'s' * (count != 1)}, "
        f"{output.human_size(size)}, front end {found['milliseconds']:.0f} ms"
    )
    rows = []
    for depth, header in _walk(included):
        if given.all or not depth:
            alone = f"{header['milliseconds']:.0f} ms" if "milliseconds" in header else ""
            name = "  " * depth + labelled(header["path"], plan.search)
            shown = output.human_size(header["bytes"])
            rows.append((header["files"], shown, *([alone] if given.time else []), name))
    if rows:
        yield output.table(("files", "size", *(["alone"] if given.time else []), "header"), rows)


def _chain(found: dict[str, Any], plan: Plan, given: Namespace) -> Iterator[str]:
    """Yield the chain of includes from the source to a header's first inclusion, a line each."""
    chain: list[str] = []
    for depth, header in _walk(found["included"]):
        path = header["path"]
        chain[depth:] = ["  " * depth + labelled(path, plan.search)]
        if path == given.why or path.endswith(f"/{given.why}"):
            yield from chain
            return
    raise InvalidRequest(f"{given.why} is not included")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0

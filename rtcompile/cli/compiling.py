"""``rtcompile compile``: compiles each source for each architecture, in parallel."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from concurrent.futures import Future, as_completed
from typing import Any

from rtcompile.build.many import submit
from rtcompile.cli import exit_code, output
from rtcompile.cli.output import overrides, requests, set_jobs
from rtcompile.errors import InvalidRequest, RtcompileError
from rtcompile.inspect.symbols import no_kernels, symbols
from rtcompile.messages import diagnostics
from rtcompile.messages.rendering import spelled
from rtcompile.named import NamedTuple
from rtcompile.request.object_code import KERNEL_MARKS, ObjectCode
from rtcompile.request.request import CompileRequest

_EXTENSIONS = {kind: f".{kind}" for kind in ("cubin", "ptx", "ltoir", "fatbin")} | {"object": ".o"}
_MOST_WARNINGS = 5


class _FileBuild(NamedTuple):
    """One build: its source file, its request, and the file for its code."""

    file: str
    request: CompileRequest
    path: str


def run(given: Namespace) -> int:
    """Build everything."""
    set_jobs(given)
    builds = _builds(given)
    futures = submit([build.request for build in builds], overrides(given))
    of_future: dict[Future[ObjectCode], _FileBuild] = dict(zip(futures, builds, strict=True))
    code, results = 0, []
    try:
        for count, future in enumerate(as_completed(futures), 1):
            build, error = of_future[future], future.exception()
            if error is not None:
                if not isinstance(error, RtcompileError):
                    raise error
                code = max(code, exit_code(error))
                arch = build.request.arch and str(build.request.arch)
                fields = {"file": build.file, "arch": arch}
                results.append({"ok": False, **fields, "error": output.error_fields(error)})
                if not given.json:
                    output.failure(error, given, build.file)
                continue
            built = future.result()
            results.append(_fields(build, built))
            _write(build.path, built.code)
            if not (given.json or given.quiet):
                stream = sys.stderr if given.output == "-" else sys.stdout
                line = _line(f"[{count}/{len(builds)}]", build, built)
                print(line, file=stream, flush=True)
    finally:
        for future in futures:
            future.cancel()
    if given.json:
        output.print_json({"ok": code == 0, "results": results})
    return code


def _builds(given: Namespace) -> list[_FileBuild]:
    if given.output == "-" and given.json:
        raise InvalidRequest("-o - writes the code to stdout: --json prints there too")
    if given.output == "-" and given.target != "ptx" and sys.stdout.isatty():
        raise InvalidRequest(
            f"a {given.target} is binary and cannot go to a terminal: redirect stdout"
        )
    requested = [(file, request) for file in given.files for request in requests(given, file)]
    outputs = len(requested)
    if given.output == "-" and outputs > 1:
        raise InvalidRequest(f"-o - takes one build, and this makes {outputs}; give a folder")
    if outputs > 1 and _is_file(given.output):
        raise InvalidRequest(
            f"-o {given.output} is one file, and this makes {outputs} builds; give a folder"
        )
    builds = []
    file_of: dict[str, str] = {}
    for file, request in requested:
        path = _path(given.output, file, request, single=outputs == 1)
        builds.append(_FileBuild(file, request, path))
        other = file_of.setdefault(os.path.normpath(path), file)
        if other != file:
            raise InvalidRequest(
                f"{other} and {file} would both be written to {os.path.normpath(path)}; compile "
                "them separately"
            )
    return builds


def _is_file(path: str | None) -> bool:
    """Return whether -o names a file: by its ending, or because it is there."""
    if path is None or os.path.isdir(path) or path.endswith(os.sep):
        return False
    return os.path.isfile(path) or os.path.splitext(path)[1] in _EXTENSIONS.values()


def _path(wanted: str | None, file: str, request: CompileRequest, *, single: bool) -> str:
    if wanted and single and not wanted.endswith(os.sep) and not os.path.isdir(wanted):
        return wanted
    stem = os.path.splitext(os.path.basename(request.name))[0]
    arch = f".{request.arch}" if request.arch is not None else ""
    extension = _EXTENSIONS[request.target]
    return os.path.join(wanted or os.path.dirname(file), f"{stem}{arch}{extension}")


def _write(path: str, code: bytes) -> None:
    if path == "-":
        sys.stdout.buffer.write(code)
        return
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as file:
        file.write(code)


def _fields(build: _FileBuild, built: ObjectCode) -> dict[str, Any]:
    return {
        "ok": True,
        "file": build.file,
        "arch": str(built.arch),
        "kind": built.kind,
        "output": build.path,
        "bytes": len(built.code),
        "backend": built.build.backend,
        "compiler": built.build.compiler,
        "hit": built.build.hit,
        "why": built.build.why,
        "milliseconds": round(built.build.milliseconds, 3),
        "notes": list(built.build.notes),
        "kernels": [*symbols(built)] if built.kind in KERNEL_MARKS else None,
        "lowered_names": dict(built.lowered_names),
        "headers": [header.path for header in built.build.headers],
        "log": built.build.log,
    }


def _line(count: str, build: _FileBuild, built: ObjectCode) -> str:
    how = f"hit ({built.build.hit})" if built.build.hit else f"built by {built.build.backend}"
    size = output.human_size(len(built.code))
    where = "to stdout" if build.path == "-" else f"in {build.path}"
    lines = [
        f"{count} {build.file} for {built.arch}: {how} in {built.build.milliseconds:.0f} ms, "
        f"{size} {where}"
    ]
    lines += [f"    {spelled(note, 'command')}" for note in built.build.notes]
    if why := no_kernels(built, build.request.source):
        lines.append(f"    {spelled(why, 'command')}")
    lines += [f"    {expression} is {name}" for expression, name in built.lowered_names.items()]
    warnings = [d for d in diagnostics.parse(built.build.log) if d.severity == "warning"]
    lines += [f"    {warning}" for warning in warnings[:_MOST_WARNINGS]]
    if len(warnings) > _MOST_WARNINGS:
        lines.append(f"    … {len(warnings) - _MOST_WARNINGS} more warnings")
    if any("ptxas" in option for option in build.request.options):  # -Xptxas -v: its own lines
        ptxas_lines = [text for text in built.build.log.split("\n") if text.startswith("ptxas ")]
        lines += [f"    {text}" for text in ptxas_lines if ": warning" not in text]
    return "\n".join(lines)

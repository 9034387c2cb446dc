"""``rtcompile watch``: what each edit of a source changes in its kernels."""

from __future__ import annotations

import difflib
import json
import os
import re
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from rtcompile.building import pipeline
from rtcompile.cli import exit_code, output
from rtcompile.cli.inspecting import disassembled
from rtcompile.cli.requests import overrides, requests
from rtcompile.core.request import ObjectCode
from rtcompile.errors import CompileError, InvalidRequest, RtcompileError
from rtcompile.settings import Settings
from rtcompile.watching.files import Files, read_text
from rtcompile.watching.report import TELL_SPILLS, KernelReport, report

_COLUMNS: tuple[tuple[str, Callable[[KernelReport], object]], ...] = (
    ("registers", lambda kernel: kernel.registers),
    ("stack B", lambda kernel: kernel.stack_bytes),
    ("stored B", lambda kernel: kernel.spills and kernel.spills.stores),
    ("loaded B", lambda kernel: kernel.spills and kernel.spills.loads),
    ("shared B", lambda kernel: kernel.shared_bytes),
    ("instructions", lambda kernel: kernel.instructions),
    ("code B", lambda kernel: kernel.code_bytes),
)
# An address, and the encoding of an instruction: both change wherever something before them does.
_ADDRESSES = re.compile(r"/\*[0-9a-f]{4,}\*/|/\* 0x[0-9a-f]{16} \*/")


@dataclass(frozen=True, slots=True)
class _Build:
    """What a build's kernels take, and their machine code where it is asked for."""

    kernels: dict[str, KernelReport] = field(default_factory=dict)
    sass: dict[str, str] = field(default_factory=dict)


def run(given: Namespace) -> int:
    """Build, and again whenever the source or a header changes; print what that changed."""
    if given.file == "-":
        raise InvalidRequest("watch needs a file: what stdin gave does not change")
    if given.edits is not None and given.edits < 0:
        raise InvalidRequest(f"--edits {given.edits}: expected a number that is not negative")
    source = os.path.abspath(given.file)
    files = Files(source)
    last: _Build | None = None
    edits, code = 0, 0
    while True:
        files.begin()
        began = time.perf_counter()
        read = {source}
        try:
            built, headers = _built(given)
            code = 0
        except (RtcompileError, OSError) as error:
            code = exit_code(error)
            if last is None and not isinstance(error, CompileError):
                raise  # no edit of the source helps
            if isinstance(error, CompileError):
                read |= {os.path.abspath(one.file) for one in error.diagnostics if one.file}
            read |= {*files, os.path.dirname(source)}
            _print_error(error, given)
        else:
            read |= headers
            _print(last, built, given, time.perf_counter() - began)
            last = built
        files.note(read)
        if edits == given.edits:
            return code
        edits += 1
        files.wait()


def _built(given: Namespace) -> tuple[_Build, set[str]]:
    """Return the build, and the headers that it read."""
    read_text(given.file)  # an error where reading would wait for ever, as a pipe in its place
    asked = list(requests(given, given.file, TELL_SPILLS))
    if len(asked) != 1 or asked[0].target != "cubin":
        raise InvalidRequest("watch builds a cubin for one architecture, as --arch sm_90a")
    settings = Settings.from_environ().override(**overrides(given))
    code: ObjectCode = pipeline.build(asked[0], settings)
    kernels = {kernel.name: kernel for kernel in report(code).kernels}
    sass = disassembled(code.code) if given.sass else {}
    return (
        _Build(kernels, {name: sass.get(kernel.symbol, "") for name, kernel in kernels.items()}),
        {header.path for header in code.build.headers if os.path.isabs(header.path)},
    )


def _print(last: _Build | None, built: _Build, given: Namespace, seconds: float) -> None:
    names = list(dict.fromkeys([*built.kernels, *(last.kernels if last else ())]))
    changed = [name for name in names if last is None or _takes(last, name) != _takes(built, name)]
    difference = _difference(last, built, names) if last is not None and given.sass else ""
    if given.json:
        fields: dict[str, Any] = {
            "ok": True,
            "seconds": round(seconds, 3),
            "kernels": [asdict(kernel) for kernel in built.kernels.values()],
            "changed": changed,
        }
        print(json.dumps(fields | ({"sass": difference} if given.sass else {})), flush=True)
        return
    title = f"{time.strftime('%X')} {given.file}, built in {seconds:.2f} s"
    if not names:
        print(f"{title}\n{output.NO_KERNELS}", flush=True)
        return
    if not changed:
        print(f"{title}: no kernel takes more or less", flush=True)
    else:
        rows = [[name, *_cells(last, built, name)] for name in changed]
        print(f"{title}\n{output.table(['kernel', *(t for t, _ in _COLUMNS)], rows)}", flush=True)
    if difference:
        print(difference, flush=True)


def _takes(build: _Build, name: str) -> tuple[object, ...] | None:
    kernel = build.kernels.get(name)
    return None if kernel is None else tuple(cell(kernel) for _, cell in _COLUMNS)


def _cells(last: _Build | None, built: _Build, name: str) -> list[str]:
    """Return a kernel's figures, with what they were where that is another."""
    before, after = (None if last is None else _takes(last, name)), _takes(built, name)
    if after is None:
        return ["gone", *[""] * (len(_COLUMNS) - 1)]
    if before is None:
        return ["-" if value is None else str(value) for value in after]
    return [
        str("-" if new is None else new) if old == new else f"{old} -> {new}"
        for old, new in zip(before, after, strict=True)
    ]


def _difference(last: _Build, built: _Build, names: list[str]) -> str:
    """Return how the machine code differs, addresses and encodings left out."""
    lines: list[str] = []
    for name in names:
        old, new = (
            [line.rstrip() for line in _ADDRESSES.sub("", build.sass.get(name, "")).splitlines()]
            for build in (last, built)
        )
        lines += difflib.unified_diff(old, new, f"{name} before", f"{name} now", lineterm="")
    return "\n".join(lines)


def _print_error(error: Exception, given: Namespace) -> None:
    if given.json:
        print(json.dumps({"ok": False, "error": output.error_fields(error)}), flush=True)
    else:
        output.failure(error, given, given.file)

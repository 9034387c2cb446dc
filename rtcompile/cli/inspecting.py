"""``rtcompile inspect``: the resources of kernels, and their code beside the source's lines."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from argparse import Namespace
from dataclasses import dataclass

from rtcompile import toolkit
from rtcompile.building import pipeline
from rtcompile.cli import output
from rtcompile.cli.caching import find_entry
from rtcompile.cli.requests import overrides, requests
from rtcompile.core.linkable import kind_of
from rtcompile.core.occupancy import limits_of
from rtcompile.core.request import CompileRequest, ObjectCode
from rtcompile.errors import InvalidRequest, ToolkitNotFound
from rtcompile.settings import Settings
from rtcompile.watching.advice import Advice, advise, bounds_of, of_source
from rtcompile.watching.report import TELL_SPILLS, report


@dataclass(frozen=True, slots=True)
class _Subject:
    """The code to inspect: a cubin, or a build with its source and request."""

    code: ObjectCode | bytes
    request: CompileRequest | None = None

    @property
    def data(self) -> bytes:
        return self.code.code if isinstance(self.code, ObjectCode) else self.code


def run(given: Namespace) -> int:
    """Print the report, then the requested listings."""
    subjects = _subjects(given)
    results = []
    for subject in subjects:
        found = report(
            subject.code,
            kernel=given.kernel,
            block=given.block,
            dynamic_shared=given.dynamic_shared,
        )
        listings = _listings(subject, given)
        advised = _advice(subject, given)
        if given.json:
            advice = {"advice": [one.as_dict() for one in advised]}
            results.append({**found.as_dict(), **advice, **listings})
        else:
            table = output.table(*found.rows()) if found.kernels else output.NO_KERNELS
            shown = f"{found.title}\n{table}"
            print("\n\n".join([shown, *map(str, advised), *listings.values()]))
    if given.json:
        output.print_json({"what": given.what, "results": results})
    return 0


def _subjects(given: Namespace) -> list[_Subject]:
    if os.path.isfile(given.what):
        with open(given.what, "rb") as file:
            data = file.read()
        kind = kind_of(data)
        if kind == "cubin":
            return [_Subject(data)]
        if kind is not None:
            raise InvalidRequest(f"{given.what} is {kind}: only a cubin says what its kernels take")
        return [
            _Subject(_build(r, given), r)
            for r in requests(given, given.what, TELL_SPILLS, "-lineinfo")
        ]
    return [_Subject(find_entry(given.what).obj)]


def _build(request: CompileRequest, given: Namespace) -> ObjectCode:
    settings = Settings.from_environ().override(**overrides(given))
    return pipeline.build(request, settings)


def _advice(subject: _Subject, given: Namespace) -> list[Advice]:
    bounds = None
    if given.launch_bounds is not None:
        words = given.launch_bounds.split(",")
        if not all(word.strip().isdecimal() for word in words):
            raise InvalidRequest(f"--launch-bounds {given.launch_bounds}: expected 256 or 256,2")
        bounds = bounds_of([int(word) for word in words])
    if subject.request is not None and bounds is not None:
        build = functools.partial(_build, given=given)
        return of_source(subject.request, build, given.kernel, given.dynamic_shared, bounds)
    if bounds is not None:
        raise InvalidRequest(f"{given.what}: --launch-bounds needs a source to build again")
    if limits_of(report(subject.code).arch) is None:
        return []
    source = "" if subject.request is None else subject.request.source
    return advise(subject.code, kernel=given.kernel, shared_mem=given.dynamic_shared, source=source)


def _listings(subject: _Subject, given: Namespace) -> dict[str, str]:
    listings = {}
    if given.ptx:
        if subject.request is None:
            raise InvalidRequest(f"{given.what}: PTX can be shown of a source only")
        ptx = _build(subject.request.replace(target="ptx"), given).code.decode()
        listings["ptx"] = _beside_source(ptx, subject.request, _PTX_FILE, _PTX_LINE)
    if given.sass:
        shown = report(subject.code, kernel=given.kernel).kernels
        found = disassembled(subject.data, "--print-line-info")
        sass = "".join(found.get(kernel.symbol, "") for kernel in shown)
        listings["sass"] = _beside_source(sass, subject.request, None, _SASS_LINE)
    return listings


_PTX_FILE = re.compile(r'^\s*\.file\s+(?P<index>\d+)\s+"(?P<path>[^"]*)"', re.MULTILINE)
_PTX_LINE = re.compile(r"\s*\.loc\s+(?P<file>\d+) (?P<line>\d+) ")
_SASS_LINE = re.compile(r'\s*//## File "(?P<file>[^"]*)", line (?P<line>\d+)')


def _beside_source(
    text: str,
    request: CompileRequest | None,
    files: re.Pattern[str] | None,
    marker: re.Pattern[str],
) -> str:
    """Put the program's own line under each mark of its number."""
    if request is None:
        return text
    own = request.name
    if files is not None:  # the marks refer to files by number
        own = next((m["index"] for m in files.finditer(text) if m["path"] == own), "")
    lines = request.source.split("\n")
    shown = []
    for line in text.split("\n"):
        shown.append(line)
        match = marker.match(line)
        if match and match["file"] == own and 0 < int(match["line"]) <= len(lines):
            number = int(match["line"])
            shown.append(f"\t// {number}: {lines[number - 1].strip()}")
    return "\n".join(shown)


def disassembled(cubin: bytes, *options: str) -> dict[str, str]:
    """Return the machine code of each kernel, by its symbol, as nvdisasm shows it."""
    program = _disassembler()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [program, "--print-code", *options, file.name]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise ToolkitNotFound(f"{program} cannot read the cubin: {done.stderr.strip()}")
    sections = re.split(r"^(?=//-{10,} \.)", done.stdout, flags=re.MULTILINE)
    named = ((section.split(None, 3)[1:2], section) for section in sections)
    return {name[0][6:]: text for name, text in named if name and name[0].startswith(".text.")}


def _disassembler() -> str:
    """Return nvdisasm's path: beside nvcc, in a wheel, in the toolkit that CUDA_PATH names, on PATH."""
    toolchain = toolkit.current()
    folders = [os.path.dirname(toolchain.nvcc.binary)] if toolchain.nvcc else []
    if toolchain.nvrtc is not None:
        folders.append(os.path.join(os.path.dirname(os.path.dirname(toolchain.nvrtc.path)), "bin"))
    folders += [
        os.path.join(os.environ[name], "bin")
        for name in ("CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX")
        if os.environ.get(name)
    ]
    found = shutil.which("nvdisasm", path=os.pathsep.join(folders)) or shutil.which("nvdisasm")
    if found is None:
        raise ToolkitNotFound(
            f"nvdisasm not found; looked in {', '.join([*folders, 'PATH'])}. "
            "`pip install nvidia-cuda-nvdisasm`, or conda install cuda-nvdisasm."
        )
    return found

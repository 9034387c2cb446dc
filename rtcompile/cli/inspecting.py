"""``rtcompile inspect``, ``watch``, ``profile`` and ``clangd``: tools for authors of kernels."""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from rtcompile import toolkit
from rtcompile.build import pipeline
from rtcompile.build.measured import measure
from rtcompile.cli import arguments, exit_code, output
from rtcompile.cli.caching import find_entry
from rtcompile.cli.edited import Files
from rtcompile.cli.output import overrides, requests
from rtcompile.errors import CompileError, InvalidRequest, RtcompileError, ToolkitNotFound
from rtcompile.extras.devtools.profile import HeaderNode, Profile
from rtcompile.extras.resources import REPORT_SPILLS, Report, limits_of
from rtcompile.extras.resources.advice import Advice
from rtcompile.files.headers import SearchDir
from rtcompile.files.sealed import read_text
from rtcompile.inspect.cubin import kind_of
from rtcompile.request import options as compiler_options
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.options import Options
from rtcompile.request.request import CompileRequest
from rtcompile.request.values import Arch, absolute
from rtcompile.settings import Settings

_Code = ObjectCode | bytes


def run(given: Namespace) -> int:
    """Print the report, then the requested listings."""
    results = []
    for code, request in _subjects(given):
        found = Report.of(code, given.kernel, given.block, given.dynamic_shared)
        listings = _listings(code, request, given)
        advised = _advice(code, request, given)
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


def _subjects(given: Namespace) -> list[tuple[_Code, CompileRequest | None]]:
    """Return the codes to inspect, each with its request if it was built from a source."""
    if os.path.isfile(given.what):
        with open(given.what, "rb") as file:
            data = file.read()
        kind = kind_of(data)
        if kind == "cubin":
            return [(data, None)]
        if kind is not None:
            why = "only a cubin contains its kernels' resources"
            raise InvalidRequest(f"{given.what} is {kind}: {why}")
        found = requests(given, given.what, REPORT_SPILLS, "-lineinfo")
        return [(_build(request, given), request) for request in found]
    return [(find_entry(given.what).obj, None)]


def _build(request: CompileRequest, given: Namespace) -> ObjectCode:
    settings = Settings.from_environ().override(**overrides(given))
    return pipeline.build(request, settings)


def _advice(code: _Code, request: CompileRequest | None, given: Namespace) -> list[Advice]:
    if given.launch_bounds is not None:
        if request is None:
            raise InvalidRequest(f"{given.what}: --launch-bounds needs a source to build again")
        words = given.launch_bounds.split(",")
        if not all(word.strip().isdecimal() for word in words):
            raise InvalidRequest(f"--launch-bounds {given.launch_bounds}: expected 256 or 256,2")
        bounds = [int(word) for word in words]
        build = functools.partial(_build, given=given)
        return Advice.of_source(request, build, given.kernel, given.dynamic_shared, bounds)
    if limits_of(Report.of(code).arch) is None:
        return []
    source = "" if request is None else request.source
    return Advice.of(code, given.kernel, given.dynamic_shared, source)


def _listings(code: _Code, request: CompileRequest | None, given: Namespace) -> dict[str, str]:
    listings = {}
    if given.ptx:
        if request is None:
            raise InvalidRequest(f"{given.what}: --ptx needs a source, since a cubin has no PTX")
        ptx = _build(request.replace(target="ptx"), given).code.decode()
        listings["ptx"] = _beside_source(ptx, request, _PTX_FILE, _PTX_LINE)
    if given.sass:
        shown = Report.of(code, given.kernel).kernels
        found = disassembled(code)
        sass = "".join(found.get(kernel.symbol, "") for kernel in shown)
        listings["sass"] = _beside_source(sass, request, None, _SASS_LINE)
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
    """Add the program's own line below each mark that gives its number."""
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


def disassembled(code: _Code) -> dict[str, str]:
    """Return the machine code of each kernel, by its symbol, as nvdisasm shows it."""
    program = disassembler()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code.code if isinstance(code, ObjectCode) else code)
        file.flush()
        command = [program, "--print-code", "--print-line-info", file.name]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise ToolkitNotFound(f"{program} cannot read the cubin: {done.stderr.strip()}")
    sections = re.split(r"^(?=//-{10,} \.)", done.stdout, flags=re.MULTILINE)
    named = ((section.split(None, 3)[1:2], section) for section in sections)
    return {name[0][6:]: text for name, text in named if name and name[0].startswith(".text.")}


def disassembler() -> str:
    """Return nvdisasm's path: beside nvcc, in a wheel, in the toolkit that CUDA_PATH names, on PATH."""
    toolchain = toolkit.current()
    paths = [toolchain.nvcc.binary] if toolchain.nvcc else []
    paths += [toolchain.nvrtc.path] if toolchain.nvrtc else []
    roots = [os.path.dirname(os.path.dirname(path)) for path in paths]
    roots += filter(None, map(os.environ.get, ("CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX")))
    folders = [os.path.join(root, "bin") for root in roots]
    found = shutil.which("nvdisasm", path=os.pathsep.join(folders)) or shutil.which("nvdisasm")
    if found is None:
        raise ToolkitNotFound(
            f"nvdisasm not found; looked in {', '.join([*folders, 'PATH'])}. "
            "`pip install nvidia-cuda-nvdisasm`, or conda install cuda-nvdisasm."
        )
    return found


def watch(given: Namespace) -> int:
    """Build now and whenever the source or a header changes; print what each edit changed."""
    if given.file == "-":
        raise InvalidRequest("watch needs a file, since a source on stdin cannot change")
    if given.edits is not None and given.edits < 0:
        raise InvalidRequest(f"--edits {given.edits}: expected a number that is not negative")
    source = absolute(given.file)
    files = Files(source)
    last: Report | None = None
    edits, code = 0, 0
    while True:
        files.begin()
        began = time.perf_counter()
        read = {source}
        try:
            built, headers = _built(given)
        except (RtcompileError, OSError) as error:
            code = exit_code(error)
            if last is None and not isinstance(error, CompileError):
                raise  # editing the source does not help
            if isinstance(error, CompileError):
                read |= {absolute(one.file) for one in error.diagnostics if one.file}
            read |= {*files, os.path.dirname(source)}
            if given.json:
                print(json.dumps({"ok": False, "error": output.error_fields(error)}), flush=True)
            else:
                output.failure(error, given, given.file)
        else:
            code = 0
            read |= headers
            _print_build(last, built, given, time.perf_counter() - began)
            last = built
        files.note(read)
        if edits == given.edits:
            return code
        edits += 1
        files.wait()


def _built(given: Namespace) -> tuple[Report, set[str]]:
    """Return the report of the build, and the headers that it read."""
    read_text(given.file)  # raises for a pipe, since reading it may never end
    requested = list(requests(given, given.file, REPORT_SPILLS))
    if len(requested) != 1 or requested[0].target != "cubin":
        raise InvalidRequest("watch builds a cubin for one architecture, as --arch sm_90a")
    code = _build(requested[0], given)
    return Report.of(code), {h.path for h in code.build.headers if os.path.isabs(h.path)}


def _print_build(last: Report | None, built: Report, given: Namespace, seconds: float) -> None:
    titles = built.rows()[0]
    before, after = (
        {str(name): row for name, *row in each.rows()[1]} if each else {} for each in (last, built)
    )
    names = list(dict.fromkeys([*after, *before]))
    changed = [name for name in names if before.get(name) != after.get(name)]
    if given.json:
        fields: dict[str, Any] = {
            "ok": True,
            "seconds": round(seconds, 3),
            "kernels": built.as_dict()["kernels"],
            "changed": changed,
        }
        print(json.dumps(fields), flush=True)
        return
    title = f"{time.strftime('%X')} {given.file}, built in {seconds:.2f} s"
    if not names:
        text = f"{title}\n{output.NO_KERNELS}"
    elif not changed:
        text = f"{title}: no kernel takes more or less"
    else:
        rows = []
        for name in changed:
            new = after.get(name, ["gone", *[""] * (len(titles) - 2)])
            old = before.get(name, new) if name in after else new
            pairs = zip(old, new, strict=True)
            rows.append([name, *(n if o == n else f"{o} -> {n}" for o, n in pairs)])
        text = f"{title}\n{output.table(titles, rows)}"
    print(text, flush=True)


# --- ``rtcompile clangd`` -------------------------------------------------------------------------


def write_database(given: Namespace) -> int:
    """Write the database and print its contents."""
    from rtcompile.extras import devtools

    search = toolkit.current(Settings.from_environ()).search
    arch = Arch.parse(given.arch or "sm_80")
    common = compiler_options.parse(given.compiler_options)
    root = absolute(given.root)

    def flags(options: Sequence[str], beside: str) -> tuple[str, ...]:
        own = Options()
        with suppress(InvalidRequest):  # invalid options, whose error the build reports
            own = compiler_options.parse(options)
        return _flags(common.merged(own), arch, search, beside)

    entries = devtools.write(root, [*map(absolute, given.paths or [root])], flags)
    path = os.path.join(root, "compile_commands.json")
    shown = [(os.path.relpath(e.origin, root), os.path.relpath(e.file, root)) for e in entries]
    rows = [(origin, file if file != origin else "") for origin, file in shown]
    where = ", ".join(given.paths or [root])
    listed = f"{where}: no .cu or .cuh file, and no kernel in a string literal of a Python file"
    if rows:
        listed = output.table(("kernel of", "written to"), rows)
    files = [{"file": entry.file, "origin": entry.origin} for entry in entries]
    text = f"{listed}\n{path}: {len(entries)} file{'s' * (len(entries) != 1)}"
    output.print_result(given, {"path": path, "files": files}, text)
    return 0


# Clang knows fewer architectures than NVRTC. It parses for this one; a macro has the requested one.
_CLANGS = Arch(8, 0)


def _flags(
    options: Options, arch: Arch, search: Sequence[SearchDir], beside: str
) -> tuple[str, ...]:
    """Return clang's options for those of NVRTC; `beside` is the Python file that contains the kernel, or ""."""
    preludes = (os.path.join(path, "rtcompile", "clangd.h") for _, path in search)
    std = options.get("std") or "c++17"
    return (
        "-xcuda",
        f"--cuda-gpu-arch={_CLANGS}",
        "--cuda-device-only",
        "-nocudainc",  # clang's own wrapper, which needs a toolkit that it knows
        "-nocudalib",
        f"-std={std}",
        "-Wno-unknown-cuda-version",
        "-Wno-builtin-macro-redefined",
        "-Wno-pragma-once-outside-header",
        "-Xclang",
        "-fcuda-allow-variadic-functions",
        "-ferror-limit=0",
        "-U__CUDA_ARCH__",
        f"-D__CUDA_ARCH__={arch.number * 10}",
        "-include",
        next(filter(os.path.isfile, preludes), ""),
        *(f"-{kind}{macro}" for kind, macro in options.macros),
        *(f"-I{absolute(directory)}" for directory in options.include_dirs),
        *([f"-I{os.path.dirname(beside)}"] if beside else []),
        # The host's C++ library is used instead of the shims for NVRTC.
        *(arg for label, path in search if label != "shims" for arg in ("-isystem", path)),
        *(arg for header in options.pre_includes for arg in ("-include", header)),
    )


# --- ``rtcompile profile`` --------------------------------------------------------------------------


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
        included = found.tree()
        profiles.append(found.fields() | ({"included": included} if given.tree else {}))
        if not given.json:
            if given.why is not None:
                text = _chain(included, given.why)
            elif given.tree:
                table = _table(included, given.tree) or found.note
                text = f"{found.text().splitlines()[0]}\n{table}"
            else:
                text = found.text(max(1, given.top), output.terminal_width(sys.stdout, 0))
            print(text)
        if given.trace:
            found.save(given.trace)
            if not given.json:
                print(f"\n{absolute(given.trace)}")
    if given.json:
        output.print_json({"ok": True, "file": given.file, "profiles": profiles})
    return 0


def _walk(included: Sequence[HeaderNode], depth: int = 0) -> Iterator[tuple[int, HeaderNode]]:
    for header in included:
        yield depth, header
        yield from _walk(header["included"], depth + 1)


def _table(included: Sequence[HeaderNode], levels: int) -> str:
    rows = [
        (
            header["files"],
            output.human_size(header["bytes"]),
            f"{header['milliseconds']:.1f}",
            "  " * depth + header["name"],
        )
        for depth, header in _walk(included)
        if depth < levels
    ]
    return output.table(("files", "size", "ms", "header"), rows) if rows else ""


def _chain(included: Sequence[HeaderNode], wanted: str) -> str:
    """Return the chain of includes from the source to a header's first inclusion, a line each."""
    chain: list[str] = []
    for depth, header in _walk(included):
        chain[depth:] = ["  " * depth + header["name"]]
        if header["path"] == wanted or header["path"].endswith(f"/{wanted}"):
            return "\n".join(chain)
    raise InvalidRequest(f"{wanted} is not included")


def completion(given: Namespace) -> int:
    """Print a shell's completion script; shtab makes those of shells other than fish."""
    if given.shell == "fish":
        print("\n".join(_fish(arguments.parser())))
        return 0
    try:
        import shtab
    except ImportError:
        missing = "completion needs shtab, which is not installed; `pip install shtab`"
        raise ToolkitNotFound(missing) from None
    print(shtab.complete(arguments.parser(), shell=given.shell))
    return 0


def _fish(parser: arguments.Parser, seen: str = "") -> Iterator[str]:
    """Yield fish's commands that complete the words of a parser, after the verb or action `seen`."""
    inside = f"__fish_seen_subcommand_from {seen}" if seen else "__fish_use_subcommand"
    action: Any
    for action in parser._actions:
        text = (action.help or "").replace("'", "\\'")
        line = f"complete -c rtcompile -n '{inside}' -d '{text}'"
        if isinstance(action.choices, dict):  # the verbs, or a verb's actions
            verbs = parser.verbs()
            begin = f"{inside}; and not __fish_seen_subcommand_from {' '.join(verbs)}"
            for verb in action._get_subactions():
                yield f"complete -c rtcompile -f -n '{begin}' -a {verb.dest} -d '{verb.help}'"
                yield from _fish(verbs[verb.dest], verb.dest)
            continue
        if action.help == argparse.SUPPRESS:
            continue
        names = [
            f"-l {name[2:]}" if name[1] == "-" else f"-s {name[1:]}"
            for name in action.option_strings
        ]
        values = (
            [f"-x -a '{' '.join(action.choices)}'"]
            if action.choices
            else ["-r"] * (action.nargs != 0)
        )
        if names or action.choices:
            yield " ".join([line, *names, *values])

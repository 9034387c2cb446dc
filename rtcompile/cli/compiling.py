"""The verbs that take a source and a build's options: ``compile``, ``inspect``, ``profile`` and ``clangd``."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from concurrent.futures import Future, as_completed
from typing import Any

from rtcompile import toolkit
from rtcompile.build import pipeline
from rtcompile.build.many import submit
from rtcompile.cli import exit_code, output
from rtcompile.cli.output import overrides, requests
from rtcompile.cubin import kind_of, symbols
from rtcompile.errors import InvalidRequest, RtcompileError
from rtcompile.files import sealed
from rtcompile.messages import diagnostics
from rtcompile.messages.loading import no_kernels
from rtcompile.messages.rendering import spelled
from rtcompile.named import NamedTuple
from rtcompile.request import options as compiler_options
from rtcompile.request.object_code import KERNEL_MARKS, ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.request.values import Arch, absolute
from rtcompile.settings import Settings

# --- ``rtcompile compile`` --------------------------------------------------------------------------

_EXTENSIONS = {kind: f".{kind}" for kind in ("cubin", "ptx", "ltoir", "fatbin")} | {"object": ".o"}
_MOST_WARNINGS = 5


class _FileBuild(NamedTuple):
    """One build: its source file, its request, and the file for its code."""

    file: str
    request: CompileRequest
    path: str


def run(given: Namespace) -> int:
    """Compile each source for each architecture, in parallel."""
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
            _write(build.path, built)
            if not given.json:
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
    if outputs > 1 and _is_file(given.output):
        raise InvalidRequest(
            f"-o {given.output} takes one build, and this makes {outputs}; give a folder"
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
    """Return whether -o names a file, or stdout: by its ending, or because such a file exists."""
    if path is None or os.path.isdir(path) or path.endswith(os.sep):
        return False
    ending = os.path.splitext(path)[1]
    return path == "-" or os.path.isfile(path) or ending in _EXTENSIONS.values()


def _path(wanted: str | None, file: str, request: CompileRequest, *, single: bool) -> str:
    if wanted and single and not wanted.endswith(os.sep) and not os.path.isdir(wanted):
        return wanted
    stem = os.path.splitext(os.path.basename(request.name))[0]
    arch = f".{request.arch}" if request.arch is not None else ""
    extension = _EXTENSIONS[request.target]
    return os.path.join(wanted or os.path.dirname(file), f"{stem}{arch}{extension}")


def _write(path: str, built: ObjectCode) -> None:
    if path == "-":
        sys.stdout.buffer.write(built.code)
        return
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    built.save(path)


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


# --- ``rtcompile inspect`` and ``profile``: the resources that kernels use, and the time of their builds ----


def inspect(given: Namespace) -> int:
    """Print the resources of each kernel."""
    from rtcompile.extras.resources import Report

    found = [
        Report.of(code, given.kernel, given.block, given.dynamic_shared)
        for code in _subjects(given)
    ]
    texts = [
        f"{each.title}\n{output.table(*each.rows()) if each.kernels else output.NO_KERNELS}"
        for each in found
    ]
    results = [each.as_dict() for each in found]
    output.print_result(given, {"what": given.what, "results": results}, "\n".join(texts))
    return 0


def _subjects(given: Namespace) -> list[ObjectCode | bytes]:
    """Return the codes to inspect: a cubin, those of a source, or that of a cache entry."""
    from rtcompile.cli.showing import find_entry
    from rtcompile.extras.resources import REPORT_SPILLS

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


def profile(given: Namespace) -> int:
    """Print a profile per architecture, or one JSON object of them."""
    from rtcompile.extras.devtools import Profile

    settings = Settings.from_environ().override(**overrides(given))
    found = [Profile.of(request, settings) for request in requests(given, given.file)]
    width = output.terminal_width(sys.stdout, 0)
    texts = [each.text(max(1, given.top), width) for each in found]
    profiles = [each.fields() for each in found]
    output.print_result(given, {"file": given.file, "profiles": profiles}, "\n".join(texts))
    return 0


# --- ``rtcompile clangd``: the section of a project's ``.clangd`` with which clangd understands kernels ----

_TITLE = "# Written by `rtcompile clangd`; the next run replaces this section."
# The section suppresses clang's errors for code that NVIDIA's compilers accept: `__shared__ alignas(16) float x[4];`,
# launch bounds that a constexpr function computes, and a barrier in shared memory with a constructor. It turns clang's
# own wrapper of CUDA off, which needs a toolkit that it knows. Clang knows fewer architectures than NVRTC and parses for
# sm_80; a macro has the requested one.
_SECTION = """\
{title}
If:
  PathMatch: .*\\.cuh?
Diagnostics:
  Suppress: [attribute_not_type_attr, attributes_not_allowed, attribute_argument_n_type, shared_var_init]
CompileFlags:
  Add: [
    -xcuda, --cuda-gpu-arch=sm_80, --cuda-device-only, -nocudainc, -nocudalib, -Wno-unknown-cuda-version,
    -Wno-builtin-macro-redefined, -Wno-pragma-once-outside-header, -Xclang, -fcuda-allow-variadic-functions,
    -ferror-limit=0, -U__CUDA_ARCH__,
    {flags}
  ]
"""


def clangd(given: Namespace) -> int:
    """Write the section, and keep the file's other sections."""
    path = os.path.join(absolute(given.root), ".clangd")
    options = compiler_options.parse(given.compiler_options)
    search = toolkit.current().search
    preludes = (os.path.join(path, "rtcompile", "clangd.h") for _, path in search)
    flags = (
        f"-std={options.get('std') or 'c++17'}",
        f"-D__CUDA_ARCH__={Arch.parse(given.arch or 'sm_80').number * 10}",
        "-include",
        next(filter(os.path.isfile, preludes), ""),
        *(f"-{kind}{macro}" for kind, macro in options.macros),
        *(f"-I{absolute(directory)}" for directory in options.include_dirs),
        # The host's C++ library is used instead of the shims for NVRTC.
        *(arg for label, path in search if label != "shims" for arg in ("-isystem", path)),
        *(arg for header in options.pre_includes for arg in ("-include", header)),
    )
    quoted = ",\n    ".join(json.dumps(flag, ensure_ascii=False) for flag in flags)
    try:
        before = sealed.read_text(path) if os.path.exists(path) else ""
        others = [part for part in before.split("---\n") if part.strip() and _TITLE not in part]
        section = _SECTION.format(title=_TITLE, flags=quoted)
        text = "---\n".join([*(f"{part.rstrip()}\n" for part in others), section])
        sealed.publish(path, text.encode(), durable=False, mode=0o666)
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from None
    shown = f"{path}: its section for .cu and .cuh is up to date"
    output.print_result(given, {"path": path}, shown)
    return 0

"""``rtcompile clangd``, ``profile``, ``headers`` and ``completion``: tools for authors of kernels."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress

from rtcompile import toolkit
from rtcompile.build.profile import Header, profile
from rtcompile.cli import arguments, output
from rtcompile.cli.output import overrides, requests
from rtcompile.errors import InvalidRequest, ToolkitNotFound
from rtcompile.extras.devtools import compile_database
from rtcompile.files.headers import SearchDir
from rtcompile.request import options as compiler_options
from rtcompile.request.options import Options
from rtcompile.request.values import Arch
from rtcompile.settings import Settings

# --- ``rtcompile clangd`` -------------------------------------------------------------------------


def write_database(given: Namespace) -> int:
    """Write the database and print its contents."""
    search = toolkit.current(Settings.from_environ()).search
    arch = Arch.parse(given.arch or "sm_80")
    common = compiler_options.parse(given.compiler_options)
    root = os.path.abspath(given.root)

    def flags(options: Sequence[str], beside: str) -> tuple[str, ...]:
        own = Options()
        with suppress(InvalidRequest):  # invalid options, whose error the build reports
            own = compiler_options.parse(options)
        return _flags(common.merged(own), arch, search, beside)

    entries = compile_database.write(root, given.paths or [root], flags)
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


# Clang knows fewer architectures than NVRTC. It parses for this one; a macro has the requested one.
_CLANGS = Arch(8, 0)


def _flags(
    options: Options, arch: Arch, search: Sequence[SearchDir], beside: str
) -> tuple[str, ...]:
    """Return clang's options for those of NVRTC, of a kernel in the Python file `beside` or in none."""
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
        *(f"-I{os.path.abspath(directory)}" for directory in options.include_dirs),
        *([f"-I{os.path.dirname(beside)}"] if beside else []),
        # The host's C++ library is used instead of the shims for NVRTC.
        *(arg for label, path in search if label != "shims" for arg in ("-isystem", path)),
        *(arg for header in options.pre_includes for arg in ("-include", header)),
    )


# --- ``rtcompile profile`` and ``rtcompile headers`` ------------------------------------------------


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
        found = profile(request, settings)
        included = found.tree()
        profiles.append(found.fields() | ({"included": included} if given.tree else {}))
        if not given.json:
            if given.why is not None:
                text = _chain(included, given.why)
            elif given.tree:
                text = (
                    f"{found.text().splitlines()[0]}\n{_table(included, given.tree) or found.note}"
                )
            else:
                text = found.text(max(1, given.top), output.terminal_width(sys.stdout, 0))
            print(text)
        if given.trace:
            found.save(given.trace)
            if not given.json:
                print(f"\n{os.path.abspath(given.trace)}")
    if given.json:
        output.print_json({"ok": True, "file": given.file, "profiles": profiles})
    return 0


def headers(given: Namespace) -> int:
    """Print the tree of the headers that a profile has."""
    given.trace, given.tree = None, sys.maxsize if given.all else 1
    return profile_kernels(given)


def _walk(included: Sequence[Header], depth: int = 0) -> Iterator[tuple[int, Header]]:
    for header in included:
        yield depth, header
        yield from _walk(header["included"], depth + 1)


def _table(included: Sequence[Header], levels: int) -> str:
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


def _chain(included: Sequence[Header], wanted: str) -> str:
    """Return the chain of includes from the source to a header's first inclusion, a line each."""
    chain: list[str] = []
    for depth, header in _walk(included):
        chain[depth:] = ["  " * depth + header["name"]]
        if header["path"] == wanted or header["path"].endswith(f"/{wanted}"):
            return "\n".join(chain)
    raise InvalidRequest(f"{wanted} is not included")


# --- ``rtcompile completion`` -----------------------------------------------------------------------


def completion(given: Namespace) -> int:
    """Print a shell's completion script, which shtab makes of the command's parser."""
    try:
        import shtab
    except ImportError:
        missing = "completion needs shtab, which is not installed; `pip install rtcompile[cli]`"
        raise ToolkitNotFound(missing) from None
    print(shtab.complete(arguments.parser(), shell=given.shell))
    return 0

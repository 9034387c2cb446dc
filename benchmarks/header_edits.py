"""Tests whether CuPy and rtcompile notice edits of headers between two runs of a program.

Each kind of edit is made between two fresh processes that run the same program. The kernel writes
the number from the headers, so a stale binary writes the old number. Needs a GPU.
`--save` writes benchmarks/results/header_edits.json.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import _machine

CHILD = r"""
import sys
import cupy
library, folder = sys.argv[1:]
if library == "cupy":
    from cupy import RawKernel
else:
    from rtcompile import RawKernel
source = open(folder + "/main.cu").read()
kernel = RawKernel(source, "k", (f"-I{folder}/first", f"-I{folder}/second"))
out = cupy.zeros(1, dtype=cupy.int32)
kernel((1,), (1,), (out,))
hit = "" if library == "cupy" else str(kernel.build.hit)
print(int(out[0]), hit)
"""

MAIN = """
#include "value.h"
#if __has_include("extra.h")
#include "extra.h"
#else
#define EXTRA 0
#endif
extern "C" __global__ void k(int* out) { *out = VALUE + EXTRA; }
"""


def edit(folder: Path) -> int:
    (folder / "second/value.h").write_text('#include "nested.h"\n#define VALUE (NESTED + 1)\n')
    return 11


def edit_nested(folder: Path) -> int:
    (folder / "second/nested.h").write_text("#define NESTED 20\n")
    return 20


def edit_within_one_tick(folder: Path) -> int:
    header = folder / "second/nested.h"
    before = header.stat()
    header.write_text("#define NESTED 30\n")  # the same size, and the same time of change
    os.utime(header, ns=(before.st_atime_ns, before.st_mtime_ns))
    return 30


def shadow(folder: Path) -> int:
    (folder / "first/value.h").write_text("#define VALUE 40\n")
    return 40


def satisfy_has_include(folder: Path) -> int:
    (folder / "first/extra.h").write_text("#define EXTRA 50\n")
    return 60


def retarget_symlink(folder: Path) -> int:
    header = folder / "second/nested.h"
    (folder / "other.h").write_text("#define NESTED 70\n")
    header.unlink()
    header.symlink_to(folder / "other.h")
    return 70


def touch(folder: Path) -> int:
    os.utime(folder / "second/nested.h")
    return 10


def revert(folder: Path) -> int:
    return 10


def move(folder: Path) -> int:
    return 10


EDITS: dict[str, Callable[[Path], int]] = {
    "edit an included header": edit,
    "edit a header it includes": edit_nested,
    "edit within one mtime tick": edit_within_one_tick,
    "a new header shadows it": shadow,
    "a new file satisfies __has_include": satisfy_has_include,
    "a symlink points elsewhere": retarget_symlink,
    "touch only": touch,
    "edit and revert": revert,
    "the same headers in another folder": move,
}


def lay_out(folder: Path) -> None:
    for name in ("first", "second"):
        (folder / name).mkdir(parents=True)
    (folder / "main.cu").write_text(MAIN)
    (folder / "second/value.h").write_text('#include "nested.h"\n#define VALUE NESTED\n')
    (folder / "second/nested.h").write_text("#define NESTED 10\n")


def run(library: str, folder: Path) -> tuple[int, str]:
    command = [sys.executable, "-c", CHILD, library, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    value, *hit = done.stdout.split()
    return int(value), hit[0] if hit else ""


def row(kind: str, change: Callable[[Path], int], scratch: Path) -> dict[str, str]:
    outcomes = {"kind": kind}
    for library in ("cupy", "rtcompile"):
        folder = scratch / library / kind.replace(" ", "-")
        lay_out(folder)
        first, _ = run(library, folder)
        assert first == 10, first
        if change is revert:
            edit_nested(folder)
            run(library, folder)
            (folder / "second/nested.h").write_text("#define NESTED 10\n")
        if change is move:
            folder = Path(shutil.move(folder, folder.with_name("moved")))
        expected = change(folder)
        value, hit = run(library, folder)
        right = "right" if value == expected else f"STALE ({value}, not {expected})"
        outcomes[library] = right + (f", hit: {hit}" if hit else "")
    return outcomes


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["RTCOMPILE_CACHE_DIR"] = str(Path(scratch) / "cache")
        os.environ["CUPY_CACHE_DIR"] = str(Path(scratch) / "cupy-cache")
        table = [row(kind, change, Path(scratch)) for kind, change in EDITS.items()]
    _machine.save("header_edits", table)


if __name__ == "__main__":
    main()

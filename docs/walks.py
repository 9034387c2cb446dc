"""Prints every function of rtcompile that the calling process passes for a hit or a miss: ``python -m docs.walks hit``."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_SOURCE = 'extern "C" __global__ void k(float* x) { x[0] = %d; }'


def profiled(kind: str) -> list[tuple[int, str, str]]:
    """Return depth, module and name of each call of one hit or one miss, in a process of its own with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", f"from docs import walks; walks._in_child({kind!r})"],
            cwd=ROOT,
            env={**os.environ, "RTCOMPILE_CACHE_DIR": folder, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    return [(int(depth), module, name) for depth, module, name in lines]


def _in_child(kind: str) -> None:
    """Print the calls of one hit or of one miss, the first of its process, where the toolchain is known."""
    import rtcompile

    _ = rtcompile.compile  # its import is none of the walk
    # Another process puts this kernel, or another one, into the cache.
    source = _SOURCE % (1 if kind == "hit" else 2)
    fill = f"import rtcompile; rtcompile.compile({source!r}, arch='sm_80')"
    subprocess.run([sys.executable, "-c", fill], check=True)
    calls: list[tuple[int, str, str]] = []
    depth = [0]
    package = str(ROOT / "rtcompile") + os.sep

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        # What an import runs (a module's and a class's body) is no call of the walk, nor is a comprehension or the edge
        # of `errors.public`.
        if not code.co_filename.startswith(package) or code.co_name[0] == "<":
            return
        if code.co_name == "edge" or not code.co_flags & inspect.CO_OPTIMIZED:
            return
        if event == "call":
            module = ".".join(Path(code.co_filename[len(package) :]).with_suffix("").parts)
            name = getattr(code, "co_qualname", code.co_name)  # new in Python 3.11
            calls.append((depth[0], module, f"{module}.{name.replace('<locals>.', '')}"))
            depth[0] += 1
        elif event == "return":
            depth[0] -= 1

    sys.setprofile(note)
    rtcompile.compile(_SOURCE % 1, arch="sm_80")
    sys.setprofile(None)
    for call in calls:
        print(*call, sep="\t")


if __name__ == "__main__":
    for kind in sys.argv[1:]:
        passed = profiled(kind)
        names = {name for _, _, name in passed}
        modules = {module for _, module, _ in passed}
        for depth, _, name in passed:
            print("  " * depth + name)
        print(f"a {kind}: {len(names)} functions in {len(modules)} modules, {len(passed)} calls\n")

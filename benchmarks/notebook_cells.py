"""Measures running a `%%cuda` cell again: unchanged, with another comment, with an edited kernel.

In IPython, without a display; medians. `--save` writes benchmarks/results/notebook_cells.json.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks import _machine

ROUNDS = 15
PLAIN = "\n".join(
    f"__global__ void k{i}(float* x, int n) {{\n"
    f"    if (threadIdx.x < n) x[threadIdx.x] *= {i} + 0;  // note\n}}"
    for i in range(4)
)
CELLS = {"4 kernels": PLAIN, "4 CuTe kernels": "#include <cute/tensor.hpp>\n" + PLAIN}
FRESH = r"""
import sys, time
from benchmarks.notebook_cells import shell, run
it = shell()
print(run(it, sys.stdin.read()))
"""


def shell() -> Any:
    """Return an IPython shell with the extension loaded."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    made = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    made.run_line_magic("load_ext", "rtcompile")
    return made


def run(it: Any, cell: str) -> float:
    """Return the milliseconds that a cell takes."""
    begin = time.perf_counter()
    it.run_cell_magic("cuda", "--arch sm_90a", cell)
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["RTCOMPILE_CACHE_DIR"] = cache
        it = shell()
        for name, cell in CELLS.items():
            first = run(it, cell)
            again = [run(it, cell) for _ in range(ROUNDS)]
            comments = [run(it, cell.replace("note", f"note {i}")) for i in range(ROUNDS)]
            edits = [run(it, cell.replace("2 + 0", f"2 + {i}")) for i in range(1, 6)]
            fresh = [
                float(
                    subprocess.run(
                        [sys.executable, "-c", FRESH],
                        input=cell,
                        capture_output=True,
                        text=True,
                        check=True,
                    ).stdout
                )
                for _ in range(5)
            ]
            results[name] = {
                "first ms": round(first, 1),
                "again ms": round(statistics.median(again), 2),
                "other comment ms": round(statistics.median(comments), 2),
                "one kernel edited ms": round(statistics.median(edits), 1),
                "again in a fresh process ms": round(statistics.median(fresh), 1),
            }
    _machine.save("notebook_cells", results)


if __name__ == "__main__":
    main()

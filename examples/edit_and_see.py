"""The edit loop: a kernel is rebuilt when its file changes, with a report after each edit.

`RawModule.from_file` builds again if the file has changed. Here three edits follow the first version: a block's sum
through shared memory, one that does not compile, after which the last good kernel is used, and one that is bound to
small blocks. After each the kernel is run, and `report` names the block of highest occupancy and what limits it. Run
it: ``python -m examples.edit_and_see``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import rtcompile
from examples._main import cupy_with_gpu

FIRST = r"""
extern "C" __global__ void sums(const float* x, float* out) {
    if (threadIdx.x) return;
    float sum = 0;
    for (int i = 0; i < 128; i++) sum += x[blockIdx.x * 128 + i];
    out[blockIdx.x] = sum;
}
"""
SHARED = r"""
extern "C" __global__ void sums(const float* x, float* out) {
    __shared__ float part[128];
    part[threadIdx.x] = x[blockIdx.x * 128 + threadIdx.x];
    for (int half = 64; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
"""
EDITS = {
    "as it was": FIRST,
    "through shared memory": SHARED,
    "with a mistake": SHARED.replace("half /= 2", "half /= two"),
    "bound to 128 threads": SHARED.replace("void sums", "void __launch_bounds__(128) sums"),
}


class Seen(NamedTuple):
    """The result of an edit: the time until the kernel had run (or was built, without a GPU), and its resources."""

    edit: str
    milliseconds: float
    report: rtcompile.types.Report
    error: str


def loop(folder: Path, cp: Any = None, arch: str | None = "sm_90a") -> Iterator[Seen]:
    """Make each edit, and yield its result; without CuPy, build for `arch` and launch nothing."""
    file = folder / "sums.cu"
    file.write_text(FIRST)
    for edit, source in EDITS.items():
        begin = time.perf_counter()
        file.write_text(source)
        error = ""
        try:
            edited = rtcompile.RawModule.from_file(file, arch=None if cp else arch)
            edited.object_code  # noqa: B018 - reading it builds the module
            module = edited
        except rtcompile.CompileError as failed:
            error = str(failed)
        if cp is not None:
            run(cp, module.get_function("sums"))
        took = (time.perf_counter() - begin) * 1e3
        yield Seen(edit, took, module.report(), error)


def run(cp: Any, kernel: rtcompile.RawKernel) -> None:
    """Launch a kernel; raise AssertionError if its sums are wrong."""
    x, out = cp.ones(64 * 128, cp.float32), cp.zeros(64, cp.float32)
    kernel.launch(64, 128, (x, out))
    assert bool((out == 128).all()), "the sums are wrong"


def main() -> None:
    """Print the result of each edit."""
    with tempfile.TemporaryDirectory() as folder:
        for seen in loop(Path(folder), cupy_with_gpu()):
            print(f"\n{seen.edit}: {seen.milliseconds:.0f} ms\n{seen.report}")
            if seen.error:
                print(seen.error.replace(folder, "").rstrip())


if __name__ == "__main__":
    main()

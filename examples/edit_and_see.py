"""The edit loop: a kernel is rebuilt when its file changes, with advice for its launch.

`RawModule.from_file(…, reload=True)` builds again between two launches when the file has changed. Here three
edits follow the first version: a block's sum through shared memory, one that does not compile, which leaves the
last good kernel in place and shows its error, and one that is bound to small blocks. After each the kernel is
run, and `advise` names the block of highest occupancy and what limits it. ``rtcompile watch`` shows the same
loop in a terminal. Run it: ``python -m examples.edit_and_see``.
"""

from __future__ import annotations

import contextlib
import io
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
    advice: rtcompile.types.Advice
    error: str


def loop(folder: Path, cp: Any = None, arch: str | None = "sm_90a") -> Iterator[Seen]:
    """Make each edit, and yield its result; without CuPy, build for `arch` and launch nothing."""
    file = folder / "sums.cu"
    file.write_text(FIRST)
    module = rtcompile.RawModule.from_file(file, reload=True, arch=None if cp else arch)
    running = FIRST
    for edit, source in EDITS.items():
        time.sleep(0.1)  # the file is looked at no more than every 50 ms
        begin = time.perf_counter()
        file.write_text(source)
        with contextlib.redirect_stderr(io.StringIO()) as shown:
            if cp is None:
                module.object_code  # noqa: B018 - reading it builds the module
            else:
                run(cp, module)
        took = (time.perf_counter() - begin) * 1e3
        running = running if shown.getvalue() else source
        advice = rtcompile.RawKernel(running, "sums", arch=None if cp else arch).advise()
        yield Seen(edit, took, advice, shown.getvalue())


def run(cp: Any, module: rtcompile.RawModule) -> None:
    """Launch the kernel as it is now; raise AssertionError if its sums are wrong."""
    x, out = cp.ones(64 * 128, cp.float32), cp.zeros(64, cp.float32)
    module.get_function("sums").launch(64, 128, (x, out))
    assert bool((out == 128).all()), "the sums are wrong"


def main() -> None:
    """Print the result of each edit."""
    with tempfile.TemporaryDirectory() as folder:
        for seen in loop(Path(folder), cupy_with_gpu()):
            print(f"\n{seen.edit}: {seen.milliseconds:.0f} ms\n{seen.advice}")
            if seen.error:
                print(seen.error.replace(folder, "").rstrip())


if __name__ == "__main__":
    main()

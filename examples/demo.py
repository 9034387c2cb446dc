"""The main job in one minute: WMMA and CuTe kernels through `RawModule`, cold and then cached.

With a GPU they run and are compared with NumPy; without one they are compiled for four
architectures. ``make demo`` runs this. While a compiler works, a line appears every few seconds.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import rtcompile
from examples import cute_tiled_copy, wmma_gemm
from examples._main import ARCHS, cupy_with_gpu

SECONDS_BETWEEN_LINES = 4
NEXT = """
What to try next:
    . .venv/bin/activate
    rtcompile doctor                                          what this machine has, and what it lacks
    rtcompile inspect examples/sources/axpy.cu --arch sm_90a  a kernel's registers and occupancy, without a GPU
    python -m examples.sm90_gemm                              a matrix product on Hopper's tensor cores
    docs/ten-minutes.md                                       a first kernel of your own"""
EXAMPLES = {"WMMA": wmma_gemm, "CuTe": cute_tiled_copy}


def module(example: object, arch: str | None) -> rtcompile.RawModule:
    return rtcompile.RawModule(
        code=example.SOURCE,
        options=example.OPTIONS,
        name_expressions=example.NAME_EXPRESSIONS,
        arch=arch,
    )


@contextmanager
def saying(what: str) -> Iterator[None]:
    """Print a line every few seconds until the block ends."""
    ended = threading.Event()
    start = time.perf_counter()

    def say() -> None:
        while not ended.wait(SECONDS_BETWEEN_LINES):
            print(f"    … {what}, {time.perf_counter() - start:.0f} s", flush=True)

    speaker = threading.Thread(target=say, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        ended.set()
        speaker.join()


def show(name: str, example: object, arch: str | None) -> None:
    """Build, and print what was built and how long it took."""
    start = time.perf_counter()
    with saying(f"compiling {name}"):
        code = module(example, arch).object_code
    elapsed = 1e3 * (time.perf_counter() - start)
    came = f"from the cache ({code.build.hit})" if code.build.hit else code.build.compiler
    print(f"{name}  {code.arch}  {len(code.code):,} bytes in {elapsed:,.1f} ms  {came}", flush=True)
    if code.build.hit:
        return
    for kernel in code.report().kernels:
        print(
            f"    {kernel.name:28} {kernel.registers:3} registers"
            f"  {kernel.shared_bytes:6,} bytes of shared memory"
        )


def main(*, is_second: bool) -> None:
    cp = cupy_with_gpu()
    if cp is None and not is_second:
        print(f"No GPU here: compiling for {', '.join(ARCHS)}.\n")
    for name, example in EXAMPLES.items():
        for arch in (None,) if cp is not None else ARCHS:
            show(name, example, arch)
        if cp is not None:
            with saying(f"running {name}"):
                errors = example.check(cp)
            print(f"    ran {len(errors)} cases; largest relative error against NumPy: ", end="")
            print(f"{max(errors.values()):.1e}")
    if not is_second:
        print("\nA second program requests the same kernels:", flush=True)
        subprocess.run([sys.executable, "-m", "examples.demo", "second"], check=True)
        print(NEXT)


if __name__ == "__main__":
    main(is_second=sys.argv[1:] == ["second"])

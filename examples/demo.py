"""The main job in one minute: WMMA and CuTe kernels through `RawModule`, cold and then cached.

With a GPU they run and are compared with NumPy; without one they are compiled for four
architectures. ``make demo`` runs this.
"""

from __future__ import annotations

import time

import rtcompile
from examples import cute_tiled_copy, wmma_gemm
from examples._main import ARCHS, cupy_with_gpu
from rtcompile.inspect import cubin

EXAMPLES = {"WMMA": wmma_gemm, "CuTe": cute_tiled_copy}


def module(example: object, arch: str | None) -> rtcompile.RawModule:
    return rtcompile.RawModule(
        code=example.SOURCE,
        options=example.OPTIONS,
        name_expressions=example.NAME_EXPRESSIONS,
        arch=arch,
    )


def show(name: str, example: object, arch: str | None) -> None:
    """Build twice, as two programs would, and print what was built."""
    for _ in range(2):
        start = time.perf_counter()
        code = module(example, arch).object_code
        elapsed = 1e3 * (time.perf_counter() - start)
        came = f"from the cache ({code.build.hit})" if code.build.hit else code.build.compiler
        print(f"{name}  {code.arch}  {len(code.code):,} bytes in {elapsed:,.1f} ms  {came}")
    expressions = {symbol: name for name, symbol in code.lowered_names.items()}
    for kernel in cubin.read(code.code).kernels:
        print(
            f"    {expressions.get(kernel.name, kernel.name):28} {kernel.registers:3} registers"
            f"  {kernel.shared_bytes:6,} bytes of shared memory"
        )


def main() -> None:
    cp = cupy_with_gpu()
    if cp is None:
        print(f"No GPU here: compiling for {', '.join(ARCHS)}.\n")
    for name, example in EXAMPLES.items():
        for arch in (None,) if cp is not None else ARCHS:
            show(name, example, arch)
        if cp is not None:
            errors = example.check(cp)
            print(f"    ran {len(errors)} cases; largest relative error against NumPy: ", end="")
            print(f"{max(errors.values()):.1e}")


if __name__ == "__main__":
    main()

"""Kernel Tuner: compile the whole tuning space in parallel, then tune from the cache.

Kernel Tuner compiles one variant, times it, and goes on to the next: most of a tuning run is one
core compiling while the GPU waits. Here `compile_many` builds every variant of the space first, on
all cores and with the includes precompiled; the tuner then finds each in the cache.

There are three things to copy. `requests_of` takes the arguments of ``tune_kernel`` and returns the exact requests
that it will make; for the time of the tuning `cupy.RawModule` is rtcompile's; and the tunables are written *after*
the includes, by a source function and ``defines={}``. By default Kernel Tuner writes them in front, and then each
variant parses the headers anew: a macro may change what a header means, and that it does not is known only of those
who wrote both. A precompiled header cannot be taken across it, and moving the macro behind the include would be a
guess.

Run it: ``pip install kernel-tuner``, ``python -m examples.kernel_tuner_space``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

import rtcompile
from examples._main import cupy_with_gpu

NAME = "row_sums"
OPTIONS = ("-std=c++17",)
TUNABLES = {
    "block_size_x": [64, 128, 256, 512],
    "LOADS": [1, 2, 4, 8],
    "ALGORITHM": [
        "BLOCK_REDUCE_RAKING",
        "BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY",
        "BLOCK_REDUCE_WARP_REDUCTIONS",
    ],
}
RESTRICTIONS = ["block_size_x * LOADS <= 2048"]

INCLUDES = "#include <cub/block/block_reduce.cuh>\n#include <cuda/std/cstdint>\n"
KERNEL = r"""
// One block per row: its sum.
extern "C" __global__ void __launch_bounds__(block_size_x)
row_sums(float* sums, const float* matrix, int columns) {
    using Reduce = cub::BlockReduce<float, block_size_x, cub::ALGORITHM>;
    __shared__ typename Reduce::TempStorage scratch;
    const float* row = matrix + cuda::std::int64_t(blockIdx.x) * columns;
    float sum = 0;
    for (int i = threadIdx.x * LOADS; i < columns; i += block_size_x * LOADS)
        for (int j = 0; j < LOADS && i + j < columns; ++j) sum += row[i + j];
    sum = Reduce(scratch).Sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
"""


def source(params: Mapping[str, Any]) -> str:
    """Return one variant: includes first, then its tunables, then the kernel."""
    defines = "".join(f"#define {name} {value}\n" for name, value in params.items())
    return INCLUDES + defines + KERNEL


def requests_of(
    kernel_name: str,
    kernel_source: Any,
    problem_size: Any,
    tune_params: dict[str, Any],
    *,
    grid_div_x: Any = None,
    grid_div_y: Any = None,
    grid_div_z: Any = None,
    restrictions: Any = None,
    defines: dict[str, Any] | None = None,
    block_size_names: list[str] | None = None,
    compiler_options: Sequence[str] | None = None,
    lang: str = "cupy",
    max_threads: int = 1024,
    arch: str | None = None,
) -> list[rtcompile.CompileRequest]:
    """Return what Kernel Tuner's CuPy backend will compile, made by Kernel Tuner's own functions.

    Its ``#define``s, its ``#line`` and, where no ``-std=`` is given, its ``--std=c++11`` included.
    Tried with Kernel Tuner 1.5.0.

    Parameters
    ----------
    kernel_name, kernel_source, problem_size, tune_params
        As for ``kernel_tuner.tune_kernel``, and so are the others up to `compiler_options`. One
        source: of a list, Kernel Tuner writes all but the first to files with random names, which
        nobody can know beforehand.
    lang : {"cupy", "CUDA"}
        As for ``tune_kernel``, which takes CuPy for CUDA where cuda-python is not installed.
    max_threads : int
        Threads that a block of the device may have.
    arch : str, optional
        Compile for this architecture; None means the current device's.

    Returns
    -------
    list of CompileRequest
        Without duplicates, for `compile_many`.
    """
    from kernel_tuner import core, util
    from kernel_tuner.searchspace import Searchspace

    if isinstance(kernel_source, list):
        raise ValueError("kernel_source is a list; Kernel Tuner's names for its files are random")
    options = list(compiler_options or ())
    if not any("-std=" in option for option in options):
        options.insert(0, "--std=c++11")
    names = list(block_size_names or ())
    util.append_default_block_size_names(names)
    kernel = core.KernelSource(kernel_name, kernel_source, lang, defines)
    call = SimpleNamespace(
        kernel_name=kernel_name,
        problem_size=problem_size,
        grid_div_x=grid_div_x,
        grid_div_y=grid_div_y,
        grid_div_z=grid_div_z,
        block_size_names=names,
        arguments=[],
    )
    device = SimpleNamespace(dev=SimpleNamespace(max_threads=max_threads))
    requests = {}
    for values in Searchspace(tune_params, restrictions, max_threads).list:
        params = dict(zip(tune_params, values, strict=True))
        made = core.DeviceInterface.create_kernel_instance(device, kernel, call, params, False)
        if not isinstance(made, util.ErrorConfig):  # a block of more threads than a device takes
            requests[made.kernel_string] = rtcompile.CompileRequest(
                made.kernel_string, options=options, arch=arch, name_expressions=[made.name]
            )
    return list(requests.values())


def space(tunables: Mapping[str, Sequence[Any]], restrictions: Sequence[str]) -> list[dict]:
    """Return every variant that the restrictions, Python expressions as Kernel Tuner's, allow."""
    names = list(tunables)
    variants = [dict(zip(names, values, strict=True)) for values in product(*tunables.values())]
    return [v for v in variants if all(eval(r, {}, dict(v)) for r in restrictions)]


def compile_space(
    variants: Sequence[Mapping[str, Any]],
    make: Callable[[Mapping[str, Any]], str] = source,
    arch: str | None = None,
) -> list[Any]:
    """Build every variant in parallel; the result of a variant that does not compile is its error."""
    # Kernel Tuner's CuPy backend requests exactly this: source, options, one name expression.
    requests = [
        rtcompile.CompileRequest(make(v), options=OPTIONS, arch=arch, name_expressions=(NAME,))
        for v in variants
    ]
    return rtcompile.compile_many(requests, errors="return")


def tune(cp: Any) -> tuple[list[dict], dict]:
    """Let Kernel Tuner time the variants; each compile is a cache hit."""
    import kernel_tuner

    rows, columns = 4096, 10_000
    matrix = np.random.default_rng(0).random((rows, columns), dtype=np.float32)
    sums = np.zeros(rows, np.float32)
    with patch.object(cp, "RawModule", rtcompile.RawModule):
        return kernel_tuner.tune_kernel(
            NAME,
            source,
            rows,
            [sums, matrix, np.int32(columns)],
            TUNABLES,
            grid_div_x=[],  # as many blocks as rows
            restrictions=RESTRICTIONS,
            answer=[matrix.sum(axis=1, dtype=np.float64).astype(np.float32), None, None],
            atol=1e-1,
            lang="cupy",
            defines={},
            compiler_options=list(OPTIONS),
        )


def main() -> None:
    """Compile the space; tune where there is a GPU."""
    variants = space(TUNABLES, RESTRICTIONS)
    cp = cupy_with_gpu()
    for when in ("first", "again"):
        start = time.perf_counter()
        codes = compile_space(variants, arch=None if cp else "sm_90a")
        hits = sum(code.build.hit is not None for code in codes)
        seconds = time.perf_counter() - start
        print(f"{when}: {len(codes)} variants in {seconds:.2f} s, {hits} from the cache")
    if cp is None:
        print("no GPU here: nothing to tune on")
        return
    start = time.perf_counter()
    results, _ = tune(cp)
    best = min(results, key=lambda result: result["time"])
    print(f"tuned in {time.perf_counter() - start:.2f} s; best {best['time']:.3f} ms:", best)


if __name__ == "__main__":
    main()

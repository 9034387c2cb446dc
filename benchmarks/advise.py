"""Compares `advise` with the driver for thirty kernels, and measures its time without a GPU.

The kernels are those of tests/gpu/test_advice.py: 1 to 230 values in registers, 0 to 200,000 bytes of
shared memory, with and without launch bounds. With a GPU each block is compared with what
``cuOccupancyMaxPotentialBlockSize`` suggests; without one only the time is measured, for sm_90a.
``--save`` writes benchmarks/results/advise.json.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import rtcompile
from benchmarks._machine import gpus, save
from rtcompile.extras.resources import advice
from rtcompile.settings import Settings

ROUNDS = 5


def against_the_driver(module: Any, cases: list[tuple[str, int]]) -> dict[str, object]:
    """Count the kernels whose block, and whose blocks on a multiprocessor, are the driver's."""
    from cuda.bindings import driver

    same, differing = 0, []
    for name, dynamic in cases:
        kernel = module.get_function(name)
        kernel.max_dynamic_shared_size_bytes = dynamic
        found = kernel.advise(dynamic)
        function = kernel.kernel.ptr
        status, _, block = driver.cuOccupancyMaxPotentialBlockSize(function, None, dynamic, 0)
        assert not int(status), status
        status, blocks = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            function, block, dynamic
        )
        assert not int(status), status
        if found.best is not None and (found.best.block, found.best.blocks) == (block, blocks):
            same += 1
        else:
            differing.append(f"{name}, {dynamic} B: {found.best}, the driver {block} x {blocks}")
    return {"kernels": len(cases), "equal to the driver": same, "differing": differing}


def without_a_gpu(source: str, cases: list[tuple[str, int]]) -> dict[str, float]:
    """Return the milliseconds of an advice, of code that is there and of code that must be built."""
    names = [name for name, _ in cases]
    request = rtcompile.CompileRequest(source, arch="sm_90a", name_expressions=names)
    code = rtcompile.compile(source, arch="sm_90a", name_expressions=names)
    once, rebuilt = [], []
    for _ in range(ROUNDS):
        for name, dynamic in cases:
            begin = time.perf_counter()
            advice.Advice.of(code, name, dynamic, source)
            once.append((time.perf_counter() - begin) * 1e3)

    def build(request: rtcompile.CompileRequest) -> rtcompile.ObjectCode:
        from rtcompile.build import pipeline

        return pipeline.build(request, Settings.from_environ().override(recompile=True))

    for name in names[:ROUNDS]:
        only = request.replace(name_expressions=(name,))
        begin = time.perf_counter()
        advice.Advice.of_source(only, build, name, 0, (256, 2))
        rebuilt.append((time.perf_counter() - begin) * 1e3)
    return {
        "of code that is there, median ms a kernel": round(statistics.median(once), 3),
        "with a rebuild for launch_bounds=(256, 2), nothing cached, median ms": round(
            statistics.median(rebuilt), 1
        ),
    }


def main() -> None:
    from tests.gpu.test_advice import CASES, SOURCE

    results: dict[str, object] = {"without a GPU, for sm_90a": without_a_gpu(SOURCE, CASES)}
    if gpus():
        module = rtcompile.RawModule(code=SOURCE, name_expressions=[name for name, _ in CASES])
        results["beside cuOccupancyMaxPotentialBlockSize"] = against_the_driver(module, CASES)
    save("advise", results)


if __name__ == "__main__":
    main()

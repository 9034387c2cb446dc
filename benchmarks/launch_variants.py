"""Measures the caller's time of a launch: `kernel.launch`, ``kernel(…)``, CuPy's and cuda.core's.

A kernel with three arguments that does nothing, launched in turns by all of them in one process; with a
cluster, cooperative, with programmatic dependence, with a priority. The time until the call returns is
measured, while the device keeps up. ``--save`` writes benchmarks/results/launch_variants.json.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

import rtcompile
from benchmarks import _machine

LAUNCHES, ROUNDS = 500, 41
SOURCE = 'extern "C" __global__ void k(float* x, int n, float by) {}'
GRID, BLOCK = 8, 32


def contenders() -> dict[str, Callable[[], None]]:
    x = cupy.zeros(BLOCK, cupy.float32)
    by = np.float32(2)
    theirs, ours = cupy.RawKernel(SOURCE, "k"), rtcompile.RawKernel(SOURCE, "k")
    arguments = (x, 3, by)
    launch = ours.launch
    found: dict[str, Callable[[], None]] = {
        "cupy: kernel(grid, block, args)": lambda: theirs((GRID,), (BLOCK,), arguments),
        "rtcompile: kernel(grid, block, args)": lambda: ours((GRID,), (BLOCK,), arguments),
        "rtcompile: launch": lambda: launch(GRID, BLOCK, arguments),
        "rtcompile: launch, cooperative": lambda: launch(GRID, BLOCK, arguments, cooperative=True),
        "rtcompile: launch, priority": lambda: launch(GRID, BLOCK, arguments, priority=0),
    }
    hopper = int(cupy.cuda.Device().compute_capability) >= 90
    if hopper:
        found |= {
            "rtcompile: launch, cluster": lambda: launch(GRID, BLOCK, arguments, cluster=2),
            "rtcompile: launch, programmatic": lambda: launch(
                GRID, BLOCK, arguments, programmatic=True
            ),
        }
    return found | cuda_core(ours.kernel, ours, x, by, hopper)


def cuda_core(loaded: Any, kernel: Any, x: Any, by: Any, hopper: bool) -> dict[str, Any]:
    """Return cuda.core's launches of the same code, where it is installed."""
    try:
        from cuda.core import Device, LaunchConfig, ObjectCode, launch
    except ImportError:
        return {}
    device = Device(x.device.id)
    device.set_current()
    stream = device.default_stream
    of_core = ObjectCode.from_cubin(kernel.object_code.code).get_kernel("k")
    pointer = int(x.data.ptr)
    found: dict[str, Any] = {}

    def add(name: str, **how: Any) -> None:
        try:
            config = LaunchConfig(block=BLOCK, **how)
        except (TypeError, ValueError, RuntimeError):  # this release has not got it
            return
        found[f"cuda.core: launch{name}"] = lambda: launch(
            stream, config, of_core, pointer, np.int32(3), by
        )
        found[f"cuda.core: launch{name}, a LaunchConfig each time"] = lambda: launch(
            stream, LaunchConfig(block=BLOCK, **how), of_core, pointer, np.int32(3), by
        )

    add("", grid=GRID)
    add(", cooperative", grid=GRID, is_cooperative=True)
    if hopper:
        add(", cluster", grid=GRID // 2, cluster=2)  # its grid counts clusters
        add(", programmatic", grid=GRID, programmatic_stream_serialization=True)
    return found


def microseconds(launch: Callable[[], None]) -> float:
    begin = time.perf_counter()
    for _ in range(LAUNCHES):
        launch()
    elapsed = time.perf_counter() - begin
    cupy.cuda.Device().synchronize()
    return elapsed / LAUNCHES * 1e6


def main() -> None:
    launches = contenders()
    runs: dict[str, list[float]] = {name: [] for name in launches}
    for launch in launches.values():
        microseconds(launch)
    for _ in range(ROUNDS):
        for name, launch in launches.items():
            runs[name].append(microseconds(launch))
    medians = {name: round(statistics.median(times), 2) for name, times in runs.items()}
    theirs = medians["cupy: kernel(grid, block, args)"]
    _machine.save(
        "launch_variants",
        {
            "microseconds until the call returns, median": medians,
            "beside cupy's": {name: round(took / theirs, 2) for name, took in medians.items()},
        },
    )


if __name__ == "__main__":
    main()

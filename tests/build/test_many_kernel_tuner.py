"""The Kernel Tuner recipe compiles exactly the builds that Kernel Tuner will request."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from examples import kernel_tuner_space as recipe
from rtcompile.build.many import compile_many

pytestmark = pytest.mark.needs_compiler

ONE = {"block_size_x": 64, "LOADS": 2, "ALGORITHM": "BLOCK_REDUCE_RAKING"}


def test_variants_compile_and_are_found_again():
    hits = [recipe.compile_space([ONE], arch="sm_90")[0].build.hit for _ in range(2)]
    assert hits == [None, "memory"]


SOURCE = """
#include <cuda/std/cstdint>
extern "C" __global__ void k(float* x) {
    if (threadIdx.x < block_size_x * TILE * grid_size_x) x[threadIdx.x] = TILE;
}
"""
TEMPLATE = """
template <int N> __global__ void t(float* x) { if (threadIdx.x < N) x[threadIdx.x] = block_size_x; }
"""
CALL: dict[str, Any] = {
    "kernel_name": "k",
    "kernel_source": SOURCE,
    "problem_size": 4096,
    "tune_params": {"block_size_x": [64, 128, 2048], "TILE": [1, 2]},
    "restrictions": ["block_size_x * TILE <= 128"],
}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="its own defines"),
        pytest.param({"compiler_options": ["-std=c++17", "-O3"]}, id="options"),
        pytest.param(
            {"defines": {"grid_size_x": "block_size_x * 2", "block_size_x": 7, "TILE": 3}},
            id="defines",
        ),
        pytest.param({"grid_div_x": ["block_size_x", "TILE"]}, id="divisors"),
        pytest.param(
            {"lang": "CUDA", "kernel_name": "t<TILE>", "kernel_source": TEMPLATE}, id="template"
        ),
        pytest.param({"kernel_source": lambda params: f"// {params}\n{SOURCE}"}, id="function"),
    ],
)
def test_requests_are_what_kernel_tuner_requests_of_cupy(changes, monkeypatch):
    """Let Kernel Tuner tune on a fake device that only records the requests."""
    tuner = pytest.importorskip("kernel_tuner")
    core = pytest.importorskip("kernel_tuner.core")
    backend = pytest.importorskip("kernel_tuner.backends.cupy")
    wanted = set()

    class Module:
        def __init__(self, code, options, name_expressions):
            wanted.add((code, options, tuple(name_expressions)))

        def get_function(self, name):
            return SimpleNamespace(num_regs=1)

    class Device(backend.CupyFunctions):
        def __init__(self, *_, compiler_options=None, observers=None, **__):
            self.compiler_options = compiler_options or []
            self.max_threads, self.name, self.env, self.observers = 1024, "none", {}, []
            self.dev = self.units = {}

        def ready_argument_list(self, arguments):
            return list(arguments)

    def timed(self, func, gpu_args, instance, *_, **__):
        return {"time": 1.0, "times": [1.0]}

    monkeypatch.setattr(backend, "CupyFunctions", Device)
    monkeypatch.setattr(core, "_select_default_cuda_backend", lambda: Device)
    monkeypatch.setattr(backend, "cp", SimpleNamespace(RawModule=Module))
    monkeypatch.setattr(core.DeviceInterface, "benchmark", timed)
    arguments = {**CALL, **changes}
    positional = [arguments.pop(name) for name in ("kernel_name", "kernel_source", "problem_size")]
    tune_params = arguments.pop("tune_params")
    tuner.tune_kernel(
        *positional, [np.zeros(4, np.float32)], tune_params, **{"lang": "cupy", **arguments}
    )
    requests = recipe.requests_of(*positional, tune_params, arch="sm_90", **arguments)
    assert {(r.source, r.options, r.name_expressions) for r in requests} == wanted
    assert len(requests) == len(wanted) > 0
    assert all(compile_many(requests[:1], progress=False))

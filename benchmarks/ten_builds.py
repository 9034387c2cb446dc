"""Ten builds of ten kinds, tried in the environment that this is run in; prints JSON.

Run by `environments`, as a file and not as a module: the rtcompile that is installed is tried, not
the checkout's. Arguments: whether this machine's own toolkits are seen (0 or 1), then names of builds.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence

REDUCE = "using R = cub::BlockReduce<int, 128>; __shared__ R::TempStorage s;"
TILE = "fragment<accumulator, 16, 16, 16, float> c; fill_fragment(c, 1.0f);"
KERNEL = "__global__ void k(int* x) { *x = 42; }"

# name -> source, and the other arguments of rtcompile.compile
BUILDS: dict[str, tuple[str, dict[str, object]]] = {
    "plain": (KERNEL, {}),
    "WMMA": (
        "#include <mma.h>\nusing namespace nvcuda::wmma;\n__global__ void k(float* x) {"
        f" {TILE} store_matrix_sync(x, c, 16, mem_row_major); }}",
        {},
    ),
    "CUB block": (
        "#include <cub/block/block_reduce.cuh>\n__global__ void k(int* x) {"
        f" {REDUCE} *x = R(s).Sum(threadIdx.x); }}",
        {},
    ),
    "CUB device": (f"#include <cub/device/device_reduce.cuh>\n{KERNEL}", {}),
    "std": (
        "#include <cstdint>\n#include <limits>\n__global__ void k(std::uint32_t* x) {"
        " *x = std::numeric_limits<std::uint32_t>::max(); }",
        {},
    ),
    "cuRAND": (
        "#include <curand_kernel.h>\n__global__ void k(float* x) { curandStatePhilox4_32_10_t s;"
        " curand_init(1, 2, 0, &s); *x = curand_uniform(&s); }",
        {},
    ),
    "CuTe": (
        "#include <cute/tensor.hpp>\n__global__ void k(float* x) { cute::clear(cute::make_tensor("
        "x, cute::make_shape(cute::Int<8>{}))); }",
        {},
    ),
    "NVCC": (
        f"#include <vector>\n{KERNEL}\nint main() {{ return std::vector<int>(1, 0)[0]; }}",
        {},
    ),
    "LTO link": (
        "extern __device__ int f(int);\n__global__ void k(int* x) { *x = f(*x); }",
        {"options": ("-dlto",), "link": ["__device__ int f(int x) { return x + 1; }"]},
    ),
    "device launch": (
        "__global__ void c(int* x) { *x = 1; }\n__global__ void k(int* x) { c<<<1, 1>>>(x); }",
        {},
    ),
}


def build(names: Sequence[str], system: bool) -> None:
    """Compile, and print what came of it as JSON."""
    import rtcompile
    from rtcompile.toolkit import search
    from rtcompile.toolkit.remembered import current
    from rtcompile.tools import examine, verdict

    if not system:
        search.find.__kwdefaults__.update(usual_roots=(), last=lambda _: ())
    results = {}
    for name in names:
        source, arguments = BUILDS[name]
        try:
            built = rtcompile.compile(source, arch="sm_80", name="kernel.cu", **arguments)
            results[name] = {"backend": built.build.backend}
        except rtcompile.RtcompileError as error:
            text = str(error)
            commands = re.findall(r"`((?:pip|conda) install [^`]+)`", " ".join(text.split()))
            results[name] = {"error": text.splitlines()[0], "commands": commands, "text": text}
    toolchain = current()
    report = {
        "builds": results,
        "versions": dict(toolchain.versions),
        "problems": toolchain.problems,
        "doctor": verdict(examine(probes=False)),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    build(sys.argv[2:], bool(int(sys.argv[1])))

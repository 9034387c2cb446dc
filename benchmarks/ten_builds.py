"""Ten builds of ten kinds, and further ones that are cached, tried in the environment that this is run in; prints JSON.

Run by `environments`, as a file and not as a module: the rtcompile that is installed is tried, not
the checkout's. Arguments: whether this machine's own toolkits are seen (0 or 1), then names of builds; after
``--again``, names of builds that a process before this one has made.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

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

# Further kinds of builds, of which a second process must find each that the first could make.
FURTHER: dict[str, tuple[str, dict[str, object]]] = {
    "all of CUB": (f"#include <cub/cub.cuh>\n{KERNEL}", {}),
    "CUB by NVCC": (f"#include <cub/block/block_reduce.cuh>\n{KERNEL}", {"backend": "nvcc"}),
    "Thrust": (f"#include <thrust/device_vector.h>\n{KERNEL}", {}),
    "cooperative groups": (
        "#include <cooperative_groups.h>\n__global__ void k(int* x) {"
        " cooperative_groups::this_thread_block().sync(); *x = 42; }",
        {},
    ),
    "rdc link": (
        "extern __device__ int f(int);\n__global__ void k(int* x) { *x = f(*x); }",
        {"options": ("-rdc=true",), "link": ["__device__ int f(int x) { return x + 1; }"]},
    ),
    "name expressions": (
        "template<class T> __global__ void k(T* x) { *x = 42; }",
        {"name_expressions": ("k<int>", "k<float>")},
    ),
    "PTX": (KERNEL, {"target": "ptx"}),
    "LTO-IR": (KERNEL, {"target": "ltoir"}),
    "headers=": (
        f'#include "value.h"\n{KERNEL.replace("42", "VALUE")}',
        {"headers": {"value.h": "#define VALUE 7\n"}},
    ),
    "a package's source": (
        f'#include "sibling.cuh"\n{KERNEL.replace("42", "SIBLING")}',
        {"name": f"{sys.prefix}/package/kernel.cu"},
    ),
}
KINDS = {**BUILDS, **FURTHER}


def compiled(name: str) -> object:
    """Return the object code of a build."""
    import rtcompile

    source, arguments = KINDS[name]
    return rtcompile.compile(source, **{"arch": "sm_80", "name": "kernel.cu", **arguments})


def again(names: Sequence[str], system: bool) -> None:
    """Print as JSON, of builds that were made before, where each was found, how fast, and what was started for it."""
    if not system:
        use_no_system()
    import rtcompile

    rtcompile.compile("", arch="sm_80")  # with the imports that any hit needs
    found = {}
    for name in names:
        build = compiled(name).build
        started = "".join(
            Path(each).read_text() for each in glob.glob("/proc/self/task/*/children")
        )
        found[name] = {"hit": build.hit, "milliseconds": build.milliseconds, "started": started}
        found[name]["notes"] = build.notes
    print(json.dumps(found))


def use_no_system() -> None:
    """Hide this machine's own toolkits."""
    from rtcompile.toolkit import search

    search.find.__kwdefaults__.update(usual_roots=())


def build(names: Sequence[str], system: bool) -> None:
    """Compile, and print what came of it as JSON."""
    import rtcompile
    from rtcompile.checkup import examine, verdict
    from rtcompile.toolkit import current

    if not system:
        use_no_system()
    os.makedirs(f"{sys.prefix}/package", exist_ok=True)
    Path(f"{sys.prefix}/package/sibling.cuh").write_text("#define SIBLING 7\n")
    with contextlib.suppress(rtcompile.RtcompileError):  # there may be no toolkit
        rtcompile.compile("", arch="sm_80")
    results = {}
    for name in names:
        try:
            built = compiled(name)
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
    if sys.argv[2] == "--again":
        again(sys.argv[3:], bool(int(sys.argv[1])))
    else:
        build(sys.argv[2:], bool(int(sys.argv[1])))

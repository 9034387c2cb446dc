"""Every row of the catalogue meets its message as a real compiler writes it, and says the cause."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from rtcompile import toolkit
from rtcompile.compilers import nvcc, nvrtc
from rtcompile.core import diagnostics, hints
from rtcompile.core.arch import Arch
from rtcompile.core.context import BuildContext
from rtcompile.core.known_messages import MESSAGES
from rtcompile.core.request import Compiled, Limits, SearchDir, TranslationUnit
from rtcompile.toolkit.model import Library, Toolchain

EMPTY = "__global__ void k() {}"
SHARED_80000 = """__global__ void k(int* x) {
  __shared__ int s[20000];
  s[threadIdx.x] = *x;
  __syncthreads();
  x[1] = s[5 - threadIdx.x];
}"""
CUTE = "#include <cute/tensor.hpp>\n" + EMPTY
ENDLESS = (
    "typedef void (*F0)();\n"
    + "".join(f"typedef F{i} (*F{i + 1})(F{i}, F{i}, F{i});\n" for i in range(20))
    + "__global__ void k(F20 f) {}"
)
WGMMA = """__global__ void k(float* x, unsigned long long a, unsigned long long b) {
  float d0 = x[0], d1 = x[1], d2 = x[2], d3 = x[3];
  asm volatile("wgmma.fence.sync.aligned;");
#define MMA \\
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 " \\
    "{%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;" \\
    : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "l"(a), "l"(b));
  MMA
  d0 += 1;
  MMA
  asm volatile("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;");
  x[0] = d0; x[1] = d1; x[2] = d2; x[3] = d3;
}"""
PLAIN_NVRTC = """
import ctypes, json, sys
job = json.load(sys.stdin)
for path in job["preload"]:
    ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
nvrtc, program, size = ctypes.CDLL(job["library"]), ctypes.c_void_p(), ctypes.c_size_t()
source, options = job["source"].encode(), [option.encode() for option in job["options"]]
nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", 0, None, None)
nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
log = ctypes.create_string_buffer(size.value)
nvrtc.nvrtcGetProgramLog(program, log)
print(log.value.decode())
if nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0:
    code = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, code)
    open("kernel.cubin", "wb").write(code.raw)
"""
PLAIN_NVJITLINK = """
import ctypes, sys
path, kind, given, *options = sys.argv[1:]
nvjitlink, handle, size = ctypes.CDLL(path), ctypes.c_void_p(), ctypes.c_size_t()
arguments = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
if nvjitlink.nvJitLinkCreate(ctypes.byref(handle), len(options), arguments) == 0:
    data = open(given, "rb").read()
    nvjitlink.nvJitLinkAddData(handle, int(kind), data, ctypes.c_size_t(len(data)), b"input")
    nvjitlink.nvJitLinkComplete(handle)
nvjitlink.nvJitLinkGetErrorLogSize(handle, ctypes.byref(size))
log = ctypes.create_string_buffer(size.value + 1)
nvjitlink.nvJitLinkGetErrorLog(handle, log)
print(log.value.decode())
"""
OLD_WHEELS = (
    "nvidia-cuda-nvrtc-cu12==12.4.127",
    "nvidia-cuda-runtime-cu12==12.4.127",
    "nvidia-cuda-nvcc-cu12==12.4.131",
    "nvidia-cuda-cccl-cu12==12.4.127.post1",
)
# Pieces of another CCCL, as a stray -I brings them.
STRAY_HEADERS = {
    "old_diagnostic_h": {"cuda/std/__cccl/diagnostic.h": "#pragma once\n"},
    "old_cccl_version": {"cuda/version": "#define CCCL_VERSION 1000000\n"},
}
NEW_CCCL = ("nvidia-cuda-cccl==13.3.5.0.6",)
MIXED_NVCC = (
    "nvidia-cuda-nvcc==13.5.37",
    "nvidia-cuda-crt==13.5.37",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-nvvm==13.0.88",
)


@dataclass(frozen=True)
class Provoked:
    """How to make a compiler say something, and what the hint must then hold.

    `headers` are include directories: ``"12:cudart 13:cccl"``. `toolkit` is whose NVRTC it is.
    """

    says: str
    hint: tuple[str, ...]
    source: str = EMPTY
    options: str = ""
    headers: str = ""
    toolkit: str = "12"
    arch: str = "sm_80"
    names: tuple[str, ...] = ()
    alone: bool = False  # the options say everything: no -arch, no -std, no -default-device
    capability: tuple[int, int] | None = None
    seconds: float | None = None
    memory: int | None = None
    plain: bool = False  # NVRTC itself, with none of our options and precautions
    builtins: bool = True  # whether its second library lies beside it


def case(row: str, says: str, *hint: str, **how: object) -> object:
    suffix = "-".join(str(how[k]) for k in ("toolkit", "arch") if k in how)
    return pytest.param(row, Provoked(says, hint, **how), id=f"{row}-{suffix}".rstrip("-"))  # type: ignore[arg-type]


BY_NVRTC = [
    case(
        "option-twice",
        "defined more than once",
        "two spellings",
        toolkit="12.4",
        plain=True,
        options="-arch=sm_80 -arch=sm_90",
        alone=True,
    ),
    case(
        "option-twice",
        '"--std (-std)=c++14" followed by',
        "the last wins",
        options="-std=c++14 -std=c++17 -arch=sm_80",
        alone=True,
    ),
    case(
        "option-twice",
        '"--gpu-architecture(-arch)=80" followed by',
        "suffix stays",
        toolkit="13",
        options="-arch=sm_80 -arch=sm_90",
        alone=True,
    ),
    case("arch-unknown", "invalid value for --gpu-arch", "13.0 or newer does", arch="sm_110"),
    case(
        "arch-unknown",
        "invalid value for --gpu-arch",
        "12.0 to 12.9 does",
        toolkit="13",
        arch="sm_70",
    ),
    case(
        "arch-conflict",
        "specified with --nv_arch flag",
        "-arch=sm_90a and -arch=sm_80",
        options="-arch=sm_90a -arch=sm_80",
        alone=True,
    ),
    case("arch-deprecated", "Architectures prior to", "Stay with CUDA 12", arch="sm_60"),
    case(
        "option-of-nvcc", "unrecognized option -O3 found", "-O3 is an option of nvcc", options="-O3"
    ),
    case(
        "option-of-nvcc",
        "unrecognized option --expt-",
        "option of nvcc",
        options="--expt-relaxed-constexpr",
    ),
    case(
        "option-of-nvcc",
        "unrecognized option -gencode",
        "option of nvcc",
        options="-gencode arch=compute_80,code=sm_80",
    ),
    case(
        "option-too-new",
        "unrecognized option --pch",
        "needs NVRTC 12.8 or newer; this is NVRTC 12.4",
        toolkit="12.4",
        plain=True,
        options="--pch",
    ),
    case(
        "option-too-new",
        "unrecognized option --use-bundled",
        "13.3 or newer; this is NVRTC 13.0",
        toolkit="13",
        options="--use-bundled-headers=x",
    ),
    case(
        "option-unknown",
        "unrecognized option -foo=3",
        "NVRTC 12.9.86 has no option -foo=3",
        options="-foo=3",
    ),
    case(
        "std-unknown",
        "invalid value for --std",
        "-std=gnu++17 is no language standard",
        options="-std=gnu++17 -arch=sm_80",
        alone=True,
    ),
    case(
        "std-unknown",
        "invalid value for --std",
        "-std=c++23 is no",
        options="-std=c++23 -arch=sm_80",
        alone=True,
    ),
    case(
        "host-headers",
        "unrecognized #pragma",
        "Remove -I",
        source="#include <vector>\n" + EMPTY,
        headers="12:cudart user:/usr/include/c++/{gcc}",
    ),
    case(
        "crt-missing",
        'cannot open source file "crt/mma.h"',
        "nvidia-cuda-nvcc-cu12==12.9.*",
        source="#include <mma.h>\n" + EMPTY,
        headers="12:cudart",
    ),
    case(
        "driver-header",
        'cannot open source file "stdlib.h"',
        "host code",
        "__grid_constant__",
        source="#include <cuda.h>\n" + EMPTY,
        headers="12:cudart",
    ),
    case(
        "driver-header",
        '"CUtensorMap" is undefined',
        "cuda.h",
        source="__global__ void k(CUtensorMap m) {}",
    ),
    case(
        "header-host-only",
        'could not open source file "vector"',
        "<vector> has no version",
        source="#include <vector>\n" + EMPTY,
    ),
    case(
        "header-of-package",
        'could not open source file "mma.h" (no directories in search list)',
        "comes with",
        "nvidia-cuda-runtime",
        source="#include <mma.h>\n" + EMPTY,
    ),
    case(
        "header-of-package",
        'cannot open source file "cute/tensor.hpp"',
        "nvidia-cutlass",
        source=CUTE,
        headers="12:cudart",
    ),
    case(
        "header-missing",
        'cannot open source file "mine.h"',
        "none of the 1 directories",
        "-I",
        source='#include "mine.h"\n' + EMPTY,
        headers="12:cudart",
    ),
    case(
        "standard-too-old",
        "libcu++ requires at least C++ 17",
        "the options have -std=c++14",
        source="#include <cuda/std/cstdint>\n" + EMPTY,
        headers="12:cudart 12:crt 12:cccl",
        options="-std=c++14 -arch=sm_80 -default-device",
        alone=True,
    ),
    case(
        "standard-too-old",
        "CUB requires at least C++17",
        "CUB of this version needs C++17",
        source="#include <cub/block/block_reduce.cuh>\n" + EMPTY,
        toolkit="13",
        headers="13:cudart 13:cccl",
        options="-std=c++14 -arch=sm_80 -default-device",
        alone=True,
    ),
    case(
        "umbrella-header",
        "Including <cub/cub.cuh> is not supported",
        "launches kernels from the host",
        source="#include <cub/cub.cuh>\n" + EMPTY,
        toolkit="13",
        headers="13:cudart new:cccl",
    ),
    case(
        "cutlass-and-cccl",
        "array.hpp(451): error: declaration is incompatible",
        "CUTLASS 4.2.0",
        "do not go together",
        source=CUTE,
        headers="12:cudart 12:crt new:cccl 12:cutlass",
    ),
    case(
        "one-letter-macro",
        "__nv_nvrtc_builtin_header.h",
        "-DT=float",
        source=CUTE,
        headers="12:cudart 12:crt 12:cccl 12:cutlass",
        options="-DT=float",
    ),
    case(
        "minimal",
        'identifier "cudaStream_t" is undefined',
        "Remove -minimal",
        source=CUTE,
        headers="12:cudart 12:crt 12:cccl 12:cutlass",
        options="-minimal",
    ),
    case(
        "headers-mixed",
        "__NV_SILENCE_DEPRECATION_BEGIN",
        "NVRTC 12.9.86",
        "Remove -I",
        source="#include <cuda_fp8.h>\n" + EMPTY,
        headers="user:13:cudart",
    ),
    case(
        "headers-mixed",
        'incomplete type "__nv_fp8_e8m0"',
        "two CUDA versions",
        source="#include <cub/block/block_reduce.cuh>\n" + EMPTY,
        headers="12.4:cudart new:cccl",
    ),
    case(
        "headers-mixed",
        "_CCCL_PUSH_MACROS",
        "two CUDA versions",
        source="#include <cuda/std/limits>\n" + EMPTY,
        toolkit="13",
        headers="user:old_diagnostic_h 13:cudart 13:cccl",
    ),
    case(
        "headers-mixed",
        "static assertion failed",
        "two CUDA versions",
        source="#include <cub/version.cuh>\n" + EMPTY,
        headers="12:cudart 12:crt user:old_cccl_version 12:cccl",
    ),
    case(
        "host-function",
        "explicitly marked as a __host__ function is not allowed",
        "backend='nvcc'",
        source="__host__ int f() { return 1; }\n" + EMPTY,
    ),
    case(
        "no-execution-space",
        "function without execution space annotations",
        "-default-device",
        source="int f() { return 1; }\n" + EMPTY,
        options="-arch=sm_80",
        alone=True,
    ),
    case(
        "undefined-parameter-type",
        'attribute "__global__" does not apply here',
        "<cstdint>",
        source="__global__ void k(MyType* x) {}",
    ),
    case(
        "no-memory-space",
        "namespace scope variable without memory space",
        "__constant__",
        source="int counter = 3;\n" + EMPTY,
        options="-arch=sm_80",
        alone=True,
    ),
    case(
        "launch-in-kernel",
        "device-side kernel launch could not be processed",
        "-rdc=true",
        source="__global__ void child() {}\n__global__ void k() { child<<<1, 1>>>(); }",
    ),
    case(
        "dynamic-initialization",
        "dynamic initialization is not supported for a __device__",
        "A __device__ variable",
        "constexpr",
        source="struct A { int x; __device__ A() { x = threadIdx.x; } };\n__device__ A a;\n"
        + EMPTY,
    ),
    case(
        "int128",
        "128-bit integer type",
        "--device-int128",
        source="__global__ void k(__int128* x) {}",
    ),
    case(
        "int128",
        "128-bit floating point type",
        "--device-float128",
        source="__global__ void k(__float128* x) {}",
    ),
    case(
        "exceptions",
        "does not support exception handling",
        "no exceptions",
        source="__global__ void k() { throw 1; }",
    ),
    case(
        "annotated-lambda",
        "annotation on lambda requires --extended-lambda",
        "Drop the annotation",
        source="__global__ void k() { auto f = [=] __device__ (int x) { return x; }; f(1); }",
    ),
    case(
        "texture-reference",
        "texture is not a template",
        "cudaTextureObject_t",
        source="texture<float, 1> t;\n" + EMPTY,
    ),
    case(
        "wmma-namespace",
        "name must be a namespace name",
        "No architecture was fixed",
        source="#include <mma.h>\nusing namespace nvcuda;\n" + EMPTY,
        headers="12:cudart 12:crt",
        options="-std=c++17",
        alone=True,
    ),
    case(
        "wmma-namespace",
        "name must be a namespace name",
        "sm_60 has no tensor cores",
        source="#include <mma.h>\nusing namespace nvcuda;\n" + EMPTY,
        headers="12:cudart 12:crt",
        arch="sm_60",
    ),
    case(
        "wmma-fragment",
        'incomplete type "nvcuda::wmma::fragment<',
        "16x16x16, 32x8x16, 8x32x16",
        "not 16x16x15",
        source="#include <mma.h>\nusing namespace nvcuda::wmma;\n"
        "__global__ void k() { fragment<matrix_a, 16, 16, 15, __half, row_major> f; }",
        headers="12:cudart 12:crt",
    ),
    case(
        "wmma-fragment",
        'incomplete type "nvcuda::wmma::fragment<',
        "begin with sm_80; this build is for sm_75",
        source="#include <mma.h>\n#include <cuda_bf16.h>\nusing namespace nvcuda::wmma;\n"
        "__global__ void k() { fragment<matrix_a, 16, 16, 16, __nv_bfloat16, row_major> f; }",
        headers="12:cudart 12:crt",
        arch="sm_75",
    ),
    case(
        "wmma-fragment",
        'incomplete type "nvcuda::wmma::fragment<',
        "float is no input type",
        source="#include <mma.h>\nusing namespace nvcuda::wmma;\n"
        "__global__ void k() { fragment<matrix_a, 16, 16, 16, float, row_major> f; }",
        headers="13:cudart",
        toolkit="13",
    ),
    case(
        "wmma-fragment",
        "incomplete type is not allowed",
        "16x16x16, 32x8x16, 8x32x16",
        source="#include <mma.h>\nusing namespace nvcuda::wmma;\n"
        "__global__ void k() { fragment<matrix_a, 16, 16, 15, __half, row_major> f; }",
        headers="12.4:cudart 12.4:crt",
        toolkit="12.4",
        plain=True,
    ),
    case(
        "cp-async-in-cute",
        "cp.async sizeof(TS) is not supported",
        "cp.async of one short",
        "UniversalCopy",
        source="#include <cute/tensor.hpp>\nusing namespace cute;\n"
        "__global__ void k(short* x) { SM80_CP_ASYNC_CACHEALWAYS<short>::copy(x[0], x[1]); }",
        headers="12:cudart 12:crt 12:cccl 12:cutlass",
    ),
    case(
        "copy-partitioning",
        "Src/Dst partitioning does not match",
        "contiguous elements",
        source="#include <cute/tensor.hpp>\nusing namespace cute;\n"
        "__global__ void k(float* x) {\n"
        "  Copy_Atom<UniversalCopy<uint128_t>, float> atom;\n"
        "  auto t = make_tensor(make_gmem_ptr(x), make_shape(Int<3>{}));\n"
        "  atom.call(t, t);\n}",
        headers="12:cudart 12:crt 12:cccl 12:cutlass",
    ),
    case(
        "name-expression",
        "Error in parsing name expression",
        "`k<nosuch>` of name_expressions",
        source="template<class T> __global__ void k(T* x) {}",
        names=("k<nosuch>",),
    ),
    case(
        "template-in-extern-c",
        'may not have extern "C" linkage',
        "name expression",
        source='extern "C" { template<class T> __global__ void k(T* x) {} }',
    ),
    case(
        "identifier-removed",
        '"__shfl" is undefined',
        "__shfl_sync",
        source="__global__ void k() { __shfl(1, 2); }",
    ),
    case(
        "identifier-beyond-arch",
        '"__reduce_add_sync" is undefined',
        "sm_80; this build is for sm_75",
        source="__global__ void k(unsigned* x) { *x = __reduce_add_sync(~0u, *x); }",
        arch="sm_75",
    ),
    case(
        "identifier-beyond-arch",
        'no member "this_cluster"',
        "begins with sm_90",
        source="#include <cooperative_groups.h>\n"
        "__global__ void k() { cooperative_groups::this_cluster().sync(); }",
        headers="12:cudart 12:crt 12:cccl",
    ),
    case(
        "cluster-dims",
        "__cluster_dims__ is not supported",
        "sm_90; this build is for sm_80",
        source="__global__ void __cluster_dims__(2, 1, 1) k() {}",
    ),
    case(
        "identifier-declared-in",
        '"FLT_MAX" is undefined',
        "<cfloat>",
        source="__global__ void k(float* x) { *x = FLT_MAX; }",
    ),
    case(
        "identifier-declared-in",
        '"cudaGridDependencySynchronize" is undefined',
        "<cuda_device_runtime_api.h>",
        source="__global__ void k() { cudaGridDependencySynchronize(); }",
    ),
    case(
        "host-api",
        '"cudaMalloc" is undefined',
        "host's runtime API",
        source="__global__ void k() { cudaMalloc(0, 3); }",
    ),
    case(
        "std-on-device",
        'namespace "std" has no member "max"',
        "<algorithm>",
        source="#include <cuda/std/cstdint>\n__global__ void k(int* x) { *x = std::max(1, 2); }",
        headers="12:cudart 12:crt 12:cccl",
    ),
    case(
        "std-host-only",
        'namespace "std" has no member "vector"',
        "does not exist for device code",
        source="#include <cuda/std/cstdint>\n__global__ void k() { std::vector<int> v; }",
        headers="12:cudart 12:crt 12:cccl",
    ),
    case(
        "half-ambiguous",
        'more than one operator "+" matches',
        "__float2half",
        source="#include <cuda_fp16.h>\n__global__ void k(__half* x) { *x = *x + 1.0; }",
        headers="12:cudart",
    ),
    case(
        "atomic-type",
        'overloaded function "atomicAdd" matches',
        "atomic_ref",
        source="__global__ void k(short* x) { atomicAdd(x, (short)1); }",
    ),
    case(
        "dynamic-shared-in-template",
        "declaration is incompatible with previous",
        "unsigned char raw[]",
        source="template<class T> __global__ void k(T* x) { extern __shared__ T s[]; s[0] = *x; }\n"
        "template __global__ void k(int*);\ntemplate __global__ void k(float*);",
    ),
    case(
        "shared-initializer",
        "initializer not allowed for __shared__",
        "__syncthreads",
        source="__global__ void k() { __shared__ int x = 3; }",
    ),
    case(
        "recursion",
        "excessive recursion at instantiation",
        "terminating specialisation",
        source="template<int N> struct R { static constexpr int v = R<N - 1>::v; };\n"
        "__global__ void k(int* x) { *x = R<3>::v; }",
    ),
    case(
        "grid-constant",
        "must have const-qualified type",
        "const __grid_constant__",
        source="__global__ void k(__grid_constant__ int x) {}",
    ),
    case(
        "parameter-space",
        "Formal parameter space overflowed",
        "40008 bytes",
        "passes 32764",
        source="struct P { char x[40000]; };\n__global__ void k(P p, int* x) { *x = p.x[*x]; }",
    ),
    case(
        "pch-heap",
        "insufficient preallocated memory for generation of precompiled",
        "tries again",
        source=CUTE,
        headers="12:cudart 12:crt 12:cccl 12:cutlass",
        options="--create-pch=x.pch",
        plain=True,
    ),
    case(
        "nvrtc-builtins",
        "failed to open libnvrtc-builtins",
        "Reinstall the package",
        plain=True,
        builtins=False,
    ),
    case(
        "pch-file", "cannot open precompiled header file", "vanished", options="--use-pch=gone.pch"
    ),
    case(
        "instruction-needs-suffix",
        "'wgmma.fence' not supported on .target 'sm_90'",
        "arch='sm_90a'",
        source='__global__ void k() { asm volatile("wgmma.fence.sync.aligned;"); }',
        arch="sm_90",
    ),
    case(
        "instruction-needs-suffix",
        "'wgmma.fence' not supported on .target 'sm_120'",
        "sm_120 has none of it",
        source='__global__ void k() { asm volatile("wgmma.fence.sync.aligned;"); }',
        arch="sm_120",
        toolkit="13",
    ),
    case(
        "instruction-needs-suffix",
        "'wgmma.fence' not supported on .target 'sm_90'",
        "Your device has none",
        source='__global__ void k() { asm volatile("wgmma.fence.sync.aligned;"); }',
        arch="sm_90",
        capability=(12, 0),
    ),
    case(
        "instruction-needs-suffix",
        "not supported on .target 'sm_90'",
        "from compute capability 9.0 on",
        source='__global__ void k() { asm volatile("setmaxnreg.inc.sync.aligned.u32 24;"); }',
        arch="sm_90",
    ),
    case(
        "instruction-needs-suffix",
        "'tcgen05.fence' not supported on .target 'sm_100'",
        "arch='sm_100a'",
        source='__global__ void k() { asm volatile("tcgen05.fence::before_thread_sync;"); }',
        arch="sm_100",
    ),
    case(
        "instruction-needs-arch",
        "requires .target sm_90 or higher",
        "begins with sm_90; this build is for sm_80",
        source='__global__ void k() { asm volatile("barrier.cluster.arrive;"); }',
    ),
    case(
        "cp-async-size",
        "unexpected value '3', expected to be 4 or 8 or 16",
        "not 3",
        source="__global__ void k(int* x) {\n"
        '  asm volatile("cp.async.ca.shared.global [%0], [%1], 3;" :: "r"(0), "l"(x));\n}',
    ),
    case(
        "static-shared-memory",
        "uses too much shared data (0x13880 bytes, 0xc000 max)",
        "80000",
        "49152",
        source=SHARED_80000,
    ),
    case(
        "constant-memory",
        "uses too much global constant data",
        "64 KiB",
        source="__constant__ char c[70000];\n__global__ void k(int* x) { *x = c[*x]; }",
    ),
    case(
        "code-generator",
        "failed with an internal error",
        "code generator gave up",
        source='extern "C" __device__ int cudaDeviceSynchronize();\n'
        "__global__ void k() { cudaDeviceSynchronize(); }",
        arch="sm_90a",
    ),
    case(
        "device-runtime-missing",
        "Unresolved extern function 'cudaDeviceSynchronize'",
        "libcudadevrt.a",
        source='extern "C" __device__ int cudaDeviceSynchronize();\n'
        "__global__ void k() { cudaDeviceSynchronize(); }",
    ),
    case(
        "undefined-symbol",
        "Unresolved extern function '_Z3fooi'",
        "foo is declared and used",
        "link=",
        source="extern __device__ int foo(int);\n__global__ void k(int* x) { *x = foo(3); }",
    ),
    case(
        "asm-label",
        "Duplicate definition of label 'L1'",
        "L1_%=",
        source="__global__ void k(int* x) {\n"
        '  asm volatile("L1: bra L1;"); asm volatile("L1: bra L1;"); }',
    ),
    case(
        "asm-syntax",
        "Unknown modifier '.bar'",
        "holds .bar",
        source='__global__ void k() { asm volatile("foo.bar;"); }',
    ),
    case(
        "register-limit",
        "is out of range",
        "_Z1kPf",
        source="__global__ void __launch_bounds__(1024, 4) k(float* x) { *x = 1; }",
    ),
    case(
        "wgmma-serialized",
        "wgmma.mma_async instructions are serialized due to",
        "-DNDEBUG",
        source=WGMMA,
        arch="sm_90a",
    ),
    case(
        "crash",
        "died by signal 11",
        "SIGSEGV",
        "NVRTC 12.9.86",
        source="template<class T> struct B { friend bool operator==() = default; };",
        options="-std=c++20 -arch=sm_80",
        alone=True,
    ),
    case(
        "crash-in-cute",
        "died by signal 11",
        "UniversalCopy",
        source="#include <cute/int_tuple.hpp>\n"
        "template<class T> struct B { friend bool operator==() = default; };",
        headers="12:cudart 12:crt 12:cccl 12:cutlass",
        options="-std=c++20 -arch=sm_80 -default-device",
        alone=True,
    ),
    case(
        "timeout",
        "killed after its time limit",
        "timeout=",
        source=ENDLESS,
        seconds=1.0,
    ),
    case(
        "out-of-memory",
        "beyond its memory limit",
        "RTCOMPILE_JOBS",
        source=CUTE,
        headers="12:cudart 12:crt 12:cccl 12:cutlass",
        memory=150 << 20,
    ),
]

BY_NVCC = [
    case(
        "nvcc-arch",
        "Unsupported gpu architecture 'sm_10'",
        "does not compile for sm_10",
        options="-arch=sm_10",
        alone=True,
    ),
    case(
        "nvcc-given-nvrtc-option",
        "Unknown option '--device-as-default-execution-space'",
        "option of NVRTC",
        options="--device-as-default-execution-space",
    ),
    case("nvcc-given-nvrtc-option", "Unknown option '--pch'", "option of NVRTC", options="--pch"),
    case("nvcc-option-unknown", "Unknown option '--foo'", "no option --foo", options="--foo"),
    case(
        "std-unknown",
        "Value 'c++99' is not defined for option 'std'",
        "-std=c++99 is no",
        options="-std=c++99",
    ),
    case(
        "host-compiler-missing",
        "Failed to preprocess host compiler properties",
        "Install g++",
        options="-ccbin=/nonexistent/g++",
    ),
    case(
        "host-call",
        "calling a __host__ function",
        "__host__ __device__",
        source="int f() { return 1; }\n__global__ void k(int* x) { *x = f(); }",
    ),
    case(
        "host-call",
        "calling a constexpr __host__ function",
        "--expt-relaxed-constexpr",
        source="constexpr int f(int x) { return x; }\n__global__ void k(int* x) { *x = f(*x); }",
    ),
    case(
        "header-missing-nvcc",
        "mine.h: No such file or directory",
        "-I",
        source='#include "mine.h"\n',
    ),
    case(
        "header-of-package-nvcc",
        "cute/tensor.hpp: No such file or directory",
        "nvidia-cutlass",
        source=CUTE,
    ),
    case(
        "headers-mixed",
        "CUDA compiler and CUDA toolkit headers are incompatible",
        "two CUDA versions",
        source="#include <cuda/std/cstdint>\n" + EMPTY,
        headers="user:12:cudart new:cccl",
    ),
    case(
        "annotated-lambda",
        "annotation on lambda requires --extended-lambda",
        "Drop",
        source="__global__ void k() { auto f = [=] __device__ (int x) { return x; }; f(1); }",
    ),
    case(
        "undefined-symbol",
        "Unresolved extern function '_Z3fooi'",
        "foo is declared",
        source="extern __device__ int foo(int);\n__global__ void k(int* x) { *x = foo(3); }",
    ),
    case(
        "crash",
        "Segmentation fault",
        "SIGSEGV",
        source="template<class T> struct B { friend bool operator==() = default; };",
        options="-std=c++20",
    ),
]

PTX = ".version {version}\n.target {target}\n.address_size 64\n.visible .entry k() {{ ret; }}\n"
CUBIN, PTX_INPUT = 1, 2

# (row, what nvJitLink says, what the hint says, toolkit, kind of input, input, options)
BY_NVJITLINK = [
    (
        "ptx-version",
        "Unsupported .version 9.0; current version is '8.8'",
        "PTX 9.0 (CUDA 13.0); this assembler reads up to PTX 8.8 (CUDA 12.9)",
        ("12", PTX_INPUT, PTX.format(version="9.0", target="sm_80"), "-arch=sm_80"),
    ),
    (
        "ptx-too-old-for-target",
        "PTX .version 7.0 does not support .target sm_90a",
        "PTX 7.0 is older than sm_90a",
        ("12", PTX_INPUT, PTX.format(version="7.0", target="sm_90a"), "-arch=sm_90a"),
    ),
    (
        "link-arch",
        "PTX with .target 'sm_90a' cannot be compiled for architecture 'sm_90'",
        "Link for sm_90a, or compile the input for sm_90",
        ("12", PTX_INPUT, PTX.format(version="8.0", target="sm_90a"), "-arch=sm_90"),
    ),
    (
        "link-arch-higher",
        "SM version specified by .target is higher than default SM version assumed",
        "one architecture",
        ("13", PTX_INPUT, PTX.format(version="8.0", target="sm_90"), "-arch=sm_80"),
    ),
    (
        "link-input-kind",
        "does not match type NVJITLINK_INPUT_CUBIN",
        "The link input input is not CUBIN",
        ("12", CUBIN, PTX.format(version="8.0", target="sm_80"), "-arch=sm_80"),
    ),
    (
        "asm-syntax",
        "Not a name of any known instruction: 'foo'",
        "holds foo",
        (
            "12",
            PTX_INPUT,
            PTX.format(version="8.0", target="sm_80").replace("ret", "foo"),
            "-arch=sm_80",
        ),
    ),
    (
        "option-unknown",
        "unrecognized option: -foo",
        "has no option -foo",
        ("13", CUBIN, PTX.format(version="8.0", target="sm_80"), "-foo"),
    ),
]

# Messages that cannot be provoked here (no device, no such host compiler), as their makers print them.
AS_REPORTED = [
    (
        "CUDADriverError: CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available for execution on the device",
        "no-binary-for-gpu",
        "The code is for sm_90a; the device (compute capability 8.9) does not run it",
    ),
    (
        "CUDADriverError: CUDA_ERROR_UNSUPPORTED_PTX_VERSION: the provided PTX was compiled with an unsupported toolchain.",
        "unsupported-ptx",
        "NVRTC 12.9.86",
    ),
    (
        "CUDADriverError: CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid",
        "invalid-image",
        "48 KiB",
    ),
    (
        "CUDADriverError: CUDA_ERROR_NOT_FOUND: named symbol not found",
        "not-found",
        "name_expressions=",
    ),
    (
        "CUDADriverError: CUDA_ERROR_INVALID_VALUE: invalid argument",
        "launch-invalid-value",
        "max_dynamic_shared_size_bytes",
    ),
    (
        "ERROR : Arch conditional MMA instruction used without targeting appropriate compute capability. Aborting.",
        "arch-conditional-trap",
        "sm_90a",
    ),
    (
        "/usr/include/crt/host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions later than 13 are not supported!",
        "host-compiler-too-new",
        "-ccbin",
    ),
    ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "out-of-memory", "RTCOMPILE_JOBS"),
    (
        "nvcc error   : 'cudafe++' died due to signal 11 (Invalid memory reference)",
        "crash",
        "SIGSEGV",
    ),
    ('error while deleting file "/tmp/cache/edg.pch"', "pch-file", "share one directory"),
    (
        "x.h(1): catastrophic error: #error directive: libcu++ requires -builtin-initializer-list=true when compiling with NVRTC",
        "initializer-list",
        "Remove",
    ),
    ("ERROR 1: empty elfw when adding cubin", "link-no-arch", "-arch=sm_NN"),
    ("NVRTC_ERROR_PCH_CREATE_HEAP_EXHAUSTED", "pch-heap", "tries again"),
]


@pytest.fixture(scope="session")
def wheels(request: pytest.FixtureRequest) -> Callable[[Sequence[str]], Path]:
    """Install wheels into a folder that pytest keeps between runs; skip where pip cannot."""

    def folder_of(requirements: Sequence[str]) -> Path:
        name = re.sub(r"[^\w.]+", "_", requirements[0])
        folder = Path(request.config.cache.mkdir("wheels")) / name
        if not (folder / "complete").exists():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            done = subprocess.run(
                [*command, "--target", str(folder), *requirements],
                capture_output=True,
                text=True,
                timeout=120,
            )
            if done.returncode != 0:
                pytest.skip(f"pip cannot install {requirements[0]}: {done.stderr[-300:]}")
            (folder / "complete").touch()
        return folder

    return folder_of


@pytest.fixture(scope="session")
def toolchain(
    wheels: Callable[[Sequence[str]], Path], request: pytest.FixtureRequest
) -> Callable[[str], Toolchain]:
    """The toolchain of a name: "12" is the environment's, "13" and "12.4" are other folders."""
    found: dict[str, Toolchain] = {}

    def of_name(name: str) -> Toolchain:
        if name not in found:
            if name == "12":
                found[name] = toolkit.current()
            else:
                folder = (
                    request.getfixturevalue("cuda13_prefix") if name == "13" else wheels(OLD_WHEELS)
                )
                found[name] = toolkit.find({}, [str(folder)], usual_roots=(), last_steps=())
        return found[name]

    return of_name


class Bench:
    """Where messages are provoked: resolves headers and runs the compilers in their workers."""

    def __init__(
        self,
        toolchain: Callable[[str], Toolchain],
        wheels: Callable[[Sequence[str]], Path],
        scratch: Path,
    ) -> None:
        self._toolchain, self._wheels, self._scratch = toolchain, wheels, scratch

    def failure(self, how: Provoked, compiler: str) -> tuple[str, BuildContext]:
        """Return the log that was provoked, and the context it belongs to."""
        toolchain = self._toolchain(how.toolkit)
        search = tuple(self._directories(how.headers))
        flags = self._flags(how, compiler, search)
        unit = TranslationUnit(
            how.source, "kernel.cu", flags, how.names, "cubin", Arch.parse(how.arch)
        )
        limits = Limits(how.seconds, how.memory)
        if compiler == "nvcc":
            log = nvcc.compile(unit, toolchain, limits=limits).log
        elif how.plain:
            log = self._plain_nvrtc(how, toolchain.require_nvrtc(), flags)
        else:
            log = nvrtc.compile(
                unit,
                toolchain.require_nvrtc(),
                limits=limits,
                pch=False,
                cache_dir=None,
                search=search,
            ).log
        context = BuildContext(
            arch=unit.arch,
            capability=how.capability,
            backend=compiler,
            options=flags,
            versions=toolchain.versions,
            search=search,
            source=how.source,
            package_of=toolkit.missing_header,
        )
        return log, context

    def _plain_nvrtc(self, how: Provoked, library: Library, flags: Sequence[str]) -> str:
        path = Path(library.path)
        if not how.builtins:
            path = self._scratch / path.name
            path.symlink_to(library.path)
        job = {
            "library": str(path),
            "preload": library.preload if how.builtins else (),
            "source": how.source,
            "options": flags,
        }
        command = [sys.executable, "-c", PLAIN_NVRTC]
        return subprocess.run(
            command,
            input=json.dumps(job),
            cwd=self._scratch,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def _flags(self, how: Provoked, compiler: str, search: Sequence[SearchDir]) -> tuple[str, ...]:
        includes = [f"-I{directory.path}" for directory in search]
        usual = [] if how.alone else [f"-arch={how.arch}", "-std=c++17"]
        if not how.alone and compiler == "nvrtc":
            usual.append("-default-device")
        return (*usual, *how.options.split(), *includes)

    def _directories(self, headers: str) -> list[SearchDir]:
        users = 0
        found = []
        for entry in headers.split():
            label, path = self._directory(entry.removeprefix("user:"))
            if entry.startswith("user:"):
                label, users = f"user{users}", users + 1
            found.append(SearchDir(label, path))
        return found

    def _directory(self, entry: str) -> tuple[str, str]:
        if entry.startswith("/"):
            gcc = max(
                Path("/usr/include/c++").glob("[0-9]*"), key=lambda p: int(p.name.split(".")[0])
            )
            return "", entry.format(gcc=gcc.name)
        if entry == "new:cccl":
            return "cccl", str(self._wheels(NEW_CCCL) / "nvidia/cu13/include/cccl")
        if entry in STRAY_HEADERS:
            folder = self._scratch / entry
            for relative, text in STRAY_HEADERS[entry].items():
                (folder / relative).parent.mkdir(parents=True, exist_ok=True)
                (folder / relative).write_text(text)
            return "", str(folder)
        name, _, label = entry.partition(":")
        directory = next(d for d in self._toolchain(name).search if d.label == label)
        return directory.label, directory.path


@pytest.fixture
def bench(
    toolchain: Callable[[str], Toolchain],
    wheels: Callable[[Sequence[str]], Path],
    tmp_path: Path,
) -> Bench:
    return Bench(toolchain, wheels, tmp_path)


def assert_explained(row: str, how: Provoked, log: str, context: BuildContext) -> None:
    assert how.says in log
    found = [hints.explain(diagnostic, context) for diagnostic in diagnostics.parse(log)]
    explained = next((row for row in found if row is not None), None)
    assert explained is not None, log
    assert explained[0].id == row, log
    for fragment in how.hint:
        assert fragment in explained[1]


@pytest.mark.parametrize(("row", "how"), BY_NVRTC)
def test_what_nvrtc_says_is_explained_by_its_row(row: str, how: Provoked, bench: Bench) -> None:
    assert_explained(row, how, *bench.failure(how, "nvrtc"))


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc on PATH")
@pytest.mark.parametrize(("row", "how"), BY_NVCC)
def test_what_nvcc_says_is_explained_by_its_row(row: str, how: Provoked, bench: Bench) -> None:
    assert_explained(row, how, *bench.failure(how, "nvcc"))


@pytest.mark.parametrize(("row", "says", "hint", "given"), BY_NVJITLINK)
def test_what_nvjitlink_says_is_explained_by_its_row(
    row: str,
    says: str,
    hint: str,
    given: tuple[str, int, str, str],
    toolchain: Callable[[str], Toolchain],
    tmp_path: Path,
) -> None:
    name, kind, text, option = given
    library = toolchain(name).require_nvjitlink()
    (tmp_path / "input").write_text(text)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            PLAIN_NVJITLINK,
            library.path,
            str(kind),
            tmp_path / "input",
            option,
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    context = BuildContext(backend="nvjitlink", versions=toolchain(name).versions)
    assert_explained(row, Provoked(says, (hint,)), done.stdout, context)


@pytest.mark.parametrize(("text", "row", "hint"), AS_REPORTED)
def test_what_others_reported_is_explained_by_its_row(text: str, row: str, hint: str) -> None:
    context = BuildContext(Arch(9, 0, "a"), capability=(8, 9), versions={"nvrtc": "12.9.86"})
    explained = hints.explain(text, context)
    assert explained is not None
    assert explained[0].id == row
    assert hint in explained[1]


def test_wheels_of_nvcc_and_nvvm_that_do_not_match_are_explained(
    wheels: Callable[[Sequence[str]], Path], tmp_path: Path
) -> None:
    folder = wheels(MIXED_NVCC) / "nvidia" / "cu13"
    for program in (*folder.glob("bin/*"), *folder.glob("nvvm/bin/*")):
        program.chmod(0o755)
    (tmp_path / "kernel.cu").write_text(EMPTY)
    done = subprocess.run(
        [folder / "bin" / "nvcc", "-arch=sm_80", "-cubin", "kernel.cu"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    says = "invalid option: --simt-only"
    assert_explained("nvcc-and-nvvm", Provoked(says, ("Pin them",)), done.stderr, BuildContext())


def test_every_row_of_the_catalogue_is_provoked_or_reported() -> None:
    rows = {known.id for known in MESSAGES}
    assert len(rows) == len(MESSAGES)
    assert rows == set(coverage())


def coverage() -> dict[str, str]:
    """Return by row how it is tested: "provoked" from a real compiler, or "as reported"."""
    provoked = {param.values[0] for param in (*BY_NVRTC, *BY_NVCC)}
    provoked |= {row for row, *_ in BY_NVJITLINK} | {"nvcc-and-nvvm"}
    reported = {row for _, row, _ in AS_REPORTED}
    return {row: "provoked" if row in provoked else "as reported" for row in provoked | reported}


MMA_SM90 = """#include <cute/tensor.hpp>
using namespace cute;
__global__ void k(uint64_t* d, float* x) {
  SM90::GMMA::MMA_64x8x16_F32F16F16_SS<SM90::GMMA::Major::K, SM90::GMMA::Major::K>::fma(
      d[0], d[1], x[0], x[1], x[2], x[3]);
}"""


@pytest.mark.parametrize(("arch", "warned"), [("sm_90", True), ("sm_90a", False)])
def test_traps_that_cute_put_in_place_of_instructions_are_found(
    arch: str, warned: bool, toolchain: Callable[[str], Toolchain]
) -> None:
    search = toolchain("12").search
    flags = (f"-arch={arch}", "-std=c++17", "-default-device", *(f"-I{d.path}" for d in search))
    unit = TranslationUnit(MMA_SM90, "kernel.cu", flags, (), "cubin", Arch.parse(arch))
    built = nvrtc.compile(
        unit,
        toolchain("12").require_nvrtc(),
        limits=Limits(),
        pch=False,
        cache_dir=None,
        search=search,
    )
    assert isinstance(built, Compiled), built.log
    warnings = hints.check_code(built.code, unit.arch)
    assert bool(warned) == any("sm_90a" in warning for warning in warnings)


def test_too_much_static_shared_memory_that_old_nvrtc_passed_is_found(
    bench: Bench, tmp_path: Path
) -> None:
    how = Provoked("", (), SHARED_80000, toolkit="12.4", plain=True)
    log, _ = bench.failure(how, "nvrtc")
    assert log.strip() == ""
    (warning,) = hints.check_code((tmp_path / "kernel.cubin").read_bytes(), Arch(8, 0))
    assert "_Z1kPi has 80000 bytes" in warning


def test_nothing_is_found_in_what_is_no_cubin() -> None:
    assert hints.check_code(b"\x7fELF and no more", Arch(8, 0)) == ()
    assert hints.check_code(b"", Arch(8, 0)) == ()


def test_the_document_is_written_from_the_catalogue() -> None:
    text = (Path(__file__).parents[2] / "docs" / "hints.md").read_text()
    for known in MESSAGES:
        section = text.partition(f"## {known.id}\n")[2].partition("\n## ")[0]
        assert f"{known.cause} *{known.fix}*" in section, "run benchmarks/hints_coverage.py"
        assert f"Tested: {coverage()[known.id]}." in section

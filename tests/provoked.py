"""How to make real compilers say what the catalogue explains: one row per message and situation."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

__all__ = [
    "AS_REPORTED",
    "BY_NVCC",
    "BY_NVJITLINK",
    "BY_NVRTC",
    "EMPTY",
    "MIXED_NVCC",
    "NEW_CCCL",
    "OLD_WHEELS",
    "PLAIN_NVJITLINK",
    "PLAIN_NVRTC",
    "SHARED_80000",
    "STRAY_HEADERS",
    "Provoked",
    "coverage",
]

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
        "host-headers",
        "/usr/include/",
        "Remove -I/usr/include",
        source="#include <stdio.h>\n" + EMPTY,
        headers="12:cudart user:/usr/include",
    ),
    case(
        "header-of-package",
        'cannot open source file "crt/mma.h"',
        "nvidia-cuda-nvcc-cu12",
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
        "umbrella-header",
        "is not allowed in JIT mode",
        "<cub/cub.cuh>",
        "Include <cub/block/block_reduce.cuh> and <cub/warp/warp_scan.cuh> instead",
        source="#include <cub/cub.cuh>\n__global__ void k(int* x) {\n"
        "  *x = sizeof(cub::BlockReduce<int, 128>::TempStorage)"
        " + sizeof(cub::WarpScan<int>::TempStorage);\n}",
        headers="12:cudart 12:crt 12:cccl 12:shims",
    ),
    case(
        "standard-too-old-for-library",
        "cute/",
        "<cute/…> needs C++17; the options have -std=c++14",
        source=CUTE,
        headers="12:cudart 12:crt 12:cccl 12:cutlass",
        options="-std=c++14 -arch=sm_80 -default-device",
        alone=True,
    ),
    *(
        case("cpp20", says, f"`{what}` is C++20; the options have -std=c++17", source=source)
        for says, what, source in (
            (
                'identifier "concept" is undefined',
                "concept",
                "template <class T> concept C = true;\n" + EMPTY,
            ),
            (
                "no storage class or type specifier",
                "requires",
                "template <class T>\nrequires (sizeof(T) == 4) __global__ void k(T* x) {}",
            ),
            ("no storage class", "consteval", "consteval int f() { return 1; }\n" + EMPTY),
            ("no storage class", "constinit", "constinit __device__ int f = 1;\n" + EMPTY),
            (
                "expected an expression",
                "<=>",
                "__global__ void k(int* x) { auto c = x[0] <=> x[1]; }",
            ),
            ("is undefined", "char8_t", "__global__ void k(char8_t* x) {}"),
            (
                "are a C++20 feature",
                "explicit lambda template parameters",
                "__global__ void k(int* x) { *x = []<class T>(T t) { return t; }(1); }",
            ),
            (
                "expected an expression",
                ".b",
                "struct A { int a, b; };\n__global__ void k(int* x) { A a{1, .b = 2}; *x = a.a; }",
            ),
            ('"auto" is not allowed here', "auto x", "__global__ void k(auto x) {}"),
            (
                "expected an identifier",
                "using enum",
                "enum class E { A };\n__global__ void k(int* x) { using enum E; }",
            ),
            (
                "C++20-style",
                'initializer statement in a range-based "for" statement',
                "__global__ void k() { int a[3]; for (int s = 0; int i : a) s += i; }",
            ),
        )
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
        "nvlink fatal   : elfLink linker library load error",
        "nvlink-alone",
        "nvidia-nvjitlink-cu12",
    ),
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
    (
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "illegal-address",
        "compute-sanitizer",
    ),
    (
        "CUDADriverError: CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address",
        "misaligned-address",
        "float4*",
    ),
    (
        "CUDADriverError: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure",
        "launch-failed",
        "TMA descriptor",
    ),
    (
        "CUDADriverError: CUDA_ERROR_ILLEGAL_INSTRUCTION: an illegal instruction was encountered",
        "illegal-instruction",
        "wgmma",
    ),
    (
        "RuntimeError: CUDA error: device-side assert triggered",
        "device-assert",
        "index out of range",
    ),
    (
        "CUDARuntimeError: cudaErrorLaunchTimeout: the launch timed out and was terminated",
        "launch-timeout",
        "a display",
    ),
    (
        "CUDADriverError: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch",
        "launch-out-of-resources",
        "__launch_bounds__",
    ),
    (
        "CUDARuntimeError: cudaErrorInvalidConfiguration: invalid configuration argument",
        "invalid-configuration",
        "1024 threads",
    ),
    (
        "CUDADriverError: CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: too many blocks in cooperative launch",
        "cooperative-launch-too-large",
        "run at once",
    ),
    (
        "CUDARuntimeError: cudaErrorInvalidDeviceFunction: invalid device function",
        "invalid-device-function",
        "fork()",
    ),
    (
        "CUDARuntimeError: cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
        "insufficient-driver",
        "Upgrade the driver",
    ),
    (
        "Error 803: system has unsupported display driver / cuda driver combination",
        "driver-mismatch",
        "Restart the machine",
    ),
    (
        "CUDARuntimeError: cudaErrorNoDevice: no CUDA-capable device is detected",
        "no-device",
        "CUDA_VISIBLE_DEVICES",
    ),
    (
        "CUDADriverError: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "device-out-of-memory",
        "nvidia-smi",
    ),
    (
        "CUDARuntimeError: cudaErrorInitializationError: initialization error",
        "invalid-context",
        "forkserver",
    ),
]


def coverage() -> dict[str, str]:
    """Return by row how it is tested: "provoked" from a real compiler, or "as reported"."""
    provoked = {param.values[0] for param in (*BY_NVRTC, *BY_NVCC)}
    provoked |= {row for row, *_ in BY_NVJITLINK} | {"nvcc-and-nvvm"}
    reported = {row for _, row, _ in AS_REPORTED}
    return {row: "provoked" if row in provoked else "as reported" for row in provoked | reported}

"""Cases of NVRTC's messages about options, and about missing, mixed or rejected headers."""

from __future__ import annotations

from tests.provoked.cases import CUTE, EMPTY, case

BY_OPTIONS_AND_HEADERS = [
    case(
        "option-twice",
        "defined more than once",
        "two spellings",
        toolkit="12.4",
        plain=True,
        options="-arch=sm_80 -arch=sm_90",
        bare=True,
    ),
    case(
        "option-twice",
        '"--std (-std)=c++14" followed by',
        "the last one counts",
        options="-std=c++14 -std=c++17 -arch=sm_80",
        bare=True,
    ),
    case(
        "option-twice",
        '"--gpu-architecture(-arch)=80" followed by',
        "is kept",
        toolkit="13",
        options="-arch=sm_80 -arch=sm_90",
        bare=True,
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
        bare=True,
    ),
    case(
        "arch-deprecated", "Architectures prior to", "Use CUDA 12 for such a device", arch="sm_60"
    ),
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
        "does not know the language standard -std=gnu++17",
        options="-std=gnu++17 -arch=sm_80",
        bare=True,
    ),
    case(
        "std-unknown",
        "invalid value for --std",
        "language standard -std=c++23",
        options="-std=c++23 -arch=sm_80",
        bare=True,
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
        bare=True,
    ),
    case(
        "standard-too-old",
        "CUB requires at least C++17",
        "This version of CUB needs C++17",
        source="#include <cub/block/block_reduce.cuh>\n" + EMPTY,
        toolkit="13",
        headers="13:cudart 13:cccl",
        options="-std=c++14 -arch=sm_80 -default-device",
        bare=True,
    ),
    *(
        case("standard-named", message, "Use -std=c++20.", source=f"{condition}\n" + EMPTY)
        for message, condition in (
            ("#error directive", '#if __cplusplus < 202002L\n#error "mine needs C++20"\n#endif'),
            ("static assertion", 'static_assert(__cplusplus >= 202002L, "mine needs C++ 20");'),
        )
    ),
    case(
        "umbrella-header",
        "Including <cub/cub.cuh> is not supported",
        "host code that launches kernels",
        source="#include <cub/cub.cuh>\n" + EMPTY,
        toolkit="13",
        headers="13:cudart new:cccl",
    ),
    case(
        "umbrella-header",
        "is not allowed in JIT mode",
        "<cub/cub.cuh>",
        "<cub/warp/warp_scan.cuh>",
        source="#include <cub/cub.cuh>\n__global__ void k(int* x) {\n"
        "  *x = sizeof(cub::BlockReduce<int, 128>::TempStorage)"
        " + sizeof(cub::WarpScan<int>::TempStorage);\n}",
        headers="12:cudart 12:crt 12:cccl 12:shims",
    ),
    case(
        "standard-too-old-for-library",
        "cute/",
        "<cute/…> needs C++17, and the options have -std=c++14",
        source=CUTE,
        headers="12:cudart 12:crt 12:cccl 12:cutlass",
        options="-std=c++14 -arch=sm_80 -default-device",
        bare=True,
    ),
    *(
        case("cpp20", message, f"`{what}` is C++20; the options have -std=c++17", source=source)
        for message, what, source in (
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
        "are incompatible",
        source="#include <cute/container/array.hpp>\n" + EMPTY,
        headers="12:cudart 12:crt new:cccl 12:cutlass",
    ),
    case(
        "one-letter-macro",
        "__nv_nvrtc_builtin_header.h",
        "-DT=float",
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
]

"""Cases of NVRTC's messages about kernels and their code."""

from __future__ import annotations

from tests.provoked.cases import CUTE, EMPTY, ENDLESS, SHARED_80000, WGMMA, case

BY_KERNELS = [
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
        bare=True,
    ),
    case(
        "no-memory-space",
        "namespace scope variable without memory space",
        "__constant__",
        source="int counter = 3;\n" + EMPTY,
        options="-arch=sm_80",
        bare=True,
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
        "cannot throw or catch exceptions",
        source="__global__ void k() { throw 1; }",
    ),
    case(
        "annotated-lambda",
        "annotation on lambda requires --extended-lambda",
        "Remove the annotation",
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
        bare=True,
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
        "cp.async cannot copy one short",
        "UniversalCopy",
        source="#include <cute/arch/copy_sm80.hpp>\nusing namespace cute;\n"
        "__global__ void k(short* x) { SM80_CP_ASYNC_CACHEALWAYS<short>::copy(x[0], x[1]); }",
        headers="12:cudart 12:crt 12:cccl 12:cutlass",
    ),
    case(
        "copy-partitioning",
        "Src/Dst partitioning does not match",
        "Write `copy(src, dst)`",
        source="#include <cute/tensor.hpp>\nusing namespace cute;\n"
        "__global__ void k(float* x) {\n"
        "  Copy_Atom<UniversalCopy<uint128_t>, float> atom;\n"
        "  auto t = make_tensor(make_gmem_ptr(x), make_shape(Int<3>{}));\n"
        "  atom.call(t, t);\n}",
        headers="12:cudart 12:crt 12:cccl 12:cutlass",
        slow=True,
    ),
    case(
        "copy-partitioning",
        "Src/Dst partitioning does not match",
        "contiguous elements",
        source="#include <cute/tensor.hpp>\nusing namespace cute;\n"
        "__global__ void k() {\n"
        "  Copy_Atom<SM75_U32x4_LDSM_N, half_t> atom;\n"
        "  auto t = make_tensor<half_t>(Shape<_3>{});\n"
        "  atom.call(t, t);\n}",
        headers="12:cudart 12:crt 12:cccl 12:cutlass",
    ),
    case(
        "name-expression",
        "Error in parsing name expression",
        "`nosuch` in 'k<nosuch>' is no type",
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
        "needs sm_90",
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
        headers="12:cudart",
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
        'namespace "std" has no member "no_such_thing"',
        "Check its spelling",
        source="#include <cuda/std/cstdint>\n__global__ void k() { std::no_such_thing v; }",
        headers="12:cudart 12:crt 12:cccl",
    ),
    case(
        "half-ambiguous",
        'more than one operator "+" matches',
        "__double2half(x)",
        source="#include <cuda_fp16.h>\n__global__ void k(__half* x) { *x = *x + 1.0; }",
        headers="12:cudart",
    ),
    case(
        "half-ambiguous",
        'more than one operator "*" matches',
        "Only one operand is half.",
        source="#include <cuda_fp16.h>\n__global__ void k(half* x, float f) { *x = *x * f; }",
        headers="12:cudart",
    ),
    case(
        "radix-sort-key",
        "for_each_member_impl",
        "arithmetic types, and P is none",
        source="#include <cub/block/block_radix_sort.cuh>\nstruct P { int a; };\n__global__ void k(P* x) {\n"
        "  using R = cub::BlockRadixSort<P, 32, 1>; __shared__ R::TempStorage t; P p[1]; R(t).Sort(p); }",
        headers="12:cudart 12:crt 12:cccl",
    ),
    case(
        "atomic-type",
        'overloaded function "atomicAdd" matches',
        "has no version for integers of",
        source="__global__ void k(short* x) { atomicAdd(x, (short)1); }",
    ),
    case(
        "atomic-type",
        'overloaded function "atomicAdd" matches',
        "that for double begins with sm_60",
        source="__global__ void k(double* x) { atomicAdd(x, 1.0); }",
        arch="sm_52",
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
        "allows 32764",
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
        "needs sm_90; this build is for sm_80",
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
        "this kernel declares 80000: s[20000] (80000 bytes, line 2)",
        source=SHARED_80000,
    ),
    case(
        "constant-memory",
        "uses too much global constant data",
        "64 KiB",
        "line 1 (`__constant__ char c[70000];`)",
        source="__constant__ char c[70000];\n__global__ void k(int* x) { *x = c[*x]; }",
    ),
    case(
        "code-generator",
        "failed with an internal error",
        "code generator failed",
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
        "foo is declared in line 1 and used",
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
        "contains .bar",
        source='__global__ void k() { asm volatile("foo.bar;"); }',
    ),
    case(
        "asm-unparsed",
        "Parsing error near '%r2'",
        "Compare the asm of line 2 (`asm(",
        source='__global__ void k(int* x) {\n  asm("mov.u32 %0 %1;" : "=r"(x[0]) : "r"(x[1])); }',
    ),
    case(
        "not-synchronised",
        "Instruction 'vote' without '.sync'",
        "__ballot in line 1",
        "Write __ballot_sync in its place",
        source="__global__ void k(int* x) { x[0] = __ballot(x[1]); }",
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
        bare=True,
    ),
    case(
        "crash-in-cute",
        "died by signal 11",
        "UniversalCopy",
        source="#include <cute/int_tuple.hpp>\n"
        "template<class T> struct B { friend bool operator==() = default; };",
        headers="12:cudart 12:crt 12:cccl 12:cutlass",
        options="-std=c++20 -arch=sm_80 -default-device",
        bare=True,
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

"""Cases of messages of nvcc and nvJitLink, and reported messages that need other machines."""

from __future__ import annotations

from tests.provoked.cases import CUTE, EMPTY, case

BY_NVCC = [
    case(
        "nvcc-arch",
        "Unsupported gpu architecture 'sm_10'",
        "does not compile for sm_10",
        options="-arch=sm_10",
        bare=True,
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
        "language standard -std=c++99",
        options="-std=c++99",
    ),
    case(
        "host-compiler-missing",
        "Failed to preprocess host compiler properties",
        "Install g++",
        options="-ccbin=/proc/nowhere/g++",
    ),
    case(
        "host-call-of-std",
        "calling a __host__ function",
        "a fixed array",
        source="#include <vector>\n__global__ void k(int* x) { std::vector<int> v(3); *x = v[0]; }",
    ),
    case(
        "host-call-of-std",
        "calling a __host__ function",
        "a plain pointer",
        source="#include <memory>\n__global__ void k(int* x) { *x = *std::make_unique<int>(1); }",
    ),
    case("nvcc-option-misspelt", "Unknown option", "use_fast_math", options="-use_fast_maths"),
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
        "Remove the annotation",
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

# (row, nvJitLink's message, text of the hint, toolkit, kind of input, input, options)
BY_NVJITLINK = [
    (
        "ptx-version",
        "Unsupported .version 9.0; current version is '8.8'",
        "PTX 9.0 (CUDA 13.0), and this assembler reads up to PTX 8.8 (CUDA 12.9)",
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
        "contains foo",
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

# Messages that cannot be provoked here (no device, no such host compiler), as others reported them.
AS_REPORTED = [
    ("TypeError: Unsupported type <class 'numpy.ndarray'>", "kernel-argument", "cupy.asarray(a)"),
    (
        "TypeError: 'float' object cannot be interpreted as an integer",
        "launch-of-floats",
        "(n + 255) // 256",
    ),
    (
        "pycuda._driver.LogicError: cuFuncSetBlockShape failed: invalid resource handle",
        "invalid-device-function",
        "import pycuda.autoprimaryctx",
    ),
    (
        "Command-line: error: invalid macro definition: SCALE = 3",
        "macro-name",
        "Write -DSCALE=3.",
    ),
    ('attribute "__global__" does not apply here', "undefined-parameter-type", "<cstdint>"),
    (
        "OSError: libnvrtc.so.13: cannot open shared object file: No such file or directory",
        "library-missing",
        "nvidia-cuda-nvrtc",
    ),
    (
        "libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
        "library-symbol",
        "one CUDA version",
    ),
    ("OSError: libnvrtc.so.12: file too short", "library-damaged", "--force-reinstall"),
    ("cudaErrorECCUncorrectable: uncorrectable ECC error", "error-code", "nvidia-smi -q -d ECC"),
    ("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "error-code", "a graph cannot record"),
    ("nvrtcResult NVRTC_ERROR_COMPILATION", "error-code", "the log says which"),
    (
        "nvlink fatal   : elfLink linker library load error",
        "nvlink-alone",
        "nvidia-nvjitlink-cu12",
    ),
    (
        "CUDADriverError: CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available for execution on the device",
        "no-binary-for-gpu",
        "The code is for sm_90a, and the device (compute capability 8.9) cannot run it",
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
        "nvcc fatal   : Value 'sm_89' is not defined for option 'gpu-architecture'",
        "nvcc-arch",
        "Ada and Hopper need CUDA 11.8",
    ),
    (
        "FileNotFoundError: [Errno 2] No such file or directory: 'nvcc'",
        "nvcc-missing",
        "from rtcompile.pycuda import SourceModule",
    ),
    ("CudaDriverError: CUDA initialized before forking", "invalid-context", "forkserver"),
    (
        "CUDARuntimeError: cudaErrorInitializationError: initialization error",
        "invalid-context",
        "forkserver",
    ),
]

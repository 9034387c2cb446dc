"""Messages about host code that is compiled as device code."""

from __future__ import annotations

from rtcompile.messages.known import KnownMessage, row

ROWS: tuple[KnownMessage, ...] = (
    row(
        "host-function",
        r"explicitly marked as a __host__ function is not allowed in JIT mode",
        "The source, or a header of it, holds host code, which NVRTC does not compile.",
        "Use backend='nvcc' (backend='auto' goes there by itself), or put the host's part behind "
        "#ifndef __CUDACC_RTC__.",
        "NVRTC 12.4",
    ),
    row(
        "no-execution-space",
        r"(?:function without execution space annotations|static data member with non-const type"
        r"|lambda closure class members was inferred to be __host__)",
        "NVRTC takes what is not annotated for host code unless -default-device is given.",
        "Mark it __device__, or leave rtcompile's default options as they are: they hold "
        "-default-device.",
        "NVRTC 12.4",
    ),
    row(
        "undefined-parameter-type",
        r"attribute \"__global__\" does not apply here"
        r"|namespace scope variable without memory space annotations[\s\S]*__global__",
        "The type of a parameter is not declared, so the kernel is read as a variable.",
        "Declare it: <cstdint> for uint32_t and its like, <cuda_fp16.h> for __half.",
        "NVRTC 12.4",
    ),
    row(
        "no-memory-space",
        r"namespace scope variable without memory space annotations",
        "NVRTC takes a variable that is not annotated for host code unless -default-device is "
        "given.",
        "Mark it __device__ or __constant__, or leave rtcompile's default options as they are.",
        "NVRTC 12.4",
    ),
    row(
        "launch-in-kernel",
        r"device-side kernel launch could not be processed",
        "A kernel launches a kernel, which needs the device runtime.",
        "rtcompile compiles such a source with -rdc=true and links cudadevrt by itself; with other "
        "tools, add both and #include <cuda_device_runtime_api.h>.",
        "NVRTC 12.4",
    ),
    row(
        "dynamic-initialization",
        r"dynamic initialization is not supported for a __(?P<space>\w+)__ variable",
        "A __{space}__ variable cannot run a constructor before the kernel starts.",
        "Make the constructor constexpr, or fill the variable from the host or in a kernel.",
        "NVRTC 12.4",
    ),
    row(
        "int128",
        r"128-bit (?P<what>integer|floating point) type is only supported in Linux with the "
        r"\"(?P<flag>[^\"]+)\"",
        "128-bit {what} types are off by default in NVRTC.",
        "Add the option {flag}.",
        "NVRTC 12.4",
    ),
    row(
        "exceptions",
        r"device code does not support exception handling",
        "There are no exceptions in device code.",
        "Return a status, or call __trap().",
        "NVRTC 12.4",
    ),
    row(
        "annotated-lambda",
        r"annotation on lambda requires --extended-lambda",
        "A lambda in a kernel is device code already; an annotation on it is an extension of nvcc.",
        "Drop the annotation; or use backend='nvcc' with --extended-lambda, which NVRTC has not.",
        "NVRTC 12.4",
    ),
    row(
        "texture-reference",
        r"texture is not a template",
        "Texture references went with CUDA 12.",
        "Take a cudaTextureObject_t as parameter: cupy.cuda.texture.TextureObject.",
        "NVRTC 12.4",
    ),
)

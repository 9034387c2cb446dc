"""Messages of the driver when code is loaded or launched."""

from __future__ import annotations

from rtcompile.messages import facts
from rtcompile.messages.known import KnownMessage, row

ROWS: tuple[KnownMessage, ...] = (
    row(
        "no-binary-for-gpu",
        r"CUDA_ERROR_NO_BINARY_FOR_GPU|cudaErrorNoKernelImageForDevice|no kernel image is available",
        "The code is for {arch}; {device} does not run it.",
        "{do}",
        "driver",
        facts.not_the_devices,
    ),
    row(
        "unsupported-ptx",
        r"CUDA_ERROR_UNSUPPORTED_PTX_VERSION|cudaErrorUnsupportedPtxVersion|provided PTX was compiled with an unsupported toolchain",
        "The driver is older than the toolkit that wrote the PTX ({compiler}).",
        "Compile to a cubin (target='cubin', an exact arch=), or upgrade the driver.",
        "driver",
    ),
    row(
        "invalid-image",
        r"CUDA_ERROR_INVALID_IMAGE|device kernel image is invalid",
        "The driver refuses the image: damaged, of another kind, or beyond a limit of the device.",
        "Look at its static shared memory (`rtcompile inspect`): above 48 KiB it must be dynamic.",
        "driver",
    ),
    row(
        "not-found",
        r"CUDA_ERROR_NOT_FOUND|named symbol not found",
        "The module has no symbol of that name: C++ names are mangled.",
        'Declare the kernel extern "C", or pass name_expressions=; `rtcompile inspect` lists the '
        "names there are.",
        "driver",
    ),
    row(
        "launch-invalid-value",
        r"CUDA_ERROR_INVALID_VALUE|cudaErrorInvalidValue",
        "The launch asks for what the kernel or the device does not allow, most often more dynamic "
        "shared memory than 48 KiB.",
        "Set kernel.max_dynamic_shared_size_bytes to what shared_mem= asks for.",
        "driver",
    ),
    row(
        "arch-conditional-trap",
        r"Arch conditional MMA instruction used without targeting (?P<target>[^\n]*)"
        r"|Attempting to use (?P<what>[^\n]*) without",
        "CUTLASS or CuTe compiled a trap in place of an instruction that {arch} has not.",
        "Compile for the architecture with its suffix: sm_90a, sm_100a, sm_120a.",
        "CUTLASS 3.5",
    ),
)

"""Queries the driver for this machine's devices: through cuda-python, else libcuda and NVML by ctypes.

cuda-python's import takes 20 ms. If CuPy is loaded, the look-up has the capability from CuPy's runtime, and
cuda-python confirms it while NVRTC compiles.

After `cuInit`, forked children cannot use CUDA. So rtcompile does not call it before the program does; NVML knows
the devices without it.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rtcompile.errors import UnsupportedArch

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_HIDDEN = ("", "-1", "NoDevFiles")  # values of CUDA_VISIBLE_DEVICES
LACKING = (OSError, AttributeError)  # library missing, or its error; an older library


class Driver:
    """libcuda or NVML, called without CuPy and cuda-python, which may be broken or missing."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        self._library = ctypes.CDLL(library)

    def __call__(self, name: str, *arguments: object) -> None:
        """Call a function; an error is an OSError whose `errno` is the driver's number."""
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            with suppress(AttributeError):  # NVML, or an old stub of libcuda
                self._library.cuGetErrorName(code, ctypes.byref(text))
            raise OSError(code, f"{name}: {(text.value or b'').decode()} ({code})")

    def integer(self, name: str, *arguments: object) -> int:
        """Return the number that a function writes to its first argument."""
        value = ctypes.c_int()
        self(name, ctypes.byref(value), *arguments)
        return value.value

    def capability(self, device: int) -> tuple[int, int]:
        """Return the compute capability of a device."""
        major, minor = (
            self.integer("cuDeviceGetAttribute", each, device) for each in (_MAJOR, _MINOR)
        )
        return major, minor


def version() -> int:
    """Return the CUDA version that the driver supports, 13000 for 13.0; 0 without a driver."""
    try:
        return Driver().integer("cuDriverGetVersion")
    except LACKING:
        return 0


def capability_of_current() -> tuple[int, int]:
    """Return the compute capability of the current device; raise one of `LACKING` if there is none."""
    try:
        from cuda.bindings import driver as cuda_python
    except ImportError:
        return _capability_of_libcuda()

    def call(function: Any, *arguments: Any) -> Any:
        status, *values = function(*arguments)
        if status:
            raise OSError(int(status), f"{function.__name__}: {status.name} ({int(status)})")
        return values[0] if values else None

    try:
        call(cuda_python.cuInit, 0)
    except RuntimeError as error:  # no libcuda
        raise OSError(str(error)) from None
    context = int(call(cuda_python.cuCtxGetCurrent))
    # Without a context the runtime's current device is 0: cudaSetDevice makes one (CUDA 12 on).
    device = call(cuda_python.cuCtxGetDevice) if context else call(cuda_python.cuDeviceGet, 0)
    of = cuda_python.CUdevice_attribute
    major, minor = (
        call(cuda_python.cuDeviceGetAttribute, of(each), device) for each in (_MAJOR, _MINOR)
    )
    return major, minor


def confirm(of_cupy: Callable[[], tuple[int, int]]) -> None:
    """Raise `UnsupportedArch` if CuPy's runtime and cuda-python differ about the device that the program uses."""
    if not _of_initialised():
        return
    try:
        cupys, reported = of_cupy(), capability_of_current()
    except LACKING:
        return  # no driver, so no contradiction
    if cupys != reported:
        raise UnsupportedArch(
            f"the device has compute capability {reported} by the driver, and {cupys} by CuPy's CUDA "
            "runtime; pass arch='sm_90a' (or another), and run `rtcompile doctor`"
        )


def _capability_of_libcuda() -> tuple[int, int]:
    driver = Driver()
    driver("cuInit", 0)
    context = ctypes.c_void_p()
    driver("cuCtxGetCurrent", ctypes.byref(context))
    device = driver.integer("cuCtxGetDevice") if context else driver.integer("cuDeviceGet", 0)
    return driver.capability(device)


def capability_of_all() -> tuple[int, int] | None:
    """Return the one compute capability of all devices; None if they differ, or are not known."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in _HIDDEN:
        return None
    found = _of_initialised() or _of_nvml()
    return next(iter(found)) if len(found) == 1 else None


def _of_initialised() -> set[tuple[int, int]]:
    """Return the devices' capabilities from the driver, if the program has initialised it."""
    with suppress(*LACKING):
        driver = Driver()
        count = driver.integer("cuDeviceGetCount")  # an error before `cuInit`
        return {driver.capability(driver.integer("cuDeviceGet", each)) for each in range(count)}
    return set()


@functools.cache
def _of_nvml() -> set[tuple[int, int]]:
    found = set()
    with suppress(*LACKING):
        nvml = Driver("libnvidia-ml.so.1")
        nvml("nvmlInit_v2")
        try:
            for index in range(nvml.integer("nvmlDeviceGetCount_v2")):
                device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
                nvml("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
                both = ctypes.byref(major), ctypes.byref(minor)
                nvml("nvmlDeviceGetCudaComputeCapability", device, *both)
                found.add((major.value, minor.value))
        finally:
            nvml("nvmlShutdown")
    return found

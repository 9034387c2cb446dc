"""The compute capability of this machine's devices, known without a context and without `cuInit`.

After `cuInit` the children of a fork cannot use CUDA, so a program that has not called it must not find
it called. NVML tells the same without. Where the devices differ, only the program knows which it will use.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_HIDDEN = ("", "-1", "NoDevFiles")  # values of CUDA_VISIBLE_DEVICES


def capability() -> tuple[int, int] | None:
    """Return the one compute capability of all devices; None if they differ, or are not known."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in _HIDDEN:
        return None
    found = _of_driver() or _of_nvml()
    return next(iter(found)) if len(found) == 1 else None


def _of_driver() -> set[tuple[int, int]]:
    """Return what the driver says, if the program has initialised it."""
    return _asked("libcuda.so.1", _ask_driver)


def _ask_driver(cuda: Any) -> set[tuple[int, int]]:
    def device(index: int) -> int:
        handle = ctypes.c_int()
        _check(cuda.cuDeviceGet(ctypes.byref(handle), index))
        return handle.value

    def attribute(which: int, index: int) -> int:
        value = ctypes.c_int()
        _check(cuda.cuDeviceGetAttribute(ctypes.byref(value), which, device(index)))
        return value.value

    count = ctypes.c_int()
    _check(cuda.cuDeviceGetCount(ctypes.byref(count)))  # an error before `cuInit`
    return {(attribute(_MAJOR, i), attribute(_MINOR, i)) for i in range(count.value)}


@functools.cache
def _of_nvml() -> set[tuple[int, int]]:
    return _asked("libnvidia-ml.so.1", _ask_nvml)


def _ask_nvml(nvml: Any) -> set[tuple[int, int]]:
    _check(nvml.nvmlInit_v2())
    try:
        found, count = set(), ctypes.c_uint()
        _check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        for index in range(count.value):
            device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
            _check(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)))
            both = ctypes.byref(major), ctypes.byref(minor)
            _check(nvml.nvmlDeviceGetCudaComputeCapability(device, *both))
            found.add((major.value, minor.value))
        return found
    finally:
        nvml.nvmlShutdown()


def _check(status: int) -> None:
    if status:
        raise OSError(status, "the driver refused")


def _asked(library: str, ask: Callable[[Any], set[tuple[int, int]]]) -> set[tuple[int, int]]:
    try:
        return ask(ctypes.CDLL(library))
    except (OSError, AttributeError):  # no such library; an older one
        return set()

"""Finds the compute capability of the current device.

cuda-python's answer counts. On a hit CuPy is asked instead if it is loaded: importing cuda-python
takes 20 ms, and both ask the same driver.
"""

from __future__ import annotations

import sys

from rtcompile.errors import ToolkitNotFound, UnsupportedArch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*, the same in cudaDevAttr*
_known: dict[int, tuple[int, int]] = {}
_confirmed: dict[int, tuple[int, int]] = {}


def loaded(name: str) -> Any:
    """Return a module that is imported already; None while another thread is importing it still."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def compute_capability() -> tuple[int, int]:
    """Return (major, minor) of the current device, from cuda-python or CuPy, whichever is loaded."""
    cupy = loaded("cupy")
    runtime = None if cupy is None else cupy.cuda.runtime
    if runtime is None:
        return confirmed_compute_capability()
    try:
        device = runtime.getDevice()
        if device not in _known:
            _known[device] = (
                runtime.deviceGetAttribute(_MAJOR, device),
                runtime.deviceGetAttribute(_MINOR, device),
            )
    except runtime.CUDARuntimeError as error:
        raise no_device(str(error)) from None
    return _known[device]


def confirmed_compute_capability() -> tuple[int, int]:
    """Return (major, minor) of the current device, from cuda-python, with the same errors."""
    try:
        from cuda.bindings import driver
    except ImportError:
        if loaded("cupy") is not None:
            return compute_capability()
        raise ToolkitNotFound(
            "the device's compute capability is read through cuda-python, which is not installed; "
            "`pip install cuda-python`, or pass arch='sm_90a' to compile without asking a device"
        ) from None

    def ask(function: Any, *arguments: Any) -> Any:
        status, *values = function(*arguments)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise no_device(f"{function.__name__}: {status.name}")
        return values[0] if values else None

    try:
        ask(driver.cuInit, 0)
    except RuntimeError as error:  # cuda-python raises it where there is no libcuda
        raise no_device(str(error)) from None
    context = ask(driver.cuCtxGetCurrent)
    # Without a context the runtime's current device is 0: cudaSetDevice makes one (CUDA 12 on).
    device = ask(driver.cuCtxGetDevice) if int(context) else ask(driver.cuDeviceGet, 0)
    ordinal = int(device)
    if ordinal not in _confirmed:
        attribute = driver.CUdevice_attribute
        _confirmed[ordinal] = (
            ask(
                driver.cuDeviceGetAttribute,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                device,
            ),
            ask(
                driver.cuDeviceGetAttribute,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                device,
            ),
        )
    return _confirmed[ordinal]


def driver_version() -> int:
    """Return the CUDA version that the driver supports, 13000 for 13.0; 0 without a driver."""
    try:
        from cuda.bindings import driver

        status, version = driver.cuDriverGetVersion()
    except (ImportError, RuntimeError):  # no cuda-python; no libcuda
        return 0
    return int(version) if status == driver.CUresult.CUDA_SUCCESS else 0


def no_device(evidence: str, loading: bool = False) -> UnsupportedArch:
    """Return the error for a machine without a device, where one is to be compiled for or loaded on."""
    if loading:
        return UnsupportedArch(
            f"no CUDA device to load and run the code on ({evidence}); with arch='sm_90a' (or "
            "another) it compiles without one, and object_code, report() and RawKernel.advise() "
            "tell of it"
        )
    return UnsupportedArch(
        f"no CUDA device to compile for ({evidence}); "
        "pass arch='sm_90a' (or another) to compile without one"
    )

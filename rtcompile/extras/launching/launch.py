"""`kernel.launch`: clusters, programmatic dependent launch and priority, by ``cuLaunchKernelEx``.

Each argument becomes the bytes of one parameter; one that does not fit raises an error that names it. A launch's grid,
block and attributes are checked once, and cached in the driver's form.
"""

from __future__ import annotations

import functools
import operator
import struct
import sys
import threading
from array import array
from collections.abc import Callable
from itertools import accumulate
from types import NoneType
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from rtcompile.errors import DriverError, InvalidRequest, shown
from rtcompile.extras.launching import bindings, is_tensor
from rtcompile.frontends.lazy_code import ordinal
from rtcompile.request.values import items, truth, whole

if TYPE_CHECKING:
    from rtcompile import RawKernel

runtime = cupy.cuda.runtime
_PORTABLE_CLUSTER = 8  # blocks; every device with clusters supports this size
_GRID_MAX = (1 << 31) - 1
_CAPTURE_UNSUPPORTED = 900
_POINTER_BYTES = 8
_UNIT = 16  # bytes; the host's copy of each parameter begins at a multiple of it
_INTEGERS = (1, 2, 4, 8)  # bytes
# DLPack's numbers of devices whose memory a kernel can read: CUDA, pinned host memory, managed.
_DLPACK_DEVICES = (2, 3, 13)
_KEPT = 64  # configurations of one kernel


def launch(kernel: RawKernel, args: Any, stream: Any, how: tuple[Any, ...]) -> None:
    """Launch a kernel; `how` has the other arguments of `RawKernel.launch`, in order."""
    device = ordinal(loading=True)
    args = items("args", args, "a kernel's arguments")
    queue = _stream(stream, args, device)
    loaded = _loaded(kernel, device, queue)
    converters = loaded.converters(tuple(map(type, args)))
    packed = [convert(value) for convert, value in zip(converters, args)]  # noqa: B905  # strict is slow
    sizes = tuple(map(len, packed))
    if sizes != loaded.sizes:
        loaded.check(args, packed)
    try:
        configuration = loaded.configuration(queue, how)
    except TypeError:  # a grid that is a list is unhashable; `_checked` reports wrong arguments
        configuration = loaded._checked(queue, how)
    layout, unused = _layout(sizes)
    try:
        memory = unused.pop()
    except IndexError:  # the first launch, or all memory is in use by launches of other threads
        memory = _Memory(sizes)
    layout.pack_into(memory.parameters, 0, *packed)
    (status,) = loaded.driver.cuLaunchKernelEx(configuration, loaded.handle, memory.addresses, 0)
    unused.append(memory)  # the driver has copied the parameters
    if status:
        raise loaded.error(status, how)


# --- The stream, and the arguments -------------------------------------------------------------------


def _stream(stream: Any, args: tuple[Any, ...], device: int) -> int:
    """Return the handle of the stream: the one given, PyTorch's if an argument is its tensor, or CuPy's."""
    if stream is None:
        torch = sys.modules.get("torch")
        if torch is not None and any(isinstance(value, torch.Tensor) for value in args):
            return int(torch.cuda.current_stream(device).cuda_stream)
        return int(cupy.cuda.get_current_stream().ptr)
    for name in ("ptr", "cuda_stream"):
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(handle)
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    try:
        return operator.index(stream)
    except TypeError:
        raise InvalidRequest(
            f"stream must be a stream of CuPy or PyTorch, one with __cuda_stream__, or a handle, "
            f"not {shown(stream)}"
        ) from None


@functools.lru_cache(maxsize=256)
def _layout(sizes: tuple[int, ...]) -> tuple[struct.Struct, list[_Memory]]:
    """Return the layout of parameters in memory, and the memory that no launch uses at the moment."""
    return struct.Struct("".join(f"{size}s{-size % _UNIT}x" for size in sizes)), []


class _Memory:
    """The host's memory for the `parameters` of one launch; the driver takes the address of their `addresses`."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        offsets = tuple(accumulate((size + -size % _UNIT for size in sizes), initial=0))
        self.parameters = array("B", bytes(offsets[-1]))
        start = self.parameters.buffer_info()[0]
        self._table = array("Q", [start + offset for offset in offsets])  # the last is the end
        self.addresses = self._table.buffer_info()[0]


def _converter(kind: type, size: int | None) -> Callable[[Any], bytes] | None:
    """Return the function that turns an argument of this type into its parameter's bytes; b"" if it does not fit.

    Return None for types of other libraries.
    """
    if issubclass(kind, cupy.ndarray):
        return lambda value: value.data.ptr.to_bytes(_POINTER_BYTES, "little")
    if issubclass(kind, int):
        return functools.partial(_bytes_of_integer, size if size in _INTEGERS else 8)
    if issubclass(kind, np.generic) and np.dtype(kind).kind in "biufc":
        return lambda value: b"".join((value,))  # a quarter of the time of its tobytes()
    if issubclass(kind, (np.ndarray, np.generic)):  # a NumPy struct is passed by its bytes
        return lambda value: b"" if value.dtype.hasobject else value.tobytes()
    if issubclass(kind, float):
        return struct.Struct("=d").pack
    if issubclass(kind, complex):
        return lambda value: struct.pack("=dd", value.real, value.imag)
    if issubclass(kind, (NoneType, cupy.cuda.MemoryPointer)):
        return lambda value: int(getattr(value, "ptr", 0)).to_bytes(_POINTER_BYTES, "little")
    return None


def _bytes_of_integer(size: int, value: int) -> bytes:
    try:
        return value.to_bytes(size, "little", signed=value < 0)
    except OverflowError:
        return b""


def _bytes_of_array(name: str, device: int, value: Any) -> bytes:
    """Return the address of an array of another library."""
    if is_tensor(name, value):
        if value.device.index != device:
            raise InvalidRequest(
                f"{name} is on device {value.device.index}, and the current one is {device}; launch in "
                f"`with cupy.cuda.Device({value.device.index}):`"
            )
        return int(value.data_ptr()).to_bytes(_POINTER_BYTES, "little")
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None and hasattr(value, "__dlpack__"):
        kind = int(value.__dlpack_device__()[0])
        if kind not in _DLPACK_DEVICES:
            raise InvalidRequest(
                f"{name} is {shown(value)} in host memory (DLPack device {kind}); move it to the device first"
            )
        interface = cupy.from_dlpack(value).__cuda_array_interface__
    if interface is None:
        raise InvalidRequest(
            f"{name} is {shown(value)}, which is neither an array in device memory nor a number; "
            "pass a struct as a NumPy array of one element"
        )
    return int(interface["data"][0]).to_bytes(_POINTER_BYTES, "little")


def _misfit(value: Any, data: bytes, size: int) -> str:
    """Return what an argument is that does not fit its parameter of `size` bytes, and what to pass instead."""
    if isinstance(value, int) and not data:
        return f"{value}, which {size} bytes cannot hold"
    if isinstance(value, float) and size == np.float32().nbytes:
        hint = "pass numpy.float32 of it"
    elif isinstance(value, np.ndarray) and size == _POINTER_BYTES:
        hint = "pass cupy.asarray of it"
    elif isinstance(value, (int, float, complex, np.generic, np.ndarray)):
        hint = "convert it, for a struct to a NumPy array of one element"
    else:
        hint = (
            "a struct that contains an address, such as CuPy's CArray, is passed by kernel(…) only"
        )
    of_type = f" {value.dtype}" if isinstance(value, np.ndarray) else ""
    return f"{shown(value)}{of_type} of {len(data)} bytes, and the parameter has {size}; {hint}"


# --- A kernel on one device, its configurations and limits -------------------------------------------


_bound = threading.local()  # `devices` are those that have a context in this thread


def _loaded(kernel: RawKernel, device: int, queue: int) -> _Loaded:
    """Return the kernel on this device, built and loaded on first use."""
    function = kernel._functions.get(device)
    if function is None:
        if queue and runtime.streamIsCapturing(queue):
            raise DriverError(
                f"{kernel.name} would have to be compiled or loaded, and its stream is being "
                f"captured into a graph; read kernel.kernel, or launch {kernel.name} once, "
                "before the capture begins",
                _CAPTURE_UNSUPPORTED,
            )
        function = kernel._kernel()
    devices = getattr(_bound, "devices", ())
    if device not in devices:
        # The driver needs a context, which a thread lacks until it calls the CUDA runtime.
        runtime.setDevice(device)
        _bound.devices = {device, *devices}
    known: dict[int, _Loaded] = kernel.__dict__.setdefault("_launched", {})
    loaded = known.get(device)
    if loaded is None or loaded.function is not function:
        loaded = known[device] = _Loaded(kernel, device, function)
    return loaded


class _Loaded:
    """A kernel on one device: CuPy's `function`, the `sizes` of its parameters in bytes, and its configurations."""

    def __init__(self, kernel: RawKernel, device: int, function: Any) -> None:
        self._kernel = kernel
        self._device = device
        self.driver = bindings()
        self.function = function  # it keeps the module loaded
        self.handle = self.driver.CUfunction(int(function.ptr))
        self.sizes = self._parameter_sizes()
        self.configuration = functools.lru_cache(maxsize=_KEPT)(self._checked)
        self.converters = functools.lru_cache(maxsize=_KEPT)(self._converters)

    def _parameter_sizes(self) -> tuple[int, ...] | None:
        """Return the bytes of each parameter; None if the driver does not report them."""
        sizes: list[int] = []
        while True:
            try:
                status, *values = self.driver.cuFuncGetParamInfo(self.handle, len(sizes))
            except (AttributeError, RuntimeError):  # a driver or a cuda-python before 12.4
                return None
            if int(status) == int(self.driver.CUresult.CUDA_ERROR_INVALID_VALUE):
                return tuple(sizes)  # there is no further parameter
            if int(status):
                return None
            sizes.append(int(values[1]))

    def _converters(self, kinds: tuple[type, ...]) -> tuple[Callable[[Any], bytes], ...]:
        """Return what turns arguments of these types into the bytes of the parameters."""
        name, sizes = self._kernel.name, self.sizes
        if sizes is not None and len(kinds) != len(sizes):
            raise InvalidRequest(f"{name} takes {len(sizes)} arguments, not {len(kinds)}")
        return tuple(
            _converter(kind, None if sizes is None else sizes[position])
            or functools.partial(_bytes_of_array, f"{name}: argument {position}", self._device)
            for position, kind in enumerate(kinds)
        )

    def check(self, args: tuple[Any, ...], packed: list[bytes]) -> None:
        """Raise InvalidRequest for an argument that has no bytes, or not as many as its parameter."""
        for position, data in enumerate(packed):
            size = None if self.sizes is None else self.sizes[position]
            if not data or size not in (None, len(data)):
                problem = _misfit(args[position], data, size or _POINTER_BYTES)
                raise InvalidRequest(f"{self._kernel.name}: argument {position} is {problem}")

    def _checked(self, queue: int, how: tuple[Any, ...]) -> Any:
        """Return the driver's configuration of a launch."""
        grid, block, cluster, cooperative, programmatic, shared_mem, priority = how
        blocks, threads = _three("grid", grid), _three("block", block)
        config = self.driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks
        config.blockDimX, config.blockDimY, config.blockDimZ = threads
        config.sharedMemBytes = shared_mem = whole("shared_mem", shared_mem, 0, _GRID_MAX)
        config.hStream = self.driver.CUstream(queue)
        if shared_mem:
            self._allow_shared_memory(shared_mem)
        attributes: list[Any] = []
        if cluster is not None:
            size = _three("cluster", cluster)
            self._check_cluster(blocks, size, config)
            dimensions = self._attribute(attributes, "CLUSTER_DIMENSION").clusterDim
            dimensions.x, dimensions.y, dimensions.z = size
        if truth("cooperative", cooperative):
            self._attribute(attributes, "COOPERATIVE").cooperative = 1
        if truth("programmatic", programmatic):
            value = self._attribute(attributes, "PROGRAMMATIC_STREAM_SERIALIZATION")
            value.programmaticStreamSerializationAllowed = 1
        if priority is not None:
            self._check_priority(priority)
            self._attribute(attributes, "PRIORITY").priority = priority
        if attributes:
            config.attrs = attributes
            config.numAttrs = len(attributes)
        return config

    def _attribute(self, attributes: list[Any], name: str) -> Any:
        """Append an attribute of a launch, and return its value, to be set."""
        made = self.driver.CUlaunchAttribute()
        made.id = getattr(self.driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
        attributes.append(made)
        return made.value

    def error(self, status: Any, how: tuple[Any, ...]) -> DriverError:
        """Return the error for a status of the driver."""
        message = status.name
        failed, text = self.driver.cuGetErrorString(status)
        if not int(failed) and text:
            message += f": {text.decode() if isinstance(text, bytes) else text}"
        from rtcompile.messages.loading import of_launch

        return of_launch(self._kernel, message, int(status), _three("block", how[1]), how[5])

    def _allow_shared_memory(self, needed: int) -> None:
        """Raise the kernel's limit of dynamic shared memory if the launch needs more."""
        name = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        status, now = self.driver.cuFuncGetAttribute(name, self.handle)
        if int(status) or now >= needed:
            return
        (status,) = self.driver.cuFuncSetAttribute(self.handle, name, needed)
        if int(status):
            raise DriverError(
                f"the launch of {self._kernel.name} was rejected: {status.name}\n  hint: "
                f"shared_mem={needed} and the kernel's static shared memory are more "
                "than a block of this device can have; kernel.report(dynamic_shared=…) tells what fits",
                int(status),
            )

    def _check_cluster(
        self, grid: tuple[int, int, int], cluster: tuple[int, int, int], config: Any
    ) -> None:
        """Raise for a cluster that is impossible on this device or with this grid, before the driver does."""
        blocks = cluster[0] * cluster[1] * cluster[2]
        if any(extent % size for extent, size in zip(grid, cluster, strict=True)):
            raise InvalidRequest(f"the grid {grid} is not a multiple of the cluster {cluster}")
        driver = self.driver
        has = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH
        status, found = driver.cuDeviceGetAttribute(has, driver.CUdevice(self._device))
        if not int(status) and not found:
            raise InvalidRequest(
                f"device {self._device} has no clusters (they begin with compute capability 9.0); "
                "launch without cluster="
            )
        if blocks > _PORTABLE_CLUSTER:
            name = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            driver.cuFuncSetAttribute(self.handle, name, 1)  # a device that lacks it fails below
        status, most = driver.cuOccupancyMaxPotentialClusterSize(self.handle, config)
        # If the driver does not answer, it rejects the launch itself.
        if not int(status) and blocks > most:
            raise InvalidRequest(
                f"a cluster {cluster} has {blocks} blocks, and on this device {self._kernel.name} "
                f"can have {most} with {config.sharedMemBytes} bytes of dynamic shared memory and this block"
            )

    def _check_priority(self, given: int) -> None:
        """Raise for a priority that the device does not have."""
        status, least, greatest = self.driver.cuCtxGetStreamPriorityRange()
        whole("priority", given, -(1 << 31), 1 << 30)
        if not int(status) and not greatest <= given <= least:
            raise InvalidRequest(
                f"priority={given} is not one of this device's, {greatest} (first) to {least} (last)"
            )


def _three(name: str, given: Any) -> tuple[int, int, int]:
    one = isinstance(given, float) or hasattr(given, "__index__")
    sizes = [given] if one else list(items(name, given, "up to three numbers"))
    if not 1 <= len(sizes) <= 3:
        raise InvalidRequest(f"{name} has {len(sizes)} dimensions; there are one to three")
    x, y, z = (
        whole(f"{name}[{axis}]", extent, 1, _GRID_MAX)
        for axis, extent in enumerate((*sizes, 1, 1)[:3])
    )
    return x, y, z

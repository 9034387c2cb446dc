"""`kernel.launch`: clusters, programmatic dependent launch and priority, by ``cuLaunchKernelEx``.

Each argument becomes the bytes of one parameter; one that does not fit raises an error that names it.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import struct
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from rtcompile.errors import DriverError, InvalidRequest, shown
from rtcompile.extras.launching import bindings, device_array
from rtcompile.extras.launching.repeated import Loaded, parameter_buffer
from rtcompile.frontends.lazy_code import ordinal
from rtcompile.request.values import items, truth, whole

if TYPE_CHECKING:
    from rtcompile import RawKernel

runtime = cupy.cuda.runtime
_PORTABLE_CLUSTER = 8  # blocks; every device with clusters supports this size
_CLUSTER_MAX = 16  # with the attribute for non-portable sizes
_GRID_MAX = (1 << 31) - 1
_CAPTURE_UNSUPPORTED = 900
_POINTER_BYTES = 8


_NEVER: dict[int, Loaded] = {}  # for a kernel that was never launched


def launch(kernel: RawKernel, args: Any, stream: Any, how: tuple[Any, ...]) -> None:
    """Launch a kernel; `how` has the other arguments of `RawKernel.launch`, in order."""
    device = ordinal(loading=True)
    before = kernel.__dict__.get("_launched", _NEVER).get(device)
    if before is not None and before.function is kernel._functions.get(device):
        queue = _stream(stream, None)  # a repeated launch has no arguments of PyTorch
        if device in getattr(_bound, "devices", ()) and before.launch((queue, how), args):
            return
    grid, block, cluster, cooperative, programmatic, shared_mem, priority = how
    driver = bindings()
    blocks = _three("grid", grid)
    threads = _three("block", block)
    size = None if cluster is None else _three("cluster", cluster)
    shared_mem = whole("shared_mem", shared_mem, 0, _GRID_MAX)
    cooperative = truth("cooperative", cooperative)
    programmatic = truth("programmatic", programmatic)
    args = items("args", args, "a kernel's arguments")
    values, of_torch = _values(args, device)
    queue = _stream(stream, of_torch)
    loaded = _loaded(kernel, driver, device, queue)
    packed = _packed(kernel.name, values, loaded.sizes)

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = blocks
    config.blockDimX, config.blockDimY, config.blockDimZ = threads
    config.sharedMemBytes = shared_mem
    config.hStream = driver.CUstream(queue)
    call = _Call(kernel, driver, loaded, threads, shared_mem)
    if shared_mem:
        call.allow_shared_memory()
    if size is not None:
        call.check_cluster(blocks, size, config, device)
    chosen = call.priority(priority)
    attributes = _attributes(driver, size, cooperative, programmatic, chosen)
    if attributes:
        config.attrs = attributes
        config.numAttrs = len(attributes)

    values_at, addresses, pointers = parameter_buffer(map(len, packed))
    for address, data in zip(addresses, packed, strict=False):  # the last address is the end
        ctypes.memmove(address, data, len(data))
    (status,) = driver.cuLaunchKernelEx(config, loaded.handle, pointers, 0)
    del values_at  # the driver has read it now
    if int(status):
        raise call.error(status)
    loaded.keep((queue, how), config)


# --- The kernel on the current device, and the stream ------------------------------------------------


_bound = threading.local()  # `devices` are those that have a context in this thread


def _loaded(kernel: RawKernel, driver: Any, device: int, queue: int) -> Loaded:
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
    elif device not in getattr(_bound, "devices", ()):
        # The driver needs a context, which a thread lacks until it calls the CUDA runtime.
        runtime.setDevice(device)
    _bound.devices = {device, *getattr(_bound, "devices", ())}
    known: dict[int, Loaded] = kernel.__dict__.setdefault("_launched", {})
    loaded = known.get(device)
    if loaded is None or loaded.function is not function:
        loaded = known[device] = Loaded(driver, function)
    return loaded


def _stream(stream: Any, of_torch: int | None) -> int:
    """Return the handle of the stream: the one given, PyTorch's for its tensors, or CuPy's."""
    if stream is None:
        if of_torch is not None:
            return int(sys.modules["torch"].cuda.current_stream(of_torch).cuda_stream)
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


# --- The arguments -----------------------------------------------------------------------------------


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


class _Address(int):
    """An address in device memory."""

    owner: Any  # what keeps the memory alive


def _values(args: tuple[Any, ...], device: int) -> tuple[list[Any], int | None]:
    """Return each argument as a NumPy value, a Python number or an address; and PyTorch's device."""
    values: list[Any] = []
    of_torch = None
    for position, value in enumerate(args):
        if isinstance(value, cupy.ndarray):
            values.append(_Address(value.data.ptr))
        elif value is None or isinstance(value, cupy.cuda.MemoryPointer):
            values.append(_Address(0 if value is None else value.ptr))
        elif isinstance(value, (bool, int, float, complex, np.generic, np.ndarray)):
            values.append(value)
        else:
            found = device_array(f"argument {position}", value)
            if found is None:
                raise InvalidRequest(
                    f"argument {position} is {shown(value)}, which is neither an array in device "
                    "memory nor a number; pass a struct as a NumPy array of one element"
                )
            if found.torch_device is not None:
                of_torch = found.torch_device
                if of_torch != device:
                    raise InvalidRequest(
                        f"argument {position} is on device {of_torch}, and the current one is "
                        f"{device}; launch in `with cupy.cuda.Device({of_torch}):`"
                    )
            values.append(_Address(found.pointer))
            values[-1].owner = found.owner
    return values, of_torch


def _packed(kernel: str, values: list[Any], sizes: tuple[int, ...] | None) -> list[bytes]:
    if sizes is not None and len(values) != len(sizes):
        raise InvalidRequest(f"{kernel} takes {len(sizes)} arguments, not {len(values)}")
    packed = []
    for position, value in enumerate(values):
        data, problem = _bytes_of(value, None if sizes is None else sizes[position])
        if problem:
            raise InvalidRequest(f"{kernel}: argument {position} {problem}")
        packed.append(data)
    return packed


def _bytes_of(value: Any, size: int | None) -> tuple[bytes, str]:  # a line for each kind
    """Return an argument's bytes for a parameter of `size` bytes, and its problem, if any."""
    hint = "pass cupy.asarray of it" if size == _POINTER_BYTES else "convert it"
    if isinstance(value, _Address):
        data, what = value.to_bytes(8, "little"), "is an address of 8 bytes"
        hint = "a struct that contains it, such as CuPy's CArray, is passed by kernel(…) only"
    elif isinstance(value, (np.generic, np.ndarray)):  # a NumPy struct is passed by its bytes
        if value.size == 0 or value.dtype.hasobject:
            return b"", f"is a NumPy array of {value.size} {value.dtype}, not one value"
        data = value.tobytes()
        what = f"is a NumPy {type(value).__name__} of {len(data)} bytes"
    elif isinstance(value, int):
        width = 8 if size is None else size
        if width not in (1, 2, 4, 8):
            return b"", f"is a Python int, and the parameter has {width} bytes: it is a struct"
        try:
            return int(value).to_bytes(width, "little", signed=value < 0), ""
        except OverflowError:
            return b"", f"is {value}, which {width} bytes cannot hold"
    elif isinstance(value, float):
        data, what = struct.pack("=d", value), "is a Python float, a double"
        hint = "pass numpy.float32 of it" if size == 4 else hint
    else:
        data = struct.pack("=dd", value.real, value.imag)
        what = "is a Python complex, two doubles"
    if size is not None and len(data) != size:
        return b"", f"{what}, and the parameter has {size}; {hint}"
    return data, ""


# --- The launch's attributes and limits --------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _attributes(
    driver: Any,
    cluster: tuple[int, int, int] | None,
    cooperative: bool,
    programmatic: bool,
    priority: int | None,
) -> list[Any]:
    """Return the launch's attributes, cached for launches of the same kind."""
    ids = driver.CUlaunchAttributeID
    attributes = []

    def attribute(name: str) -> Any:
        made = driver.CUlaunchAttribute()
        made.id = getattr(ids, f"CU_LAUNCH_ATTRIBUTE_{name}")
        attributes.append(made)
        return made.value

    if cluster is not None:
        dimensions = attribute("CLUSTER_DIMENSION").clusterDim
        dimensions.x, dimensions.y, dimensions.z = cluster
    if cooperative:
        attribute("COOPERATIVE").cooperative = 1
    if programmatic:
        attribute("PROGRAMMATIC_STREAM_SERIALIZATION").programmaticStreamSerializationAllowed = 1
    if priority is not None:
        attribute("PRIORITY").priority = priority
    return attributes


@dataclass(slots=True)
class _Call:
    """One launch in progress: its calls of the driver, and their errors."""

    kernel: RawKernel
    driver: Any
    loaded: Loaded
    threads: tuple[int, int, int]
    shared_mem: int

    def error(self, status: Any) -> DriverError:
        """Return the error for a status of the driver."""
        message = status.name
        failed, text = self.driver.cuGetErrorString(status)
        if not int(failed) and text:
            message += f": {text.decode() if isinstance(text, bytes) else text}"
        from rtcompile.frontends.driver_errors import of_launch

        return of_launch(self.kernel, message, int(status), self.threads, self.shared_mem)

    def allow_shared_memory(self) -> None:
        """Raise the kernel's limit of dynamic shared memory if the launch needs more."""
        driver = self.driver
        function = self.loaded.handle
        name = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        status, now = driver.cuFuncGetAttribute(name, function)
        if int(status) or now >= self.shared_mem:
            return
        (status,) = driver.cuFuncSetAttribute(function, name, self.shared_mem)
        if int(status):
            raise DriverError(
                f"the launch of {self.kernel.name} was rejected: {status.name}\n  hint: "
                f"shared_mem={self.shared_mem} and the kernel's static shared memory are more "
                "than a block of this device can have; kernel.advise(shared_mem=…) tells what fits",
                int(status),
            )

    def check_cluster(
        self, grid: tuple[int, int, int], cluster: tuple[int, int, int], config: Any, device: int
    ) -> None:
        """Raise for a cluster that is impossible on this device or with this grid, before the driver does."""
        blocks = cluster[0] * cluster[1] * cluster[2]
        if any(extent % size for extent, size in zip(grid, cluster, strict=True)):
            raise InvalidRequest(f"the grid {grid} is not a multiple of the cluster {cluster}")
        if blocks > _CLUSTER_MAX:
            raise InvalidRequest(
                f"a cluster {cluster} has {blocks} blocks; no device has more than {_CLUSTER_MAX}"
            )
        driver = self.driver
        function = self.loaded.handle
        if blocks > _PORTABLE_CLUSTER:
            name = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            driver.cuFuncSetAttribute(function, name, 1)  # a device that lacks it fails below
        key = (self.threads, self.shared_mem, blocks > _PORTABLE_CLUSTER)
        most = self.loaded.clusters.get(key)
        if most is None:
            most = self.loaded.clusters[key] = self._most_blocks(function, config, device)
        if blocks > most:
            raise InvalidRequest(
                f"a cluster {cluster} has {blocks} blocks, and on this device {self.kernel.name} "
                f"can have {most} with {self.shared_mem} bytes of dynamic shared memory in blocks "
                f"of {self.threads} threads"
            )

    def _most_blocks(self, function: Any, config: Any, device: int) -> int:
        driver = self.driver
        name = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH
        status, has = driver.cuDeviceGetAttribute(name, driver.CUdevice(device))
        if not int(status) and not has:
            raise InvalidRequest(
                f"device {device} has no clusters (they begin with compute capability 9.0); "
                "launch without cluster="
            )
        status, most = driver.cuOccupancyMaxPotentialClusterSize(function, config)
        if int(status):
            raise self.error(status)
        return int(most)

    def priority(self, given: int | None) -> int | None:
        """Return the priority; raise if the device does not have it."""
        if given is None:
            return None
        status, least, greatest = self.driver.cuCtxGetStreamPriorityRange()
        if int(status):
            raise self.error(status)
        if not greatest <= whole("priority", given, -(1 << 31), 1 << 30) <= least:
            raise InvalidRequest(
                f"priority={given} is not one of this device's, {greatest} (first) to {least} (last)"
            )
        return given

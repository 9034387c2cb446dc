"""Repeats a launch quickly: the same grid, block and stream, arguments of the same types.

A launch that differs in any way is left to `launch`, which checks it and reports the error.
"""

from __future__ import annotations

import ctypes
import operator
import struct
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import cupy
import numpy as np

_KEPT = 64  # configurations, and tuples of argument types, of one kernel
_UNIT = 16  # bytes; the host's copy of each parameter begins at a multiple of it
_INTEGERS = {1: "b", 2: "h", 4: "i", 8: "q"}
# Memory for parameters, the address of each, and the address of these addresses.
Buffer = tuple[Any, "array[int]", int]


class Loaded:
    """A kernel on one device: CuPy's `function`, what the driver reports about it, and its launches."""

    __slots__ = ("_arguments", "_driver", "_known", "clusters", "function", "handle", "sizes")

    def __init__(self, driver: Any, function: Any) -> None:
        self._driver = driver
        self.function = function  # it keeps the module loaded
        self.handle = driver.CUfunction(int(function.ptr))
        self.sizes = self._parameter_sizes()
        self.clusters: dict[tuple[Any, ...], int] = {}  # the largest, by configuration
        self._known: dict[Hashable, Any] = {}
        self._arguments: dict[tuple[type, ...], _Arguments | None] = {}

    def _parameter_sizes(self) -> tuple[int, ...] | None:
        """Return the bytes of each parameter; None if the driver does not report them."""
        sizes: list[int] = []
        while True:
            try:
                status, *values = self._driver.cuFuncGetParamInfo(self.handle, len(sizes))
            except (AttributeError, RuntimeError):  # a driver or a cuda-python before 12.4
                return None
            if int(status) == int(self._driver.CUresult.CUDA_ERROR_INVALID_VALUE):
                return tuple(sizes)  # there is no further parameter
            if int(status):
                return None
            sizes.append(int(values[1]))

    def launch(self, key: Hashable, args: Sequence[Any]) -> bool:
        """Launch from the cache; return whether that was possible and the driver accepted it."""
        try:
            configuration = self._known.get(key)
            if configuration is None or not isinstance(args, (tuple, list)):
                return False  # an iterator can be read once only
            types = tuple(map(type, args))
            arguments = self._arguments[types]
        except TypeError:  # a grid that is a list
            return False
        except KeyError:
            if len(self._arguments) >= _KEPT:
                self._arguments.clear()
            arguments = self._arguments[types] = _Arguments.of(types, self.sizes)
        if arguments is None or (buffer := arguments.put(args)) is None:
            return False
        try:
            (status,) = self._driver.cuLaunchKernelEx(configuration, self.handle, buffer[2], 0)
        finally:
            arguments.free.append(buffer)
        return not int(status)

    def keep(self, key: Hashable, configuration: Any) -> None:
        """Keep the driver's configuration of a launch that succeeded."""
        try:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = configuration
        except TypeError:
            pass  # a grid that is a list


class _Arguments:
    """The layout of the bytes of arguments of certain types."""

    __slots__ = ("_format", "_sizes", "_take", "free")

    def __init__(
        self, packings: Sequence[tuple[str, Callable[[Any], Any]]], sizes: tuple[int, ...]
    ) -> None:
        forms = (f"{form}{-size % _UNIT}x" for (form, _), size in zip(packings, sizes, strict=True))
        self._format = struct.Struct("".join(["=", *forms]))
        self._sizes = sizes
        self._take = [take for _, take in packings]
        # Unused buffers. Threads that launch at the same time use one each.
        self.free: list[Buffer] = []

    @classmethod
    def of(cls, types: tuple[type, ...], sizes: tuple[int, ...] | None) -> _Arguments | None:
        """Return the layout for arguments of these types; None if one has no fixed layout."""
        if sizes is None or len(sizes) != len(types):
            return None
        found = list(map(_packing, types, sizes))
        packings = [each for each in found if each is not None]
        return cls(packings, sizes) if len(packings) == len(found) else None

    def put(self, args: Sequence[Any]) -> Buffer | None:
        """Return a buffer with the arguments' bytes; None if one does not fit."""
        try:
            buffer = self.free.pop()
        except IndexError:
            buffer = parameter_buffer(self._sizes)
        try:
            values = [take(value) for take, value in zip(self._take, args, strict=True)]
            self._format.pack_into(buffer[0], 0, *values)
        except (struct.error, OverflowError):
            return None
        return buffer


def parameter_buffer(sizes: Iterable[int]) -> Buffer:
    """Return a buffer for parameters of these sizes."""
    ends = list(accumulate((size + -size % _UNIT for size in sizes), initial=0))
    values = ctypes.create_string_buffer(ends[-1] + 1)
    start = ctypes.addressof(values)
    # The extra end pointer keeps the array non-empty for kernels without parameters.
    addresses = array("Q", [start + end for end in ends])
    return values, addresses, addresses.buffer_info()[0]


def _packing(kind: type, size: int) -> tuple[str, Callable[[Any], Any]] | None:
    """Return an argument's `struct` format and the function that takes its value; None if unknown."""
    if kind is cupy.ndarray and size == 8:
        return "Q", _ADDRESS
    if kind in (int, bool) and size in _INTEGERS:
        return _INTEGERS[size], operator.index
    if kind is float and size == 8:
        return "d", float
    if kind is type(None) and size == 8:
        return "Q", lambda _: 0
    if issubclass(kind, np.generic) and kind not in (np.void, np.object_):
        return (f"{size}s", kind.tobytes) if np.dtype(kind).itemsize == size else None
    return None


_ADDRESS = operator.attrgetter("data.ptr")

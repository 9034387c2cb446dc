"""Checks the arguments of a `Kernel` by its signature, and converts them to the parameters' types."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from rtcompile.errors import InvalidRequest, shown
from rtcompile.request.values import items

if TYPE_CHECKING:
    from rtcompile.types import Parameter


def convert(parameters: Sequence[Parameter], args: Sequence[Any], kernel: str) -> tuple[Any, ...]:
    """Return `args` for `RawKernel`: device pointers, and numbers of the right type."""
    args = items("args", args, "a kernel's arguments")
    if len(args) != len(parameters):
        takes = ", ".join(map(str, parameters))
        raise InvalidRequest(f"{kernel} takes {len(parameters)} ({takes}), not {len(args)}")
    converted = []
    for position, (parameter, value) in enumerate(zip(parameters, args, strict=True)):
        try:
            convert_one = _pointer if parameter.pointer else _number
            converted.append(convert_one(parameter, value))
        except _MisfitError as misfit:
            raise InvalidRequest(f"{kernel}: argument {position} ({parameter}) {misfit}") from None
    return tuple(converted)


class _MisfitError(Exception):
    """An argument does not fit; the message is the end of a sentence."""


def _pointer(parameter: Parameter, value: Any) -> Any:
    if isinstance(value, cupy.ndarray):
        _check_elements(parameter, value.dtype)
        return value
    if value is None or isinstance(value, cupy.cuda.MemoryPointer):
        return value
    if isinstance(value, np.ndarray):
        raise _MisfitError("is a NumPy array, in host memory; pass cupy.asarray of it")
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        _check_elements(parameter, np.dtype(interface["typestr"]))
        address, read_only = interface["data"]
        if read_only and not parameter.const:
            raise _MisfitError("is a read-only array, and the parameter is not const")
        return np.uintp(address)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return np.uintp(value)
    raise _MisfitError(f"is {shown(value)}, not an array on the device")


def _check_elements(parameter: Parameter, dtype: Any) -> None:
    if parameter.dtype and dtype != np.dtype(parameter.dtype):
        raise _MisfitError(f"is an array of {dtype}, not of {np.dtype(parameter.dtype)}")
    if not parameter.dtype and parameter.size not in (None, dtype.itemsize):
        raise _MisfitError(f"is an array of {dtype}; {parameter.type} has {parameter.size} bytes")


def _number(parameter: Parameter, value: Any) -> Any:
    if not parameter.dtype:  # a struct by value, whose bytes CuPy takes from a NumPy scalar
        return value
    if isinstance(value, cupy.ndarray):
        raise _MisfitError("is an array on the device, not a number; pass array.item()")
    dtype = np.dtype(parameter.dtype)
    if dtype.kind in "iu":
        try:
            number = operator.index(value)
        except TypeError:
            raise _MisfitError(f"is {shown(value)}, not an integer") from None
        if not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
            raise _MisfitError(f"is {number}, which {dtype} cannot hold")
        return dtype.type(number)
    if dtype.kind == "b":
        if not isinstance(value, (bool, np.bool_)):
            raise _MisfitError(f"is {shown(value)}, not a bool")
        return dtype.type(value)
    if not isinstance(value, _COMPLEX if dtype.kind == "c" else _REAL):
        raise _MisfitError(f"is {shown(value)}, not a number")
    return dtype.type(value)


_REAL = (int, float, np.integer, np.floating)
_COMPLEX = (*_REAL, complex, np.complexfloating)

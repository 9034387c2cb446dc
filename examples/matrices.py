"""CuPy arrays and torch tensors as one thing: where a matrix lies, and whose stream to work on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Matrix:
    """A matrix in device memory, without its owner.

    Attributes
    ----------
    pointer : int
        Device address of the first element.
    shape, strides : (int, int)
        In elements. A dimension of one has the stride of a contiguous matrix, whatever the array's stride is.
    dtype : str
        ``"float16"``, ``"bfloat16"``, …
    device : int
        Ordinal of the device it lies on.
    """

    pointer: int
    shape: tuple[int, int]
    strides: tuple[int, int]
    dtype: str
    device: int

    @property
    def row_major(self) -> bool:
        """Whether the elements of a row are neighbours."""
        return self.strides[1] == 1

    @property
    def column_major(self) -> bool:
        """Whether the elements of a column are neighbours, as in ``x.T``."""
        return self.strides[0] == 1


def matrix(name: str, array: Any) -> Matrix:
    """Describe a CuPy array, a CUDA torch tensor, or what has ``__cuda_array_interface__``.

    Raises
    ------
    TypeError
        It is none of these, or not two-dimensional, or lies in host memory.
    ValueError
        Its strides are no whole numbers of elements.
    """
    if is_torch(array):
        if not array.is_cuda:
            raise TypeError(f"{name} is a torch tensor on {array.device}; move it to a CUDA device")
        pointer, device = array.data_ptr(), array.device.index
        strides, dtype = tuple(array.stride()), str(array.dtype).removeprefix("torch.")
    elif hasattr(array, "__cuda_array_interface__"):
        import cupy as cp

        array = cp.asarray(array)  # a view: never a copy
        if any(stride % array.itemsize for stride in array.strides):
            raise ValueError(
                f"{name} has strides {array.strides}; "
                f"they must be multiples of its elements' {array.itemsize} bytes"
            )
        pointer, device, dtype = array.data.ptr, array.device.id, array.dtype.name
        strides = tuple(stride // array.itemsize for stride in array.strides)
    else:
        raise TypeError(f"{name} is a {type(array).__name__}, which has no device memory")
    if len(strides) != 2:
        raise TypeError(f"{name} has {len(strides)} dimensions; a matrix has two")
    shape = tuple(array.shape)
    return Matrix(pointer, shape, effective_strides(shape, strides), dtype, device)


def effective_strides(shape: tuple[int, int], strides: tuple[int, int]) -> tuple[int, int]:
    """Return strides in elements that address the same elements, with one spelling for each matrix.

    Nobody takes a step along a dimension of one: broadcasting gives it a stride of 0, a slice any.
    """
    (rows, columns), (down, along) = shape, strides
    if rows == 1:
        return (columns, 1) if columns == 1 or along == 1 else (1, along)
    if columns == 1:
        return (1, rows) if down == 1 else (down, 1)
    return strides


def require_contiguous(name: str, array: Any) -> None:
    """Raise ValueError unless a kernel may read a CuPy array as ``x[row * columns + column]``."""
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} has strides {array.strides}; pass cupy.ascontiguousarray({name})")
    require_countable(name, array)


def require_countable(name: str, array: Any) -> None:
    """Raise ValueError unless elements lie at multiples of their size and ``int`` can number them."""
    if any(at % array.itemsize for at in (array.data.ptr, *array.strides)):
        raise ValueError(
            f"{name} starts at {array.data.ptr:#x} and has strides {array.strides}; "
            f"all must be multiples of its elements' {array.itemsize} bytes"
        )
    extents = (*array.shape, *(stride // array.itemsize for stride in array.strides[:-1]))
    if max(extents, default=0) > 2**31 - 2**12:  # the last tile may hang over the edge
        raise ValueError(
            f"{name} has shape {array.shape}, strides {array.strides}; this kernel counts in 32 bits"
        )


def is_torch(array: Any) -> bool:
    """Whether it is a torch tensor; torch is not imported to find out."""
    return type(array).__module__.partition(".")[0] == "torch"


def empty(like: Any, rows: int, columns: int) -> Any:
    """Return a matrix of the same library and dtype."""
    if is_torch(like):
        return like.new_empty((rows, columns))
    import cupy as cp

    return cp.empty((rows, columns), cp.asarray(like).dtype)


@contextmanager
def on_stream_of(array: Any, device: int) -> Iterator[None]:
    """Make CuPy launch on `device`, and on torch's current stream if the array is torch's."""
    import cupy as cp

    with cp.cuda.Device(device):
        if not is_torch(array):
            yield
            return
        import torch

        with _borrowed(torch.cuda.current_stream(device)):
            yield


def _borrowed(stream: Any) -> Any:
    """Return a torch stream as CuPy's."""
    import cupy as cp

    if hasattr(cp.cuda.Stream, "from_external"):  # CuPy 14, where ExternalStream is deprecated
        return cp.cuda.Stream.from_external(_StreamProtocol(stream))
    return cp.cuda.ExternalStream(stream.cuda_stream)


@dataclass(frozen=True)
class _StreamProtocol:
    stream: Any  # kept alive

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.stream.cuda_stream


def by_value(data: bytes) -> np.ndarray:
    """Return bytes as CuPy passes a struct to a kernel: an array of one element of that size."""
    return np.frombuffer(data, dtype=np.void(data).dtype)

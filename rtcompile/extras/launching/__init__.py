"""`tensor_map`: the tensor maps by which TMA reads arrays."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from rtcompile.errors import DriverError, InvalidRequest, ToolkitNotFound, public, shown
from rtcompile.named import NamedTuple
from rtcompile.request.values import items, text, whole

# The driver's limits for a tensor map.
_BOX_MAX = 256  # elements along each dimension
_DIMENSIONS_MAX = 5
_UNIT = 16  # bytes: addresses, strides and rows of a box are multiples of it
_SHAPE_MAX = 1 << 32
_STRIDE_MAX = 1 << 40  # bytes

# Maps NumPy's or PyTorch's name of an element type to the driver's. TMA moves bytes and fills with zeros: the sign of a
# short integer does not matter to it.
_TYPES = {
    **{name: name.upper() for name in ("uint8", "uint16", "uint32", "uint64", "int32", "int64")},
    **{name: name.upper() for name in ("float16", "bfloat16", "float32", "float64", "tfloat32")},
    **dict.fromkeys(("bool", "int8", "float8_e4m3fn", "float8_e5m2"), "UINT8"),
    "int16": "UINT16",
}
_SIZES = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "tfloat32": 4}


class _Array(NamedTuple):
    """An array in device memory; nothing is copied."""

    pointer: int  # address of the first element
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    dtype: str  # "float16", "bfloat16", …
    itemsize: int


def is_tensor(name: str, value: Any) -> bool:
    """Return whether a value is PyTorch's tensor; raise InvalidRequest for one in host memory."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return False
    if not value.is_cuda:
        raise InvalidRequest(f"{name} is a torch tensor on {value.device}; pass {name}.cuda()")
    return True


def _described(array: Any) -> _Array:
    # A tensor that requires a gradient, or of bfloat16, has no __cuda_array_interface__.
    if is_tensor("array", array):
        size = array.element_size()
        strides = tuple(stride * size for stride in array.stride())
        dtype = str(array.dtype).removeprefix("torch.")
        return _Array(array.data_ptr(), tuple(array.shape), strides, dtype, size)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise InvalidRequest(
            f"array is {shown(array)}, which is not a device array; pass cupy.asarray(array), or "
            "cupy.from_dlpack(array) for another library's array"
        )
    kind = np.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    contiguous = (kind.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    strides = tuple(interface.get("strides") or contiguous)
    return _Array(int(interface["data"][0]), shape, strides, kind.name, kind.itemsize)


@public
def tensor_map(
    array: Any, box: Sequence[int], *, swizzle: int | str | None = None, dtype: str | None = None
) -> np.ndarray[Any, Any]:
    """Create a TMA descriptor (`CUtensorMap`) for an array, to pass as a ``const __grid_constant__`` parameter.

    Parameters
    ----------
    array : array
        An array of CuPy or PyTorch, or an object with ``__cuda_array_interface__``. It has one to five dimensions,
        the last contiguous, and must outlive every kernel that uses the map. Copies read zeros outside the array.
    box : sequence of int
        Elements that one copy moves along each dimension of `array`, 1 to 256.
    swizzle : {None, 32, 64, 128} or str
        Bytes over which shared memory is swizzled, or one of the driver's names, such as ``"128B_ATOM_32B"``.
    dtype : str, optional
        The elements' type if the array's library has no name for it: ``"bfloat16"``, ``"tfloat32"``.

    Returns
    -------
    numpy.ndarray
        The map, one element of 128 bytes of shape (1,), for ``kernel(…)`` and for ``kernel.launch(…)``.

    Raises
    ------
    InvalidRequest
        TMA cannot address the array: its address or a stride is not aligned, its last dimension is
        not contiguous, or the box does not fit; the message says which.
    DriverError
        The driver rejects the map for another reason.
    ToolkitNotFound
        cuda-python is not installed.

    Examples
    --------
    >>> tiles = rtcompile.tensor_map(array, box=(64, 64), swizzle=128)  # doctest: +SKIP
    >>> kernel((grid,), (128,), (tiles,))  # doctest: +SKIP
    """
    found = _described(array)
    driver = bindings()
    kind = found.dtype if dtype is None else text("dtype", dtype)
    if kind not in _TYPES or (_SIZES.get(kind) or np.dtype(kind).itemsize) != found.itemsize:
        raise InvalidRequest(
            f"TMA cannot use dtype {kind} for an array of {found.dtype}; it supports {', '.join(_TYPES)}"
        )
    if swizzle is None or isinstance(swizzle, int):
        word = f"{int(swizzle)}B" if swizzle else "NONE"
    else:
        word = swizzle if isinstance(swizzle, str) else shown(swizzle)
    prefix, swizzles = "CU_TENSOR_MAP_SWIZZLE_", driver.CUtensorMapSwizzle.__members__
    if prefix + word not in swizzles:
        known = ", ".join(each.removeprefix(prefix) for each in swizzles)
        raise InvalidRequest(f"swizzle must be one of the driver's {known}, not {word}")
    row = 0 if word == "NONE" else int(word.partition("B")[0])
    strides = _strides(found)
    counts = _box(found, box, row)
    rank = len(counts)
    status, encoded = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES[kind]}"),
        rank,
        found.pointer,
        [driver.cuuint64_t(extent) for extent in reversed(found.shape)],
        [driver.cuuint64_t(stride) for stride in reversed(strides)],
        [driver.cuuint32_t(count) for count in reversed(counts)],
        [driver.cuuint32_t(1)] * rank,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzles[prefix + word],
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if int(status) != 0:
        raise DriverError(
            f"cuTensorMapEncodeTiled rejected shape {found.shape}, strides {found.strides}, box "
            f"{counts}, swizzle {swizzle}: {status.name}",
            int(status),
        )
    opaque = np.array([int(word) for word in encoded.opaque], np.uint64)
    by_value: np.ndarray[Any, Any] = opaque.view(np.dtype("V128"))
    return by_value


def _strides(found: _Array) -> tuple[int, ...]:
    """Return the strides of all dimensions but the last; raise if TMA cannot use them."""
    shape, strides = found.shape, found.strides
    if not 1 <= len(shape) <= _DIMENSIONS_MAX:
        raise InvalidRequest(
            f"array has {len(shape)} dimensions; a tensor map has 1 to {_DIMENSIONS_MAX}: reshape it"
        )
    if not all(0 < extent <= _SHAPE_MAX for extent in shape):
        raise InvalidRequest(
            f"array has shape {shape}; a tensor map's extents are 1 to {_SHAPE_MAX:,}"
        )
    if found.pointer % _UNIT:
        raise InvalidRequest(
            f"array starts at {found.pointer:#x}; TMA needs a multiple of {_UNIT} bytes: pass a copy"
        )
    if strides[-1] != found.itemsize and shape[-1] > 1:
        transposed = strides[0] == found.itemsize
        raise InvalidRequest(
            f"array has strides {strides} (bytes); its last dimension must be contiguous: pass "
            + ("array.T with box reversed" if transposed else "a contiguous copy")
        )
    given = []
    inner = found.itemsize * shape[-1]  # a dimension of one element may have any valid stride
    for axis in range(len(shape) - 2, -1, -1):
        stride = strides[axis] if shape[axis] > 1 else -(-inner // _UNIT) * _UNIT
        if stride % _UNIT or not 0 < stride < _STRIDE_MAX:
            needed = f"multiples of {_UNIT} bytes below 2**40" if stride > 0 else "positive"
            raise InvalidRequest(
                f"array has strides {strides} (bytes); strides must be {needed}; dimension {axis} has {stride}"
            )
        given.append(stride)
        inner = stride * shape[axis]
    return tuple(reversed(given))


def _box(found: _Array, box: Sequence[int], row: int) -> tuple[int, ...]:
    counts = tuple(
        whole(f"box[{axis}]", count, 1, _BOX_MAX)
        for axis, count in enumerate(items("box", box, "elements along each dimension"))
    )
    if len(counts) != len(found.shape):
        raise InvalidRequest(
            f"box {counts} has {len(counts)} dimensions, and array has {len(found.shape)}: give a "
            "count for each"
        )
    inner = counts[-1] * found.itemsize
    if inner % _UNIT:
        raise InvalidRequest(
            f"box {counts} moves {inner} bytes of the last dimension; TMA needs a multiple of {_UNIT}"
        )
    if row and inner > row:
        raise InvalidRequest(
            f"box {counts} moves {inner} bytes of the last dimension, and swizzle={row} allows {row}: "
            "make the box narrower"
        )
    return counts


def bindings() -> Any:
    """Return cuda-python's driver."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise ToolkitNotFound(
            "kernel.launch and tensor_map call the driver through cuda-python, which is not "
            "installed; `pip install cuda-python`"
        ) from None
    return driver

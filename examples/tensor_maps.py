"""Tensor maps: the 128-byte descriptors that the TMA unit reads, encoded from Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from examples.matrices import Matrix, by_value


def require_tma(name: str, matrix: Matrix) -> None:
    """Raise ValueError unless the TMA unit can address the matrix: it must not fault in the kernel."""
    if not (matrix.row_major or matrix.column_major):
        raise ValueError(
            f"{name} has strides {matrix.strides}; one of its dimensions must be contiguous"
        )
    outer = _pitch(matrix)
    if outer <= 0:
        raise ValueError(f"{name} has strides {matrix.strides}; TMA wants them positive")
    if outer % 8:
        raise ValueError(
            f"{name} has rows {outer} elements apart; TMA wants a multiple of 16 bytes (8 elements)"
        )
    if matrix.pointer % 16:
        raise ValueError(f"{name} starts at {matrix.pointer:#x}; TMA wants a multiple of 16 bytes")
    if max(matrix.shape) >= 2**31:
        raise ValueError(f"{name} has shape {matrix.shape}; TMA coordinates have 31 bits")


def _pitch(matrix: Matrix) -> int:
    """Return the elements between rows (columns, if column-major); any legal number if there is one."""
    shape, strides = matrix.shape, matrix.strides
    if not matrix.row_major:
        shape, strides = shape[::-1], strides[::-1]
    return strides[0] if shape[0] > 1 else -(-shape[1] // 8) * 8


def encode(
    pointer: int, dtype: str, shape: Sequence[int], strides: Sequence[int], box: Sequence[int]
) -> np.ndarray:
    """Describe a tensor of 2-byte elements to TMA, each box swizzled over its own width.

    Parameters
    ----------
    pointer : int
        Device address, a multiple of 16.
    dtype : {"float16", "bfloat16"}
        Elements outside the tensor read as zeros of this type.
    shape : sequence of int
        The contiguous dimension first.
    strides : sequence of int
        In bytes, of every dimension but the first; multiples of 16.
    box : sequence of int
        What one copy moves; ``box[0]`` elements are 32, 64 or 128 bytes.

    Returns
    -------
    numpy.ndarray
        One element of 128 bytes, to be passed for a ``const __grid_constant__`` parameter.
    """
    from cuda.bindings import driver

    rank = len(shape)
    status, tensor_map = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{dtype.upper()}"),
        rank,
        pointer,
        [driver.cuuint64_t(extent) for extent in shape],
        [driver.cuuint64_t(stride) for stride in strides],
        [driver.cuuint32_t(extent) for extent in box],
        [driver.cuuint32_t(1)] * rank,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{2 * box[0]}B"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        raise ValueError(f"cuTensorMapEncodeTiled{(*shape,)}, strides {(*strides,)}: {status.name}")
    return by_value(np.array([int(word) for word in tensor_map.opaque], np.uint64).tobytes())


def encode_matrix(matrix: Matrix, box: Sequence[int]) -> np.ndarray:
    """Describe a matrix in its own layout; `box` counts contiguous elements first.

    A box of three dimensions makes the matrix the only one of a batch, as CUTLASS sees it.
    """
    shape = matrix.shape[::-1] if matrix.row_major else matrix.shape
    pitch = 2 * _pitch(matrix)
    batch = len(box) - 2
    return encode(
        matrix.pointer,
        matrix.dtype,
        (*shape, *(1,) * batch),
        (pitch, *(pitch * shape[1],) * batch),
        [int(extent) for extent in box],
    )

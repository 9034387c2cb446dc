"""Device memory that detects accesses outside of arrays.

Every allocation is between two guards, and all bytes begin as 0xFF, which is NaN in every floating
type. A read outside an array spoils the result, an unwritten element stays NaN, and
`GuardedMemory.check` finds a write outside an array. If ``RTCOMPILE_TEST_EXACT_MEMORY`` is set, there are
no guards. Instead each array has its own allocation of the driver, whose ends compute-sanitizer knows.
"""

import os
from typing import Any

import cupy as cp
import numpy as np

GUARD = 0 if os.environ.get("RTCOMPILE_TEST_EXACT_MEMORY") else 16 * 1024
POISON = 0xFF


class GuardedMemory:
    """An allocator for ``cupy.cuda.using_allocator``, and arrays of any layout in its memory."""

    def __init__(self) -> None:
        self._blocks: list[tuple[Any, int]] = []
        self._watched: list[tuple[str, Any, np.ndarray, np.ndarray]] = []

    def allocate(self, size: int) -> Any:
        """Return a pointer to `size` poisoned bytes between guards, as CuPy's allocators do."""
        whole = max(size, 1) + 2 * GUARD
        if GUARD:
            start = cp.get_default_memory_pool().malloc(whole)
        else:
            start = cp.cuda.MemoryPointer(cp.cuda.Memory(whole), 0)
        cp.cuda.runtime.memset(start.ptr, POISON, whole)
        self._blocks.append((start, size))
        return start + GUARD

    def place(self, name: str, values: np.ndarray, *, pitch: int = 0, start: int = 0) -> Any:
        """Copy an array to the device; `check` then requires that it was not written to.

        A matrix may have rows `pitch` elements apart, the first one `start` elements into its
        allocation; the space between the rows is poisoned.
        """
        return self._place(name, values, pitch, start, written=False)

    def room(self, name: str, like: np.ndarray, *, pitch: int = 0, start: int = 0) -> Any:
        """Return an array for results; `check` requires that only its elements were written."""
        poison = np.full(like.nbytes, POISON, np.uint8).view(like.dtype).reshape(like.shape)
        return self._place(name, poison, pitch, start, written=True)

    def _place(self, name: str, values: np.ndarray, pitch: int, start: int, written: bool) -> Any:
        itemsize = values.itemsize
        strides = list(np.ascontiguousarray(values).strides)
        if pitch:
            strides[0] = pitch * itemsize
        last = sum((n - 1) * s for n, s in zip(values.shape, strides, strict=True))
        size = start * itemsize + last + itemsize
        image, free = np.full(size, POISON, np.uint8), np.zeros(size, bool)
        view = np.ndarray(values.shape, values.dtype, image, start * itemsize, strides)
        view[...] = values
        if written:
            for byte in range(itemsize):
                np.ndarray(values.shape, bool, free, start * itemsize + byte, strides)[...] = True
        pointer = self.allocate(size)
        pointer.copy_from_host(image.ctypes.data, size)
        self._watched.append((name, pointer, image, free))
        return cp.ndarray(values.shape, values.dtype, pointer + start * itemsize, strides)

    def check(self) -> None:
        """Raise AssertionError naming the first byte that was written outside the result arrays."""
        cp.cuda.runtime.deviceSynchronize()
        for name, pointer, image, free in self._watched:
            now = _download(pointer.ptr, image.size)
            changed = np.flatnonzero((now != image) & ~free)
            assert not changed.size, (
                f"{changed.size} bytes of {name} were written that nobody may write to, "
                f"the first {changed[0]} bytes into {image.size}"
            )
        for start, size in self._blocks if GUARD else ():
            for side, offset in (("before", 0), ("behind", GUARD + size)):
                changed = np.flatnonzero(_download(start.ptr + offset, GUARD) != POISON)
                assert not changed.size, (
                    f"{changed.size} bytes {side} an allocation of {size} were written, "
                    f"the first at {changed[0] - (GUARD if side == 'before' else 0)}"
                )


def _download(pointer: int, size: int) -> np.ndarray:
    data = np.empty(size, np.uint8)
    cp.cuda.runtime.memcpy(data.ctypes.data, pointer, size, cp.cuda.runtime.memcpyDeviceToHost)
    return data

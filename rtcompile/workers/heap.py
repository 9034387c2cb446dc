"""NVRTC's heap for precompiled headers, at the same address in every worker of every process. Worker side.

A precompiled header is an image of that heap, so it works only at the address where it was made. Placing the heap
relies on undocumented behaviour of NVRTC 12.8 and later, and of Linux; `pin` checks the result.
"""

from __future__ import annotations

import ctypes

from rtcompile.workers import probes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Free on x86-64 and on aarch64 with 48-bit addresses: far above the heap, far below the libraries.
BASE = 0x300000000000
# CuTe's header takes 291 MB, CUTLASS's 311. The unused rest costs address space but no memory.
SIZE = 1 << 30

# Linux may ignore an address that is only a hint; before 4.17 it also treats this flag as a hint.
_MAP_FIXED_NOREPLACE = 0x100000


def pin(library: ctypes.CDLL, allocate: Callable[[], None]) -> bool:
    """Make NVRTC `allocate` the heap at `BASE` by a compile; return whether it is there now."""
    # NVRTC leaves the address to Linux, so its call of `mmap` is intercepted.
    slot = probes.slots(library).get("mmap")
    if slot is None or not hasattr(library, "nvrtcSetPCHHeapSize"):  # before 12.8
        return False
    if library.nvrtcSetPCHHeapSize(ctypes.c_size_t(SIZE)) != 0:
        return False
    word, number = ctypes.c_void_p, ctypes.c_int
    function = ctypes.CFUNCTYPE(
        word, word, ctypes.c_size_t, number, number, number, ctypes.c_long, use_errno=True
    )
    real = function(("mmap", ctypes.CDLL(None)))
    got = []

    def place(address: int | None, size: int, protection: int, flags: int, *file: int) -> Any:
        if address or size != SIZE:
            return real(address, size, protection, flags, *file)
        got.append(real(BASE, size, protection, flags | _MAP_FIXED_NOREPLACE, *file))
        if got[-1] == word(-1).value:
            return real(address, size, protection, flags, *file)
        return got[-1]

    ours = function(place)
    if not probes.redirect(slot, ours):
        return False
    try:
        allocate()
    finally:
        probes.redirect(slot, real)
    return got == [BASE]

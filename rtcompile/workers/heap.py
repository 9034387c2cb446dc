"""NVRTC's heap for precompiled headers, at the same address in every worker of every process.

A precompiled header is an image of that heap, so it can be used only if the heap lies at the same
address as when it was made. Children of one zygote inherit the address; different zygotes agree on
it only if both place the heap at `BASE`. How that is done is undocumented behaviour of NVRTC 12.8
and later, and of Linux. `pin` checks that it worked; if not, precompiled headers are not used.

Worker side.
"""

from __future__ import annotations

import ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Free on x86-64 and on aarch64 with 48-bit addresses: far above the heap, far below the libraries.
BASE = 0x300000000000
# CuTe's header takes 291 MB, CUTLASS's 311. The unused rest costs address space but no memory.
SIZE = 1 << 30

_ROOM = SIZE // 4  # left free at both ends of a gap; twice this is too small for the heap

_PROT_NONE = 0
# PRIVATE, ANONYMOUS, NORESERVE, FIXED_NOREPLACE. Linux may ignore an address that is only a hint.
_MAP_HERE_ONLY = 0x2 | 0x20 | 0x4000 | 0x100000
_KERNEL_HALF = 1 << 56  # x86-64's vsyscall page lies there


def pin(library: ctypes.CDLL, allocate: Callable[[], None]) -> bool:
    """Make NVRTC `allocate` the heap at `BASE` by a compile; say whether it lies there now."""
    # Linux gives a new mapping the highest gap that is large enough. With every such gap above `BASE` taken for
    # a moment, that is the one at `BASE`. Room is left in each: at its end for what else is mapped meanwhile, at
    # its start for the heap of `malloc`, which grows upwards.
    if not hasattr(library, "nvrtcSetPCHHeapSize"):  # before 12.8
        return False
    if library.nvrtcSetPCHHeapSize(ctypes.c_size_t(SIZE)) != 0:
        return False
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    held = []
    try:
        for start, end in _gaps_above(BASE + SIZE):
            if start != BASE + SIZE:
                start += _ROOM
            size = end - _ROOM - start
            got = libc.mmap(start, size, _PROT_NONE, _MAP_HERE_ONLY, -1, 0)
            if got != start:
                return False  # no address space: `ulimit -v`
            held.append((start, size))
        allocate()
    finally:
        for start, size in held:
            libc.munmap(start, size)
    return any(start == BASE for start, _ in mappings())


def _gaps_above(address: int) -> list[tuple[int, int]]:
    gaps = []
    for start, end in mappings():
        if start > _KERNEL_HALF:
            break
        if start - address > 2 * _ROOM:
            gaps.append((address, start))
        address = max(address, end)
    return gaps


def mappings() -> list[tuple[int, int]]:
    with open("/proc/self/maps", "rb") as maps:
        ranges = [line.split(None, 1)[0].split(b"-") for line in maps]
    return [(int(start, 16), int(end, 16)) for start, end in ranges]

"""Print what an NVRTC compiles for: ``python -I -S architectures.py LIBRARY…``, the last is NVRTC."""

from __future__ import annotations

import ctypes
import sys


def main(*libraries: str) -> list[int]:
    """Return the numbers of the architectures, 90 for sm_90."""
    *preload, path = libraries
    for library in preload:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(path)
    count = ctypes.c_int()
    if nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)):
        return []
    numbers = (ctypes.c_int * count.value)()
    return [] if nvrtc.nvrtcGetSupportedArchs(numbers) else list(numbers)


if __name__ == "__main__":
    print(*main(*sys.argv[1:]))

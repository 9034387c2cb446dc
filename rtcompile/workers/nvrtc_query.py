"""Asks a loaded NVRTC about itself, in a process of its own: ``python -I -S nvrtc_query.py …``.

``architectures LIBRARY…`` prints the numbers of the architectures that the last library, an NVRTC,
compiles for, 90 for sm_90. ``headers LIBRARY FOLDER`` writes the headers of CUDA and CCCL that an
NVRTC since 13.3 has in its own file to the folder's ``include``, and prints "written", or what went wrong.
"""

from __future__ import annotations

import ctypes
import os
import sys


def architectures(*libraries: str) -> str:
    """Return the numbers of the architectures that the last library compiles for."""
    *preload, path = libraries
    for library in preload:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(path)
    count = ctypes.c_int()
    if nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)):
        return ""
    numbers = (ctypes.c_int * count.value)()
    return "" if nvrtc.nvrtcGetSupportedArchs(numbers) else " ".join(map(str, numbers))


def headers(library: str, folder: str) -> str:
    """Write the headers to a folder's ``include``; return "written", or what went wrong."""
    nvrtc = ctypes.CDLL(library)
    folder = os.path.join(folder, "include")
    os.mkdir(folder)
    log = ctypes.c_char_p()
    failed = nvrtc.nvrtcInstallBundledHeaders(folder.encode(), 0, ctypes.byref(log))
    return (
        (log.value or b"NVRTC gives no reason").decode("utf-8", "replace") if failed else "written"
    )


if __name__ == "__main__":
    print(globals()[sys.argv[1]](*sys.argv[2:]))

"""Write the headers that are inside NVRTC: ``python -I -S bundled_headers.py LIBRARY FOLDER``.

NVRTC 13.3 and newer has CUDA's and CCCL's headers in its own file. Exits with 1 and a message if
this one has none.
"""

from __future__ import annotations

import ctypes
import os
import sys


def main(library: str, folder: str) -> str:
    """Write the headers to a folder's ``include``; return what went wrong, or nothing."""
    nvrtc = ctypes.CDLL(library)
    folder = os.path.join(folder, "include")
    os.mkdir(folder)
    log = ctypes.c_char_p()
    failed = nvrtc.nvrtcInstallBundledHeaders(folder.encode(), 0, ctypes.byref(log))
    return (log.value or b"NVRTC gives no reason").decode("utf-8", "replace") if failed else ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) or None)

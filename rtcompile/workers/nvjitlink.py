"""Calls nvJitLink in a worker, from a given library file. Worker side.

It uses ctypes, for the reasons given in `nvrtc`.
"""

from __future__ import annotations

import ctypes
import os
import time

from rtcompile.workers import protocol

TYPE_CHECKING = False  # as type checkers know it; `typing` costs 5 ms
if TYPE_CHECKING:
    from typing import Any

_INPUTS = {"cubin": 1, "ptx": 2, "ltoir": 3, "fatbin": 4, "object": 5, "archive": 6}
_RESULTS = {"cubin": "Cubin", "ptx": "Ptx"}
# nvJitLinkResult; those from NULL_INPUT on exist since 13.0.
_ERRORS = (
    "SUCCESS UNRECOGNIZED_OPTION MISSING_ARCH INVALID_INPUT PTX_COMPILE NVVM_COMPILE INTERNAL THREADPOOL"
    " UNRECOGNIZED_INPUT FINALIZE NULL_INPUT INCOMPATIBLE_OPTIONS INCORRECT_INPUT_TYPE ARCH_MISMATCH"
    " OUTDATED_LIBRARY MISSING_FATBIN UNRECOGNIZED_ARCH UNSUPPORTED_ARCH LTO_NOT_ENABLED"
)


class LinkerError(Exception):
    """A call of nvJitLink that failed."""


_library: Any = None


def load(path: str) -> None:
    """Open the linker of this path, before any fork."""
    global _library
    _library = ctypes.CDLL(path)


def link(job: dict[str, Any]) -> dict[str, Any]:
    """Link ``inputs`` (kind, name, data); return in ``input`` a rejected one's index, in ``printed`` the stderr."""
    begin = time.monotonic()
    os.dup2(2, 1)
    handle, refused, error, code = ctypes.c_void_p(), None, "", b""
    options = [option.encode() for option in job["options"]]
    which: tuple[str, ...] = ()
    names = []  # nvJitLink keeps pointers to them, and reads them when it reports an error
    try:
        arguments = (ctypes.c_char_p * len(options))(*options)
        _call("Create", ctypes.byref(handle), len(options), arguments)
        which = ("ErrorLog", "InfoLog")
        for index, (kind, name, data) in enumerate(job["inputs"]):
            refused = index
            names.append(name.encode())
            _call("AddData", handle, _INPUTS[kind], data, ctypes.c_size_t(len(data)), names[-1])
        refused = None
        _call("Complete", handle)
        code = _result(handle, f"Linked{_RESULTS[job['target']]}")
    except LinkerError as failure:
        error = str(failure)
    logs = [_result(handle, log) for log in which]
    return {
        "error": error,
        "input": refused,
        "log": b"".join(log.rstrip(b"\0") for log in logs).decode("utf-8", "replace"),
        "printed": protocol.stderr_text().decode("utf-8", "replace"),
        "code": code,
        "seconds": time.monotonic() - begin,
    }


def _result(handle: ctypes.c_void_p, what: str) -> bytes:
    """Return a result or a log, ``"LinkedCubin"`` or ``"ErrorLog"``."""
    size = ctypes.c_size_t()
    _call(f"Get{what}Size", handle, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(max(1, size.value))
    _call(f"Get{what}", handle, buffer)
    return buffer.raw[: size.value]


def _call(name: str, *arguments: object) -> None:
    code = getattr(_library, f"nvJitLink{name}")(*arguments)
    if code:
        known = dict(enumerate(_ERRORS.split())).get(code, code)
        raise LinkerError(f"nvJitLink{name}: NVJITLINK_ERROR_{known}")

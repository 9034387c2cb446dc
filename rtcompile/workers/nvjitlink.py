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
_RESULTS = {"cubin": "Cubin", "object": "Cubin", "ptx": "Ptx", "ltoir": "LTOIR"}
# nvJitLinkResult; those from NULL_INPUT on exist since 13.0.
_ERRORS = (
    "SUCCESS UNRECOGNIZED_OPTION MISSING_ARCH INVALID_INPUT PTX_COMPILE NVVM_COMPILE INTERNAL THREADPOOL"
    " UNRECOGNIZED_INPUT FINALIZE NULL_INPUT INCOMPATIBLE_OPTIONS INCORRECT_INPUT_TYPE ARCH_MISMATCH"
    " OUTDATED_LIBRARY MISSING_FATBIN UNRECOGNIZED_ARCH UNSUPPORTED_ARCH LTO_NOT_ENABLED"
)


class LinkerError(Exception):
    """A call of nvJitLink that failed."""


class Library:
    """libnvJitLink, opened by path."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        # nvJitLink keeps the pointers to its inputs' names and reads them when it reports an error.
        self._names: list[bytes] = []

    def create(self, options: list[str]) -> Any:
        """Begin a link."""
        handle = ctypes.c_void_p()
        arguments = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        self._call("Create", ctypes.byref(handle), len(options), arguments)
        return handle

    def add(self, handle: Any, kind: int, data: bytes, name: str) -> None:
        """Add an input."""
        self._names.append(name.encode())
        self._call("AddData", handle, kind, data, ctypes.c_size_t(len(data)), self._names[-1])

    def complete(self, handle: Any) -> None:
        """Link."""
        self._call("Complete", handle)

    def result(self, handle: Any, what: str) -> bytes:
        """Return a result or a log, ``"LinkedCubin"`` or ``"ErrorLog"``."""
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", handle, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(1, size.value))
        self._call(f"Get{what}", handle, buffer)
        return buffer.raw[: size.value]

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, f"nvJitLink{name}")(*arguments)
        if code:
            known = dict(enumerate(_ERRORS.split())).get(code, code)
            raise LinkerError(f"nvJitLink{name}: NVJITLINK_ERROR_{known}")


_linker: Library | None = None


def load(path: str) -> None:
    """Open the linker of this path, before any fork."""
    global _linker
    _linker = Library(path)


def link(job: dict[str, Any]) -> dict[str, Any]:
    """Link ``inputs`` (kind, name, data); ``input`` is the index of a refused one, ``printed`` is not in the log."""
    assert _linker is not None
    begin = time.monotonic()
    os.dup2(2, 1)
    handle, refused, error, code = None, None, "", b""
    try:
        handle = _linker.create(job["options"])
        for index, (kind, name, data) in enumerate(job["inputs"]):
            refused = index
            _linker.add(handle, _INPUTS[kind], data, name)
        refused = None
        _linker.complete(handle)
        code = _linker.result(handle, f"Linked{_RESULTS[job['target']]}")
    except LinkerError as failure:
        error = str(failure)
    which = () if handle is None else ("ErrorLog", "InfoLog")
    logs = [_linker.result(handle, log) for log in which]
    return {
        "error": error,
        "input": refused,
        "log": "".join(log.rstrip(b"\0").decode("utf-8", "replace") for log in logs),
        "printed": protocol.stderr_text().decode("utf-8", "replace"),
        "code": code,
        "seconds": time.monotonic() - begin,
    }

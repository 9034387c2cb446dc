"""NVRTC in a worker: the few functions we need, by ctypes, on exactly the library file we are told.

Worker side. `cuda.bindings.nvrtc` would load six times slower and choose the library by itself.
"""

from __future__ import annotations

import ctypes
import os
import time

from rtcompile.workers import protocol

_SUCCESS = 0
_OUT_OF_MEMORY = 1
_RESULTS = {"cubin": "CUBIN", "ptx": "PTX", "ltoir": "LTOIR"}
_NOOP = b'extern "C" __global__ void noop() {}'

_library: ctypes.CDLL | None = None


def load(paths: str) -> object:
    """Open the libraries, NVRTC last, before any fork; return what to do when idle.

    NVRTC opened by path looks for its builtins by bare name only: they come first.
    """
    global _library
    for path in paths.split(os.pathsep):
        _library = ctypes.CDLL(path)
    assert _library is not None
    _library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return warm


def warm() -> None:
    """Compile nothing much: the 6 ms that a process's first compile costs more, paid before the fork."""
    Program(_NOOP, b"warm.cu").compile([])


class NvrtcError(Exception):
    """A call that failed; `code` is NVRTC's result."""

    def __init__(self, call: str, code: int) -> None:
        assert _library is not None
        super().__init__(f"nvrtc{call}: {_library.nvrtcGetErrorString(code).decode()}")
        self.code = code


def _call(name: str, *arguments: object) -> None:
    code = getattr(_library, f"nvrtc{name}")(*arguments)
    if code != _SUCCESS:
        raise NvrtcError(name, code)


class Program:
    """An `nvrtcProgram`. Never destroyed: its process ends with the job."""

    def __init__(self, source: bytes, name: bytes) -> None:
        self.handle = ctypes.c_void_p()
        _call("CreateProgram", ctypes.byref(self.handle), source, name, 0, None, None)

    def add_name_expression(self, expression: bytes) -> None:
        """Ask for the lowered name of an expression."""
        _call("AddNameExpression", self.handle, expression)

    def compile(self, options: list[bytes]) -> None:
        """Compile; raise `NvrtcError` if that fails."""
        _call(
            "CompileProgram", self.handle, len(options), (ctypes.c_char_p * len(options))(*options)
        )

    def lowered_name(self, expression: bytes) -> bytes:
        """Return the symbol of an expression."""
        name = ctypes.c_char_p()
        _call("GetLoweredName", self.handle, expression, ctypes.byref(name))
        return name.value or b""

    def result(self, what: str) -> bytes:
        """Return ``"CUBIN"``, ``"PTX"``, ``"LTOIR"`` or ``"ProgramLog"``; empty where there is none."""
        size = ctypes.c_size_t()
        _call(f"Get{what}Size", self.handle, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(1, size.value))
        _call(f"Get{what}", self.handle, buffer)
        return buffer.raw[: size.value]

    def log(self) -> str:
        """Return the log so far."""
        return self.result("ProgramLog").rstrip(b"\0").decode("utf-8", "replace")


def compile_unit(job: dict[str, object]) -> dict[str, object]:
    """Compile one translation unit.

    Takes ``source``, ``name``, ``options`` (bytes), ``expressions`` and ``target``; returns ``error``
    ("" if all went well, else a `CompileFailure` kind), ``log``, ``code``, ``lowered_names``,
    ``trace`` (None where this NVRTC gives none) and ``spans``: (phase, begin, end), monotonic seconds.
    """
    begin = time.monotonic()
    options: list[bytes] = job["options"]  # type: ignore[assignment]
    reply = _compile(job, options + _include_trace_options())
    trace: bytes | None = protocol.stderr_text()
    if _include_trace_refused(reply):
        reply, trace = _compile(job, options), None
    return {**reply, "trace": trace, "spans": [("compile", begin, time.monotonic())]}


def _include_trace_options() -> list[bytes]:
    """Return the options that make NVRTC's front end list each header it opens on stderr.

    Undocumented; seen from 12.4 to 13.5. The check is `_include_trace_refused`, the fallback a build
    without: its result is good, but what it read is unknown, and the reply says so.
    """
    return [b"-Xcudafe", b"--trace_includes"]


def _include_trace_refused(reply: dict[str, object]) -> bool:
    return "Xcudafe" in str(reply["log"]) or "trace_includes" in str(reply["log"])


def _compile(job: dict[str, object], options: list[bytes]) -> dict[str, object]:
    expressions: list[bytes] = job["expressions"]  # type: ignore[assignment]
    target: str = job["target"]  # type: ignore[assignment]
    program = Program(job["source"], job["name"])  # type: ignore[arg-type]
    try:
        for expression in expressions:
            program.add_name_expression(expression)
        program.compile(options)
        code = program.result(_RESULTS[target])
        lowered = {e.decode(): program.lowered_name(e).decode() for e in expressions}
    except NvrtcError as error:
        kind = "memory" if error.code == _OUT_OF_MEMORY else "error"
        return {"error": kind, "log": program.log() or str(error)}
    if not code:
        # NVRTC 13 does so for WMMA code compiled without a real architecture.
        log = f"{program.log()}NVRTC reported success but made no {target}.\n"
        return {"error": "error", "log": log}
    return {"error": "", "log": program.log(), "code": code, "lowered_names": lowered}


def build_string(_: dict[str, object]) -> str:
    """Return the compiler's real build as it writes it in PTX headers, ``12.9.86 CL-36037853``."""
    import re  # 6 ms that no compile needs

    program = Program(_NOOP, b"identify.cu")
    program.compile([])
    text = program.result("PTX").decode("utf-8", "replace")
    build = re.search(r"Compiler Build ID: (\S+)", text)
    release = re.search(r"release [\d.]+, V([\d.]+)", text)
    if not (build and release):
        raise RuntimeError("no build in the header of its PTX")
    return f"{release[1]} {build[1]}"

"""Calls NVRTC and nvJitLink in a worker, by ctypes, from a given library file. Worker side.

`cuda.bindings` is not used: it takes six times as long to load, and chooses the library itself.
"""

from __future__ import annotations

import ctypes
import os
import time

from rtcompile.workers import probes, system

TYPE_CHECKING = False  # as type checkers know it; `typing` costs 5 ms
if TYPE_CHECKING:
    from typing import Any

_OUT_OF_MEMORY = 1
_NOOP = b'extern "C" __global__ void noop() {}'

# From 12.9 on NVRTC uses the driver's cache. For that it loads and initialises libcuda, which takes 180 ms with a
# GPU and starts threads in the zygote. CUDA_CACHE_DISABLE does not prevent it.
_FIRST_WITH_CACHE = (12, 9)
_NO_CACHE = b"--no-cache"

# In these versions every file access is known to be intercepted; in others `probes_see_all` tests it.
_FIRST_OBSERVED, _LAST_OBSERVED = (12, 4), (13, 5)

_ROOM_TO_START = 16 << 20
# The folder of headers passed as strings, in the working directory of a job.
_TEXTS = "rtcompile-headers"

_library: Any = None
_always: list[bytes] = []  # options of every compile
_heap_is_pinned: bool | None = None  # None: not tried yet, or there was no disk space
_is_observed = False  # whether `probes` intercepts all file accesses of this library


def load(argument: str) -> None:
    """Open the linker, or the libraries of a compiler, NVRTC last, before any fork."""
    # NVRTC finds its builtins by bare name only if they are loaded already. The identity of the files follows a
    # newline, so a replaced library is loaded in a new zygote.
    global _library, _is_observed
    paths, _, _ = argument.partition("\n")
    for path in paths.split(os.pathsep):
        _library = ctypes.CDLL(path)
    if hasattr(_library, "nvJitLinkCreate"):
        return
    _library.nvrtcGetErrorString.restype = ctypes.c_char_p
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    version = major.value, minor.value
    _always[:] = [_NO_CACHE] if version >= _FIRST_WITH_CACHE else []
    # The check compiles a source, which takes a tenth of a process's first build.
    is_known = _FIRST_OBSERVED <= version <= _LAST_OBSERVED
    _is_observed = probes.install(_library) and (is_known or probes_see_all())


# The source for `probes_see_all`. In every possible way it looks for missing paths, and for this file, which exists.
_ABSENT = (b"/nonexistent/plain.h", b"/nonexistent/pasted.h")
_SEEN_ALL = b"rtcompile has seen all"
_CHECK = b"""
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#if __has_include("%b") || PASTE(__ha, s_include)( /* the name */ <%b>)
#endif
#if __has_include("%b")
#error %b
#endif
"""


def probes_see_all() -> bool:
    """Compile a source that ends in an error, and return whether all its file accesses were intercepted."""
    here = os.fsencode(os.path.abspath(__file__))
    source = _CHECK % (*_ABSENT, here, _SEEN_ALL)
    probes.begin({"provided": [here]}, reports=False)
    try:
        options = [b"--minimal"] if _NO_CACHE in _always else []
        reply = _compile({"source": source, "name": b"check.cu"}, options)
    finally:
        observed = probes.end()
    return (
        _SEEN_ALL.decode() in reply["log"]
        and {*_ABSENT} <= {*observed["absent"]}
        and [path for path, *_ in observed["opened"]] == [here]
        and not observed["problem"]
    )


def _pin_heap() -> None:
    """Place the heap for precompiled headers, which most processes do not need."""
    global _heap_is_pinned
    # NVRTC maps files in TMPDIR. If the disk is full, the kernel kills the process.
    disk = os.statvfs(os.environ.get("TMPDIR", "."))
    if disk.f_bavail * disk.f_frsize >= _ROOM_TO_START:
        # Without `_is_observed`, the files that a precompiled header is made of, and must still equal, are unknown.
        _heap_is_pinned = _is_observed and probes.pin_heap(_library, _allocate_heap)


def _allocate_heap() -> None:
    # NVRTC allocates the heap before it notices the missing file.
    reply = _compile({"source": _NOOP, "name": b"warm.cu"}, [b"--use-pch=/nonexistent"])
    if not reply["error"]:
        raise AssertionError("NVRTC ignores --use-pch")


class CallError(Exception):
    """A call of the library that failed; `code` is its result."""

    def __init__(self, name: str, code: int) -> None:
        if name.startswith("nvrtc"):
            reason = _library.nvrtcGetErrorString(code).decode()
        else:
            reason = f"NVJITLINK_ERROR_{dict(enumerate(_LINK_ERRORS.split())).get(code, code)}"
        super().__init__(f"{name}: {reason}")
        self.code = code


def _call(name: str, *arguments: Any) -> None:
    code = getattr(_library, name)(*arguments)
    if code:
        raise CallError(name, code)


def _result(name: str, handle: ctypes.c_void_p) -> bytes:
    """Return a result or a log, ``"nvrtcGetCUBIN"`` or ``"nvJitLinkGetErrorLog"``."""
    size = ctypes.c_size_t()
    _call(f"{name}Size", handle, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(max(1, size.value))
    _call(name, handle, buffer)
    return buffer.raw[: size.value]


def compile_unit(job: dict[str, Any]) -> dict[str, Any]:
    """Compile one translation unit, and return the fields from which `compilers.nvrtc` makes a `Compiled` or a failure."""
    # The job has the source, its name, options and expressions, the target, `texts` (headers passed as strings, by
    # their paths in the working directory), the fields for `probes`; `pch` and `create_pch`, the path of a precompiled
    # header to use or to create; `minimal`, whether CUDA's declarations may be left out; `yields`, whether all other
    # processes come first; `traced`, whether to return NVRTC's own trace; `unobserved`, for tests, whether to act as if
    # calls could not be intercepted. In the reply, `observed` is None if `probes` do not work, `trace` if NVRTC gives
    # none, `pch` if no header could be tried. `milliseconds` are by phase, "compile" being the rest; `busy` is the
    # processor's share of the time since `began` (monotonic); `events`, of NVRTC's trace, have a name, start, duration
    # (us) and detail. For `zygote`: `well` (the process may be reused), `doubtful` (a new one may give another result).
    begin, processor = time.monotonic(), time.process_time()
    if job.get("yields"):
        os.nice(19)
    if job.get("reusable"):
        # New pages cost 1500 page faults, which take 3 of a small kernel's 20 ms.
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TRIM_THRESHOLD, 128 << 20)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    options: list[bytes] = job["options"]
    path: bytes = job.get("pch") or job.get("create_pch", b"")
    if path and _heap_is_pinned is None:
        _pin_heap()
    tried = bool(path and _heap_is_pinned)
    flag = b"--use-pch=" if job.get("pch") else b"--create-pch="
    header = [flag + path] if tried else []
    times = system.memfd()  # instead of a file per compile
    option = b"--time=/proc/self/fd/%d" % times
    timed = [option] if os.path.exists("/proc/self/fd") else []
    # --minimal leaves out CUDA's declarations, which take 5 ms.
    minimal = [b"--minimal"] if job.get("minimal") else []
    traced = [b"--fdevice-time-trace=events"] if job.get("traced") else []  # NVRTC adds .json
    reply = _observed(job, [*options, *timed, *header, *minimal, *traced])
    if minimal and (reply["error"] or reply["log"]):  # these may come from the option
        system.forget_stderr()
        reply = _observed(job, options + timed)
    if job["texts"]:
        system.remove(_TEXTS)  # otherwise the process could not be reused
    reply["log"], used = _pch_message(reply["log"])
    reply["pch"] = used if tried else None
    reply["milliseconds"] = phases = _phases(system.drain(times).decode("utf-8", "replace"))
    seconds = time.monotonic() - begin
    phases["compile"] = seconds * 1e3 - sum(phases.values())
    reply["began"] = begin
    reply["busy"] = min(1.0, (time.process_time() - processor) / max(seconds, 1e-6))
    reply["events"] = _events() if traced else []
    reply["pid"] = os.getpid()
    reply["well"] = not reply["error"]
    # Earlier jobs of this process may have caused such errors.
    reply["doubtful"] = reply["error"] == "memory" or "nternal Compiler Error" in reply["log"]
    return reply


def _events() -> list[tuple[str, float, float, str]]:
    """Return the events in the trace of this job."""
    import json

    events = []
    try:
        with open("events.json", encoding="utf-8", errors="replace") as file:
            found = json.load(file)["traceEvents"]
        for event in found:
            if "ts" in event and "dur" in event:
                detail = str((event.get("args") or {}).get("detail", ""))[:_DETAIL_MAX]
                events.append((event["name"], event["ts"], event["dur"], detail))
    except (OSError, ValueError, LookupError, TypeError):
        events = []  # no file was written, or one in another format
    return events


_DETAIL_MAX = 1000  # characters; some names of instances have 100,000

# Of mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


_PHASES = {
    "CUDA C++ Frontend": "front end",
    "NVVM Optimizer": "optimizer",
    "PTX Translation": "ptxas",
}


def _phases(times: str) -> dict[str, float]:
    """Return the milliseconds of NVRTC's phases from the output of ``--time``."""
    found: dict[str, float] = {}
    try:
        for line in times.splitlines():
            _, name, milliseconds, _ = line.rsplit(", ", 3)
            phase = _PHASES.get(name, name)
            found[phase] = found.get(phase, 0.0) + float(milliseconds)
    except ValueError:
        pass  # This NVRTC has another format; the times are optional.
    return found


_OF_PCH = (": using precompiled header file ", ": creating precompiled header file ")


def _pch_message(log: str) -> tuple[str, bool]:
    """Return the log without the message that a precompiled header was used or created, and whether there was one."""
    lines = log.splitlines(keepends=True)
    rest = [line for line in lines if not any(text in line for text in _OF_PCH)]
    return "".join(rest), len(rest) < len(lines)


def _observed(job: dict[str, Any], options: list[bytes]) -> dict[str, Any]:
    """Compile; the reply also has the paths that the compiler looked for, or at least the files that it read."""
    if _is_observed and not job.get("unobserved"):
        probes.begin(job)
        try:
            reply = _compile(job, options)
        finally:
            observed = probes.end()
        return {**reply, "observed": observed, "trace": None}
    reply = _compile(job, [*options, *_TRACE_INCLUDES])
    # A trace always contains NVRTC's built-in header; without one it is unknown what was read.
    trace = system.stderr_text() or None
    if "trace_includes" in reply["log"]:
        reply, trace = _compile(job, options), None
    return {**reply, "observed": None, "trace": trace}


# Options with which the front end lists each header that it opens on stderr: undocumented, seen from 12.4 to 13.5.
_TRACE_INCLUDES = (b"-Xcudafe", b"--trace_includes")


def _compile(job: dict[str, Any], options: list[bytes]) -> dict[str, Any]:
    system.write(job.get("texts", {}))
    target: str = job.get("target", "cubin")
    program, name, lowered = ctypes.c_void_p(), ctypes.c_char_p(), {}
    _call("nvrtcCreateProgram", ctypes.byref(program), job["source"], job["name"], 0, None, None)
    given = [*_always, *(option for option in options if option != _NO_CACHE)]
    expressions: list[bytes] = job.get("expressions", [])
    try:
        for expression in expressions:
            _call("nvrtcAddNameExpression", program, expression)
        _call("nvrtcCompileProgram", program, len(given), (ctypes.c_char_p * len(given))(*given))
        code = _result(f"nvrtcGet{target.upper()}", program)
        for expression in expressions:
            _call("nvrtcGetLoweredName", program, expression, ctypes.byref(name))
            lowered[expression.decode()] = (name.value or b"").decode()
    except CallError as error:
        kind = "memory" if error.code == _OUT_OF_MEMORY else "error"
        return {"error": kind, "log": _log(program) or str(error)}
    log = _log(program)
    if not code:
        # NVRTC 13 does this for WMMA code compiled without a real architecture.
        return {"error": "error", "log": f"{log}NVRTC reported success but made no {target}.\n"}
    if job.get("reusable"):
        _call("nvrtcDestroyProgram", ctypes.byref(program))  # otherwise the process ends
    return {"error": "", "log": log, "code": code, "lowered_names": lowered}


def _log(program: ctypes.c_void_p) -> str:
    return system.log_text(_result("nvrtcGetProgramLog", program).rstrip(b"\0"))


# --- nvJitLink ---------------------------------------------------------------------------------------

_INPUTS = {"cubin": 1, "ptx": 2, "ltoir": 3, "fatbin": 4, "object": 5, "archive": 6}
# nvJitLinkResult; those from NULL_INPUT on exist since 13.0.
_LINK_ERRORS = (
    "SUCCESS UNRECOGNIZED_OPTION MISSING_ARCH INVALID_INPUT PTX_COMPILE NVVM_COMPILE INTERNAL THREADPOOL"
    " UNRECOGNIZED_INPUT FINALIZE NULL_INPUT INCOMPATIBLE_OPTIONS INCORRECT_INPUT_TYPE ARCH_MISMATCH"
    " OUTDATED_LIBRARY MISSING_FATBIN UNRECOGNIZED_ARCH UNSUPPORTED_ARCH LTO_NOT_ENABLED"
)


def link(job: dict[str, Any]) -> dict[str, Any]:
    """Link ``inputs`` (kind, name, data). In the reply, ``input`` is a rejected one's index, ``printed`` the stderr."""
    begin = time.monotonic()
    os.dup2(2, 1)
    handle, refused, error, code = ctypes.c_void_p(), None, "", b""
    options = [option.encode() for option in job["options"]]
    which: tuple[str, ...] = ()
    names = []  # nvJitLink keeps pointers to them, and reads them when it reports an error
    try:
        arguments = (ctypes.c_char_p * len(options))(*options)
        _call("nvJitLinkCreate", ctypes.byref(handle), len(options), arguments)
        which = ("ErrorLog", "InfoLog")
        for index, (kind, name, data) in enumerate(job["inputs"]):
            refused = index
            names.append(name.encode())
            size = ctypes.c_size_t(len(data))
            _call("nvJitLinkAddData", handle, _INPUTS[kind], data, size, names[-1])
        refused = None
        _call("nvJitLinkComplete", handle)
        code = _result(f"nvJitLinkGetLinked{job['target'].capitalize()}", handle)
    except CallError as failure:
        error = str(failure)
    logs = [_result(f"nvJitLinkGet{log}", handle) for log in which]
    return {
        "error": error,
        "input": refused,
        "log": b"".join(log.rstrip(b"\0") for log in logs).decode("utf-8", "replace"),
        "printed": system.stderr_text().decode("utf-8", "replace"),
        "code": code,
        "seconds": time.monotonic() - begin,
    }


# --- Queries to an NVRTC, in separate processes that print the result -------------------------------


def architectures(*libraries: str) -> None:
    """Print the architectures that the last library supports, 90 for sm_90."""
    *preload, path = libraries
    for library in preload:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(path)
    count = ctypes.c_int()
    if not nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)):
        numbers = (ctypes.c_int * count.value)()
        if not nvrtc.nvrtcGetSupportedArchs(numbers):
            print(*numbers)


def headers(library: str, folder: str) -> None:
    """Write the CUDA and CCCL headers in an NVRTC (13.3 and newer) to a folder's ``include``; print "written"."""
    nvrtc = ctypes.CDLL(library)
    folder = os.path.join(folder, "include")
    os.mkdir(folder)
    log = ctypes.c_char_p()
    if not nvrtc.nvrtcInstallBundledHeaders(folder.encode(), 0, ctypes.byref(log)):
        print("written")

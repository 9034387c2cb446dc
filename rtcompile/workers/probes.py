"""Intercepts NVRTC's calls of libc: records which paths it opens or looks for, and places its heap. Worker side.

NVRTC calls libc's path functions through its procedure linkage table (PLT). `install` redirects the table's slots
to callbacks, which record every path, however the source spells it. This is undocumented; it works with NVRTC 12.4
to 13.5, and `workers.libraries` checks it in other versions.

A job's ``provided`` are folders of the toolkit, with a slash at their end. Their files are opened as they are, and
digested later by the caller. For every other file the compiler gets the very bytes that were digested here.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import time

try:
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

from rtcompile.workers.system import in_memfd

TYPE_CHECKING = False  # as type checkers know it; `typing` costs 5 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Words in a header that may put its path, or the time, into the code. Each group is preceded by a rare substring of
# its words, which is searched for first: that takes a fifth of the time.
_OWN_PATH_WORDS = (
    (b"FILE", (b"__FILE", b"__BASE_FILE__", b"__builtin_FILE")),
    (b"source_location", (b"source_location",)),
)
_CLOCK_WORDS = ((b"DATE", (b"__DATE__",)), (b"TIME", (b"__TIME",)))

_RECENT_NS = 3 * 10**9  # a younger file may change without a change of its times
_READ_WRITE = 3  # PROT_READ | PROT_WRITE

_P, _S, _I = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int

# By function (without a "64" at its end): its result type, its argument types, and the index of the path.
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...], int]] = {
    "fopen": (_P, (_S, _S), 0),
    "open": (_I, (_S, _I, _I), 0),
    "__xstat": (_I, (_I, _S, _P), 1),
    "__lxstat": (_I, (_I, _S, _P), 1),
    "stat": (_I, (_S, _P), 0),
    "lstat": (_I, (_S, _P), 0),
    "access": (_I, (_S, _I), 0),
    "opendir": (_P, (_S,), 0),
    "realpath": (_P, (_S, _P), 0),
}

_libc: Any = None
_callbacks: list[Any] = []  # they must outlive the library's use of them
_job: Any = None  # the `_Observation` of the running compile


class _Observation:
    """The file accesses of one compile."""

    def __init__(self, job: dict[str, Any], *, reports: bool) -> None:
        self.reports = reports
        self.provided: tuple[bytes, ...] = tuple(job.get("provided", ()))
        # NVRTC looks for a file with the program's name, but ignores the result.
        headers = (job.get("pch", b""), job.get("create_pch", b""))
        self.own = (job.get("name", b""), *headers, os.getcwdb())
        self._below = b"/proc/self/fd/", os.getcwdb() + b"/"
        self.begun_ns = time.clock_gettime_ns(5)  # CLOCK_REALTIME_COARSE, the clock of file times
        self.opened: dict[bytes, list[Any]] = {}
        self.contents: dict[bytes, bytes] = {}  # of headers that are not the toolkit's
        self.absent: dict[bytes, None] = {}
        self.folders: dict[bytes, None] = {}
        self.files: dict[bytes, None] = {}  # found, and not opened
        self.problem = ""

    def is_ours(self, path: bytes | None) -> bool:
        """Return whether a path belongs to this worker, or is relative to its empty folder."""
        if path is None or not path.startswith(b"/"):
            return True
        # The compiler writes its times to the worker's descriptor. From NVRTC 13.5 on, it makes relative paths absolute.
        return path in self.own or path.startswith(self._below)

    def note_ours(self, path: bytes | None, is_there: bool) -> None:
        """Record a problem if a file outside the worker's folder was found by a path that begins there."""
        if is_there and path and b"../" in path:
            self.note_problem(f"header {os.fsdecode(path)} was found by a relative path")

    def note_problem(self, problem: str) -> None:
        self.problem = self.problem or problem

    def open(self, path: bytes) -> int | None:
        """Return a descriptor for the compiler; None for anything except a regular file."""
        text = self.contents.get(path)
        if text is not None:
            return in_memfd(text)
        kind = os.stat(path).st_mode
        if stat.S_ISDIR(kind):
            self.folders[path] = None
            return None
        if not stat.S_ISREG(kind):  # opening a pipe would wait for a writer
            self.note_problem(f"header {os.fsdecode(path)} is not a regular file")
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            self.files.pop(path, None)
            seen = [*signature(status), "", 0]
            known = self.opened.setdefault(path, seen)
            if known[:5] != seen[:5]:
                self.note_problem(f"header {os.fsdecode(path)} changed while it was read")
            if self.reports:  # like the include trace; after a crash this is the only information
                os.write(2, path + b"\n")
            newest = max(status.st_ctime_ns, status.st_mtime_ns)
            if path.startswith(self.provided) and newest < self.begun_ns - _RECENT_NS:
                return descriptor
            with open(descriptor, "rb", buffering=0, closefd=False) as file:
                data = file.read()
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        known[5] = blake2b(data, digest_size=32).hexdigest()
        known[6] = mentions(data)
        self.contents[path] = data
        return in_memfd(data)

    def reply(self) -> dict[str, Any]:
        """Return what was observed, as plain values."""
        return {
            "begun_ns": self.begun_ns,
            "opened": [(path, *seen) for path, seen in self.opened.items()],
            "files": [*self.files],
            "folders": [*self.folders],
            "absent": [*self.absent],
            "problem": self.problem,
        }


def signature(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """Return the size, mtime, ctime (ns), inode and device of a file."""
    size, inode, device = status.st_size, status.st_ino, status.st_dev
    return size, status.st_mtime_ns, status.st_ctime_ns, inode, device


def mentions(data: bytes) -> int:
    """Return 1 for contents that may put their path into the code, plus 2 for the time."""
    return _has(data, _OWN_PATH_WORDS) + 2 * _has(data, _CLOCK_WORDS)


def _has(data: bytes, words: tuple[tuple[bytes, tuple[bytes, ...]], ...]) -> bool:
    return any(part in data and any(word in data for word in whole) for part, whole in words)


def begin(job: dict[str, Any], *, reports: bool = True) -> None:
    """Start recording a compile; with `reports` the path of each opened header goes to stderr."""
    global _job
    _job = _Observation(job, reports=reports)


def end() -> dict[str, Any]:
    """Stop recording, and return the file accesses since `begin`."""
    global _job
    job, _job = _job, None
    return job.reply()  # type: ignore[no-any-return]


# --- the callbacks -----------------------------------------------------------------------------


def _observing(name: str, real: Callable[..., Any], path_at: int) -> Callable[..., Any]:
    """Return the callback for a function. A compile of CuTe calls callbacks 6,000 times."""
    if name.startswith("fopen"):
        return lambda *given: _open(real, given, given[1][:1] != b"r", _libc.fdopen)
    if name.startswith("open") and name != "opendir":
        return lambda *given: _open(real, given, given[1] & (os.O_WRONLY | os.O_RDWR), None)
    if "stat" in name:
        return lambda *given: _stat(real, given, given[path_at])

    def other(*given: Any) -> Any:
        result, path = real(*given), given[path_at]
        job = _job
        if job is not None and not job.is_ours(path):
            if result in (None, -1):
                job.absent[path] = None
            else:  # no known version does this, and the result is unknown
                job.note_problem(f"the compiler called {name} of {os.fsdecode(path)}")
        return result

    return other


def _open(real: Callable[..., Any], given: tuple[Any, ...], writes: bool, fdopen: Any) -> Any:
    job, path = _job, given[0]
    if job is None or writes:
        return real(*given)
    if job.is_ours(path):
        found = real(*given)
        job.note_ours(path, found not in (None, -1))
        return found
    try:
        descriptor = job.open(path)
    except OSError as error:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            job.note_problem(f"{os.fsdecode(path)} may not be read: {error.strerror}")
        else:
            job.absent[path] = None
        ctypes.set_errno(error.errno or 2)
        return None if fdopen else -1
    if descriptor is None:
        return real(*given)
    return fdopen(descriptor, b"r") if fdopen else descriptor


def _stat(real: Callable[..., Any], given: tuple[Any, ...], path: bytes) -> Any:
    job, result = _job, real(*given)
    if job is None or path in job.opened:
        pass
    elif job.is_ours(path):
        job.note_ours(path, result == 0)
    elif result:
        job.absent[path] = None
    else:
        (job.folders if os.path.isdir(path) else job.files)[path] = None
    return result


# --- the slots ---------------------------------------------------------------------------------

_DT_STRTAB, _DT_SYMTAB, _DT_JMPREL, _DT_PLTRELSZ = 5, 6, 23, 2
_PT_DYNAMIC = 2


def install(library: ctypes.CDLL) -> bool:
    """Redirect the PLT slots of a loaded library to the callbacks; False if anything is unexpected."""
    global _libc
    _libc = libc = ctypes.CDLL(None, use_errno=True)
    libc.fdopen.restype = _P
    libc.fdopen.argtypes = (_I, _S)
    found = slots(library)
    if "fopen" not in found or not ("__xstat" in found or "stat" in found):
        return False
    for name, slot in found.items():
        if (function := _FUNCTIONS.get(name.removesuffix("64"))) is None:
            continue
        result, arguments, path_at = function
        prototype = ctypes.CFUNCTYPE(result, *arguments, use_errno=True)
        real = prototype(ctypes.cast(getattr(libc, name), _P).value)  # type: ignore[arg-type]
        callback = prototype(_observing(name, real, path_at))
        _callbacks.append((callback, real))
        if not redirect(slot, callback):
            return False
    return True


def redirect(slot: int, function: Any) -> bool:
    """Write a function's address into a slot; False if the slot cannot be written."""
    page = os.sysconf("SC_PAGESIZE")  # 64 KiB on many Arm servers
    # In NVRTC 13.5 the slots are read-only after loading.
    if ctypes.CDLL(None).mprotect(_P(slot & -page), ctypes.c_size_t(page), _READ_WRITE):
        return False
    _P.from_address(slot).value = ctypes.cast(function, _P).value
    return True


def slots(library: ctypes.CDLL) -> dict[str, int]:
    """Return the address of each function's PLT slot; empty if the library's format is unexpected."""
    try:
        return _slots(library)
    except (LookupError, ValueError, AttributeError, struct.error):
        return {}


def _slots(library: ctypes.CDLL) -> dict[str, int]:
    # An ELF64 file with RELA relocations.
    known = (_P * 4)()  # Dl_info: the file's name, where it is mapped, a symbol's name and address
    if not ctypes.CDLL(None).dladdr(ctypes.cast(library.nvrtcVersion, _P), known) or not known[1]:
        return {}
    base: int = known[1]
    start, count = struct.unpack("<Q16xH", ctypes.string_at(base + 32, 26))
    segments = [*struct.iter_unpack("<II8xQ16xQ8x", ctypes.string_at(base + start, 56 * count))]
    at, size = next((at, size) for kind, _, at, size in segments if kind == _PT_DYNAMIC)
    dynamic = dict(struct.iter_unpack("<QQ", ctypes.string_at(base + at, size // 16 * 16)))
    # The loader has converted these offsets to addresses.
    strings, symbols, table = (dynamic[tag] for tag in (_DT_STRTAB, _DT_SYMTAB, _DT_JMPREL))
    end = base + max(at + size for kind, _, at, size in segments if kind == 1)
    if not all(base < address < end for address in (strings, symbols, table)):
        return {}
    found = {}
    for slot, info in struct.iter_unpack("<QQ8x", ctypes.string_at(table, dynamic[_DT_PLTRELSZ])):
        offset = ctypes.c_uint32.from_address(symbols + 24 * (info >> 32)).value
        found[ctypes.string_at(strings + offset).decode()] = base + slot
    return found


# --- NVRTC's heap for precompiled headers ---------------------------------------------------------

# A precompiled header is an image of that heap, so it works only at the address where it was made: the same in every
# worker of every process. Placing the heap relies on undocumented behaviour of NVRTC 12.8 and later, and of Linux.

# Free on x86-64 and on aarch64 with 48-bit addresses: far above the heap, far below the libraries.
HEAP_BASE = 0x300000000000
# CuTe's header takes 291 MB, CUTLASS's 311. The unused rest costs address space but no memory.
HEAP_SIZE = 1 << 30

# Linux may ignore an address that is only a hint; before 4.17 it also treats this flag as a hint.
_MAP_FIXED_NOREPLACE = 0x100000


def pin_heap(library: ctypes.CDLL, allocate: Callable[[], None]) -> bool:
    """Make NVRTC `allocate` the heap at `HEAP_BASE` by a compile; return whether it is there now."""
    # NVRTC leaves the address to Linux, so its call of `mmap` is intercepted.
    slot = slots(library).get("mmap")
    if slot is None or not hasattr(library, "nvrtcSetPCHHeapSize"):  # before 12.8
        return False
    if library.nvrtcSetPCHHeapSize(ctypes.c_size_t(HEAP_SIZE)) != 0:
        return False
    word, number = ctypes.c_void_p, ctypes.c_int
    function = ctypes.CFUNCTYPE(
        word, word, ctypes.c_size_t, number, number, number, ctypes.c_long, use_errno=True
    )
    real = function(("mmap", ctypes.CDLL(None)))
    got = []

    def place(address: int | None, size: int, protection: int, flags: int, *file: int) -> Any:
        if address or size != HEAP_SIZE:
            return real(address, size, protection, flags, *file)
        got.append(real(HEAP_BASE, size, protection, flags | _MAP_FIXED_NOREPLACE, *file))
        if got[-1] == word(-1).value:
            return real(address, size, protection, flags, *file)
        return got[-1]

    ours = function(place)
    if not redirect(slot, ours):
        return False
    try:
        allocate()
    finally:
        redirect(slot, real)
    return got == [HEAP_BASE]

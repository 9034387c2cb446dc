"""Observes NVRTC's calls of the file system: which paths it opens or looks for.

Worker side. NVRTC calls libc's path functions through the slots of its procedure linkage table
(PLT). `install` makes these slots lead to callbacks, which record every path, including those that do
not exist, however the source spells them. This is undocumented; it was seen to work with NVRTC 12.4
to 13.5. `workers.nvrtc` checks it once per library. Where it does not work, the compiler's include
trace is used.

Optional fields of a job:

- ``texts``: {path: bytes}, headers that exist in memory only, below `MEMORY`. No other path exists
  there.
- ``contents``: {path: bytes}, what the compiler reads in place of these files.
- ``provided``: folders of the toolkit, with a slash at their end. Their files are opened as they
  are, and digested later by the caller, who has most digests already. Every other file is read and
  digested here, and the compiler gets the very bytes that were digested.
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

TYPE_CHECKING = False  # as type checkers know it; `typing` costs 5 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# The folder, which must not exist, of the headers that are given as texts.
MEMORY = b"/rtcompile-headers/"

# Words in a header that may put its path, or the time, into the code. Each group is listed by a rare
# part of its words, which is searched for first: that takes a fifth of the time.
_OWN_PATH_WORDS = (
    (b"FILE", (b"__FILE", b"__BASE_FILE__", b"__builtin_FILE")),
    (b"source_location", (b"source_location",)),
)
_CLOCK_WORDS = ((b"DATE", (b"__DATE__",)), (b"TIME", (b"__TIME",)))

_RECENT_NS = 3 * 10**9  # a file that is younger than this may change without a change of its times
_PAGE = 4096
_READ_WRITE = 3  # PROT_READ | PROT_WRITE

_P, _S, _I = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int

# Function: its result, its arguments, and which of these is the path.
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...], int]] = {
    "fopen": (_P, (_S, _S), 0),
    "fopen64": (_P, (_S, _S), 0),
    "open": (_I, (_S, _I, _I), 0),
    "open64": (_I, (_S, _I, _I), 0),
    "__xstat": (_I, (_I, _S, _P), 1),
    "__xstat64": (_I, (_I, _S, _P), 1),
    "__lxstat": (_I, (_I, _S, _P), 1),
    "stat": (_I, (_S, _P), 0),
    "stat64": (_I, (_S, _P), 0),
    "lstat": (_I, (_S, _P), 0),
    "access": (_I, (_S, _I), 0),
    "opendir": (_P, (_S,), 0),
    "realpath": (_P, (_S, _P), 0),
}

# Offset of `st_mode` in C's `struct stat`, by machine.
_MODE_OFFSETS = {"x86_64": 24, "aarch64": 16}

_libc: Any = None
_mode_offset = 0
_callbacks: list[Any] = []  # they must outlive the library's use of them
_job: Any = None  # the `_Observation` of the compile that is under way


class _Observation:
    """The calls of one compile."""

    def __init__(self, job: dict[str, Any], *, tells: bool) -> None:
        self.tells = tells
        self.texts: dict[bytes, bytes] = job.get("texts", {})
        self.provided: tuple[bytes, ...] = tuple(job.get("provided", ()))
        # The compiler writes its times to a descriptor of ours.
        self.temporary = (b"/proc/self/fd/", os.environb.get(b"TMPDIR", b"/proc/self/fd") + b"/")
        # NVRTC looks for a file of the program's name, and goes on whether there is one or not.
        self.own = (job.get("name", b""), job.get("pch", b""), os.getcwdb())
        self.begun_ns = time.clock_gettime_ns(5)  # CLOCK_REALTIME_COARSE, by which files get times
        self.opened: dict[bytes, list[Any]] = {}
        self.contents: dict[bytes, bytes] = dict(job.get("contents", {}))
        self.absent: dict[bytes, None] = {}
        self.absent_texts: dict[bytes, None] = {}
        self.folders: dict[bytes, None] = {}
        self.files: dict[bytes, None] = {}  # found, and not opened
        self.positions: dict[bytes, list[int]] = {}  # copies of descriptors, which share the offset
        self.memory: dict[bytes, int] = {}
        self.problem = ""

    def is_ours(self, path: bytes | None) -> bool:
        """Return whether a path belongs to this worker, or is relative to its empty folder."""
        return (
            path is None or not path.startswith(b"/") or path in self.own or self.is_temporary(path)
        )

    def is_temporary(self, path: bytes) -> bool:
        """Return whether a path is one of this job's temporary files."""
        return path.startswith(self.temporary)

    def doubt(self, problem: str) -> None:
        self.problem = self.problem or problem

    def found(self, path: bytes, mode: int) -> None:
        """Record that a file or a folder exists."""
        (self.folders if stat.S_ISDIR(mode) else self.files)[path] = None

    def open(self, path: bytes) -> int | None:
        """Return a descriptor for the compiler; None for what is no regular file."""
        text = self.contents.get(path)
        if text is not None:
            return self._kept(path, _in_memory(text))
        kind = os.stat(path).st_mode
        if stat.S_ISDIR(kind):
            self.folders[path] = None
            return None
        if not stat.S_ISREG(kind):  # opening a pipe would wait for a writer
            self.doubt(f"header {os.fsdecode(path)} is not a regular file")
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            self.files.pop(path, None)
            seen = [*signature(status), "", 0]
            known = self.opened.setdefault(path, seen)
            if known[:5] != seen[:5]:
                self.doubt(f"header {os.fsdecode(path)} changed while it was read")
            if self.tells:  # like the include trace; after a crash nothing else is known
                os.write(2, path + b"\n")
            if path.startswith(self.provided) and self._is_old(status):
                return descriptor
            data = _contents(descriptor, status.st_size)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        known[5] = blake2b(data, digest_size=32).hexdigest()
        known[6] = mentions(data)
        self.contents[path] = data
        return self._kept(path, _in_memory(data))

    def _kept(self, path: bytes, descriptor: int) -> int:
        """Return the descriptor; its copy shares the offset, which shows whether the compiler read."""
        self.positions.setdefault(path, []).append(os.dup(descriptor))
        return descriptor

    def _was_read(self, path: bytes) -> bool:
        """Return whether a file was read, and not only opened to see whether it is there."""
        copies = self.positions.pop(path, [])
        at = [os.lseek(copy, 0, os.SEEK_CUR) for copy in copies]
        for copy in copies:
            os.close(copy)
        return any(at) or not copies or not self.contents[path]

    def _is_old(self, status: os.stat_result) -> bool:
        return max(status.st_ctime_ns, status.st_mtime_ns) < self.begun_ns - _RECENT_NS

    def in_memory(self, path: bytes) -> int | None:
        """Return the descriptor, which stays ours, of a text; None if there is none."""
        descriptor = self.memory.get(path)
        if descriptor is None:
            text = self.texts.get(os.path.normpath(path))
            if text is None:
                self.absent_texts[path] = None
                return None
            descriptor = self.memory[path] = _in_memory(text)
        return descriptor

    def reply(self) -> dict[str, Any]:
        """Return what was observed, as plain values."""
        for descriptor in self.memory.values():
            os.close(descriptor)
        return {
            "begun_ns": self.begun_ns,
            "opened": [(path, *seen, self._was_read(path)) for path, seen in self.opened.items()],
            "files": [*self.files],
            "folders": [*self.folders],
            "absent": [*self.absent],
            "texts": [*self.memory],
            "absent texts": [*self.absent_texts],
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


def _contents(descriptor: int, size: int) -> bytes:
    chunks = []
    while chunk := os.read(descriptor, max(size + 1, _PAGE)):
        chunks.append(chunk)
    return b"".join(chunks)


def _in_memory(data: bytes) -> int:
    """Return the descriptor of a new file in memory, to be read from its beginning."""
    descriptor = os.memfd_create("header")
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def begin(job: dict[str, Any], *, tells: bool = True) -> None:
    """Begin to observe a compile; with `tells` the path of each opened header goes to stderr."""
    global _job
    _job = _Observation(job, tells=tells)


def end() -> dict[str, Any]:
    """Return what was observed since `begin`, and stop observing."""
    global _job
    job, _job = _job, None
    return job.reply()  # type: ignore[no-any-return]


# --- the callbacks -----------------------------------------------------------------------------


def _observing(name: str, real: Callable[..., Any], path_at: int) -> Callable[..., Any]:
    """Return the callback for a function. CuTe calls them 6,000 times."""
    if name.startswith("fopen"):
        return lambda path, mode: _fopen(real, path, mode)
    if name.startswith("open") and name != "opendir":
        return lambda path, flags, mode: _open(real, path, flags, mode)
    if "stat" in name:
        return lambda *given: _stat(real, given, path_at)

    def other(*given: Any) -> Any:
        answer, path = real(*given), given[path_at]
        job = _job
        if job is not None and not job.is_ours(path):
            if answer in (None, -1):
                job.absent[path] = None
            else:  # no version was seen to do so, and what it found is unknown
                job.doubt(f"the compiler called {name} of {os.fsdecode(path)}")
        return answer

    return other


def _fopen(real: Callable[..., Any], path: bytes, mode: bytes) -> Any:
    job = _job
    if job is None or job.is_ours(path) or not mode.startswith(b"r"):
        found = real(path, mode)
        if found and job is not None and path.startswith(b"../") and not job.is_temporary(path):
            job.doubt(f"header {os.fsdecode(path)} was found by a relative path")
        return found
    descriptor = _descriptor(job, path)
    if descriptor == _ABSENT:
        return None
    return real(path, mode) if descriptor is None else _libc.fdopen(descriptor, b"r")


def _open(real: Callable[..., Any], path: bytes, flags: int, mode: int) -> Any:
    job = _job
    if job is None or job.is_ours(path) or flags & (os.O_WRONLY | os.O_RDWR):
        return real(path, flags, mode)
    descriptor = _descriptor(job, path)
    return real(path, flags, mode) if descriptor is None else descriptor


_ABSENT = -1


def _descriptor(job: Any, path: bytes) -> int | None:
    """Return a descriptor, `_ABSENT` with the error set, or None if libc is to open the file."""
    try:
        if path.startswith(MEMORY):
            text = job.in_memory(path)
            if text is None:
                raise FileNotFoundError(2, "no such text")
            return _in_memory(job.texts[os.path.normpath(path)])
        return job.open(path)  # type: ignore[no-any-return]
    except OSError as error:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            job.doubt(f"{os.fsdecode(path)} may not be read: {error.strerror}")
        elif not path.startswith(MEMORY):
            job.absent[path] = None
        ctypes.set_errno(error.errno or 2)
        return _ABSENT


def _stat(real: Callable[..., Any], given: tuple[Any, ...], path_at: int) -> Any:
    job, path = _job, given[path_at]
    if job is None or path in job.opened or job.is_ours(path):
        return real(*given)
    if path.startswith(MEMORY):
        text = job.in_memory(path)
        if text is None:
            ctypes.set_errno(2)
            return -1
        status = _P(given[path_at + 1])
        return _libc.__fxstat(given[0], text, status) if path_at else _libc.fstat(text, status)
    answer = real(*given)
    if answer:
        job.absent[path] = None
    else:
        mode = ctypes.c_uint32.from_address(given[path_at + 1] + _mode_offset).value
        job.found(path, mode)
    return answer


# --- the slots ---------------------------------------------------------------------------------


def install(path: str) -> bool:
    """Redirect the slots of a loaded library to the callbacks; False if anything is not as expected."""
    try:
        return _install(path)
    except (OSError, LookupError, ValueError, AttributeError, MemoryError, struct.error):
        return False


def _install(path: str) -> bool:
    global _libc, _mode_offset
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fdopen.restype = _P
    libc.fdopen.argtypes = (_I, _S)
    _libc = libc
    _mode_offset = _MODE_OFFSETS.get(os.uname().machine, 0)
    base = _load_base(path)
    if base is None or not _mode_offset:
        return False
    found = _slots(path)
    if "fopen" not in found or not ("__xstat" in found or "stat" in found):
        return False
    changes = []
    for name, slot in found.items():
        result, arguments, path_at = _FUNCTIONS[name]
        prototype = ctypes.CFUNCTYPE(result, *arguments, use_errno=True)
        real = prototype(ctypes.cast(getattr(libc, name), _P).value)  # type: ignore[arg-type]
        callback = prototype(_observing(name, real, path_at))
        _callbacks.append((callback, real))
        changes.append((base + slot, callback))
        # NVRTC 13.5 has its slots read-only after loading.
        page = (base + slot) & ~(_PAGE - 1)
        if libc.mprotect(_P(page), ctypes.c_size_t(_PAGE), _READ_WRITE):
            return False
    for address, callback in changes:
        _P.from_address(address).value = ctypes.cast(callback, _P).value
    return True


def _load_base(path: str) -> int | None:
    """Return where a library is mapped; None if it is not."""
    real = os.path.realpath(path)
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                fields = line.rstrip("\n").split(None, 5)
                if len(fields) > 5 and fields[5] == real and int(fields[2], 16) == 0:
                    return int(fields[0].partition("-")[0], 16)
    except OSError:
        pass
    return None


def _slots(path: str) -> dict[str, int]:
    """Return the offset of the PLT slot of each observed function (ELF64 with RELA relocations)."""
    with open(path, "rb", buffering=0) as file:
        head = file.read(64)
        start, count = struct.unpack_from("<Q", head, 32)[0], struct.unpack_from("<H", head, 56)[0]
        segments = [*struct.iter_unpack("<IIQQQQQQ", _at(file, start, 56 * count))]

        def offset(address: int) -> int:
            for kind, _, at, begin, _, size, *_ in segments:
                if kind == 1 and begin <= address < begin + size:
                    return int(at + address - begin)
            raise ValueError("an address in no segment")

        entry, *_ = (segment for segment in segments if segment[0] == 2)
        dynamic = dict(struct.iter_unpack("<QQ", _at(file, entry[2], entry[5] // 16 * 16)))
        relocations = _at(file, offset(dynamic[23]), dynamic[2])  # DT_JMPREL, DT_PLTRELSZ
        strings = _at(file, offset(dynamic[5]), dynamic[10])  # DT_STRTAB, DT_STRSZ
        slots = [(info >> 32, slot) for slot, info, _ in struct.iter_unpack("<QQq", relocations)]
        last = max(symbol for symbol, _ in slots)
        symbols = _at(file, offset(dynamic[6]), 24 * (last + 1))  # DT_SYMTAB
        found = {}
        for symbol, slot in slots:
            begin = struct.unpack_from("<I", symbols, 24 * symbol)[0]
            name = strings[begin : strings.index(b"\0", begin)].decode()
            if name in _FUNCTIONS:
                found[name] = slot
        return found


def _at(file: Any, start: int, size: int) -> bytes:
    file.seek(start)
    data: bytes = file.read(size)
    return data

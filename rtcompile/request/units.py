"""One run of a compiler or linker: its input, its output, and its environment variables.

Only this module passes ``os.environ`` to a compiler, and only a few variables of it. A source can read its
compiler's environment (``#include "/proc/self/environ"`` puts it in the log), which may contain passwords, and a
cached build depends on each variable that a compiler uses.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from rtcompile.named import NamedTuple

if TYPE_CHECKING:
    from rtcompile.files.fileset import FileSet
    from rtcompile.request.values import Arch


# --- Input and output of one run of a compiler or linker ------------------------------------------

# Modules that a first build imports use `named.NamedTuple`, since defining a dataclass takes 0.8 ms.


class TimeLimit(float):
    """The seconds from `since` on that all work on one build may take; waits for a slot of the pool extend them."""

    __slots__ = ("until",)

    def __new__(cls, seconds: float, since: float | None = None) -> TimeLimit:
        limit = super().__new__(cls, seconds)
        limit.until = seconds + (time.perf_counter() if since is None else since)
        return limit

    until: float

    @property
    def left(self) -> float:
        """The seconds that are left, 0 once expired."""
        return max(0.0, self.until - time.perf_counter())


class Limits(NamedTuple):
    """Limits at which a compiler is killed: `timeout` in seconds, `memory` in bytes.

    Runs with the same `TimeLimit` share one deadline; a plain number applies to each run separately.
    """

    timeout: float | None = None
    memory: int | None = None

    def after_waiting(self, seconds: float) -> float | None:
        """Exclude a wait from the deadline and return the time left for this run."""
        if isinstance(self.timeout, TimeLimit):
            self.timeout.until += seconds
            return self.timeout.left
        return self.timeout


# Maps other libraries' names of the kinds of linker inputs to rtcompile's.
LINKED_KINDS = {kind: kind for kind in ("cubin", "ptx", "ltoir", "fatbin", "object")}
LINKED_KINDS["library"] = "archive"  # cuda.core's


class LinkInput(NamedTuple):
    """Bytes for the linker and their kind, a value of `LINKED_KINDS`."""

    kind: str
    name: str
    data: bytes


class TranslationUnit(NamedTuple):
    """The input of one run of a compiler; `texts` are headers passed as strings, below `headers.FOLDER`."""

    source: str
    name: str
    flags: tuple[str, ...]
    name_expressions: tuple[str, ...]
    target: str
    arch: Arch
    texts: tuple[tuple[str, str], ...] = ()


class Compiled(NamedTuple):
    """The output of one run of a compiler; `milliseconds` maps phases ("queue", "compile", "link", …) to durations.

    `trace` lists the headers it read, in order of first inclusion; None if the compiler does not report them.
    `files` has all files that it read or looked for, in their state at that moment; None if only `trace` is known.
    `busy` is the fraction of time that it had a processor; an overloaded machine makes it smaller.
    """

    code: bytes
    kind: str
    lowered_names: Mapping[str, str]
    log: str
    trace: tuple[str, ...] | None
    milliseconds: Mapping[str, float]
    notes: tuple[str, ...] = ()
    files: FileSet | None = None
    busy: float = 1.0


class Hints(NamedTuple):
    """The hint and the cause of each message of a log; they are true of a toolchain with the same `facts`."""

    facts: str
    texts: tuple[tuple[str, str], ...]


class CompileFailure(NamedTuple):
    """A failed run, as data that can cross processes; only the public API raises exceptions.

    `kind` is "error" (the compiler rejected the source), "link", "crash" (`signal` says which), "timeout",
    "memory", or "start" (the compiler could not be run). `trace`, `files` and `busy` are as in `Compiled`, if
    known. `before` is the failure of the compiler that was tried first. `inputs` are the files of a crashed NVCC.
    `hints` are known once the failure was explained.
    """

    kind: str
    log: str
    command: tuple[str, ...]
    backend: str
    signal: int | None = None
    milliseconds: float = 0.0
    trace: tuple[str, ...] | None = ()
    files: FileSet | None = None
    before: CompileFailure | None = None
    busy: float = 1.0
    inputs: Mapping[str, bytes] = MappingProxyType({})
    hints: Hints | None = None


def missing_headers(log: str) -> list[str]:
    """Return the headers that the host compiler did not find, as the source spells them."""
    import re

    missing = r"fatal error: '?([^':\n]+)(?:: No such file or directory|' file not found)"
    return re.findall(missing, log)


def joined_logs(first: str, second: str) -> str:
    """Return two logs in one, each beginning on its own line."""
    return f"{first}\n{second}" if first[-1:] not in ("", "\n") and second else first + second


# --- The environment variables that compilers get -------------------------------------------------

# A worker and its caller must encode paths in the same way.
_ENCODING = ("LANG", "LC_ALL", "LC_CTYPE")
# Interpreters and compilers from environment modules need it to find their shared libraries.
_LIBRARIES = ("LD_LIBRARY_PATH",)
# NVCC runs programs by name (cicc, ptxas, the host compiler), which may be wrappers with settings in the home
# directory. The following variables are not passed on, so they have no effect on a build:
#   NVCC_PREPEND_FLAGS, NVCC_APPEND_FLAGS, NVCC_CCBIN: read here (`nvcc_words`, the toolkit's search),
#       since the cache must know the directories and the compiler they name;
#   CPATH, CPLUS_INCLUDE_PATH, C_INCLUDE_PATH: NVRTC never obeyed them, and a directory that
#       only one compiler searches would make the same source compile differently; use -I;
#   INCLUDES, SYSTEM_INCLUDES, PTXAS_FLAGS, NVVM_FLAGS, CUDAFE_FLAGS, LIBRARIES, …: nvcc.profile adds
#       to them whatever a build script exported; use options;
#   GCC_EXEC_PREFIX, COMPILER_PATH, …: they replace the compiler that was found.
_NVCC = ("PATH", "HOME")
NVCC_FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")


def worker_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of worker processes: without PATH and TMPDIR, which they do not use."""
    # The driver's cache of compiled PTX must not replace a compilation. NVRTC looks into it despite
    # this variable: see `rtcompile.workers.libraries`.
    return {**_kept(environ, _ENCODING + _LIBRARIES), "CUDA_CACHE_DISABLE": "1"}


def nvcc_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of NVCC and its programs; the worker adds its own TMPDIR."""
    return _kept(environ, _ENCODING + _LIBRARIES + _NVCC)


def nvcc_words(environ: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words of ``NVCC_PREPEND_FLAGS`` and ``NVCC_APPEND_FLAGS``; quotes must be closed."""
    if not any(environ.get(name) for name in NVCC_FLAGS):
        return (), ()
    import shlex

    before, after = (tuple(shlex.split(environ.get(name, ""))) for name in NVCC_FLAGS)
    return before, after


def _kept(environ: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: environ[name] for name in names if name in environ}

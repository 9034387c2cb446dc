"""The result of the search: frozen values, and the errors for what is missing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from rtcompile.core.header import SearchDir
from rtcompile.errors import ToolkitNotFound


def version_pair(version: str) -> tuple[int, int]:
    """Return ``(12, 9)`` for ``"12.9.86"``; what a version leaves out is 0."""
    major, minor = (*map(int, re.findall(r"\d+", version)[:2]), 0, 0)[:2]
    return major, minor


class Library(NamedTuple):
    """A shared library on disk. Finding it has not loaded it."""

    path: str  # as found: links are not followed, since the loader finds siblings by this path
    version: str  # "12.9.86", or "12.9" where the folder gives no more
    # Libraries to open first: NVRTC opened by path does not find its own builtins.
    preload: tuple[str, ...] = ()
    build: str = ""  # nvJitLink's is read from its file; NVRTC's is empty until a worker reports it
    # What an NVRTC newer than rtcompile compiles for; else empty.
    architectures: tuple[int, ...] = ()

    @property
    def version_pair(self) -> tuple[int, int]:
        """Major and minor version."""
        return version_pair(self.version)

    def identity(self) -> str:
        """Return the file's path, size and mtime; not ctime, which hard links of packages change."""
        return _identity(self.path)

    def to_load(self) -> str:
        """Return the libraries that a worker loads, with identities: an upgrade needs a new one."""
        return os.pathsep.join((*self.preload, self.path)) + "\n" + self.identity()


class Program(NamedTuple):
    """An executable, and the binary it ends up running."""

    path: str
    version: str  # "13.0.88"
    binary: str  # the program that a wrapper script runs; else `path`
    build: str = ""  # from the files of every program that it runs, including the host compiler

    @property
    def version_pair(self) -> tuple[int, int]:
        """Major and minor version."""
        return version_pair(self.version)

    def identity(self) -> str:
        """Return an identity of the compiler behind `path`."""
        return _identity(self.binary)


def _identity(path: str) -> str:
    stat = os.stat(path)
    return f"{path}:{stat.st_size}:{stat.st_mtime_ns}"


# nvcc finds the headers of CUDA and of the host itself. The shims would hide the host's, and CUDA headers
# of NVRTC's version would mix with its own.
_FOR_NVCC = frozenset({"cutlass", "cupy", "rtcompile"})


class Toolchain(NamedTuple):
    """One consistent set of compilers and headers; mappings are by part: "nvrtc", "cccl", …."""

    nvrtc: Library | None = None
    # Of NVRTC's version or another one, since it has its own CUDA headers.
    nvcc: Program | None = None
    nvjitlink: Library | None = None
    cudadevrt: str | None = None
    host_compiler: str | None = None
    # Header directories for NVRTC, in search order, all of NVRTC's version.
    search: tuple[SearchDir, ...] = ()
    versions: Mapping[str, str] = MappingProxyType({})
    found_via: Mapping[str, str] = MappingProxyType({})
    # Why a part was not found and what to install.
    missing: Mapping[str, str] = MappingProxyType({})
    # What builds will meet: missing headers, versions that do not go together.
    problems: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()  # files and folders whose change makes this result outdated
    # Programs that did not answer; the result is then remembered only for a short time.
    doubts: tuple[str, ...] = ()

    @property
    def nvcc_search(self) -> tuple[SearchDir, ...]:
        """The directories of `search` that nvcc does not search by itself."""
        return tuple(d for d in self.search if d.label in _FOR_NVCC or d.is_provided)

    def require_nvrtc(self) -> Library:
        """Return NVRTC; raise `ToolkitNotFound` that says where it was looked for."""
        return self.nvrtc or self._not_found("nvrtc")

    def require_nvjitlink(self) -> Library:
        """Return nvJitLink; raise `ToolkitNotFound` that says what to install."""
        return self.nvjitlink or self._not_found("nvjitlink")

    def require_nvcc(self) -> Program:
        """Return nvcc; raise `ToolkitNotFound` that says where it was looked for."""
        return self.nvcc or self._not_found("nvcc")

    def require_cudadevrt(self) -> str:
        """Return the path of libcudadevrt.a; raise `ToolkitNotFound` if it is not installed."""
        return self.cudadevrt or self._not_found("cudadevrt")

    def require_host_compiler(self) -> str:
        """Return the host C++ compiler that nvcc needs; raise `ToolkitNotFound` without one."""
        return self.host_compiler or self._not_found("host_compiler")

    def _not_found(self, part: str) -> NoReturn:
        raise ToolkitNotFound(self.missing.get(part, f"{part} not found"))

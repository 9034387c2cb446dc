"""The result of the search: frozen values, and the errors for what is missing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from rtcompile.core.request import SearchDir
from rtcompile.errors import ToolkitNotFound

__all__ = ["Library", "Program", "Toolchain"]


def version_pair(version: str) -> tuple[int, int]:
    """Return ``(12, 9)`` for ``"12.9.86"``; what a version leaves out is 0."""
    major, minor = (*map(int, re.findall(r"\d+", version)[:2]), 0, 0)[:2]
    return major, minor


class Library(NamedTuple):
    """A shared library on disk. Finding it has not loaded it.

    Attributes
    ----------
    path : str
        Absolute path, as found (links are not followed: the loader finds siblings by this path).
    version : str
        ``"12.9.86"``, or ``"12.9"`` where the place says no more.
    preload : tuple of str
        Libraries to open first: NVRTC opened by path does not find its own builtins.
    build : str
        Which build it is. NVRTC tells it, in a worker, and until then it is empty; nvJitLink's is
        read from its file.
    architectures : tuple of int
        What an NVRTC that is newer than rtcompile says that it compiles for; else empty.
    """

    path: str
    version: str
    preload: tuple[str, ...] = ()
    build: str = ""
    architectures: tuple[int, ...] = ()

    @property
    def version_pair(self) -> tuple[int, int]:
        """Major and minor version."""
        return version_pair(self.version)

    def identity(self) -> str:
        """Return an identity of the file: path, size, mtime.

        Neither ctime nor the link count is in it, since package managers that use hard links change
        them.
        """
        return _identity(self.path)

    def to_load(self) -> str:
        """Return what a worker is told to load: the libraries, and which they are.

        The identity is in it so that after an upgrade a running notebook gets a new worker.
        """
        return os.pathsep.join((*self.preload, self.path)) + "\n" + self.identity()


class Program(NamedTuple):
    """An executable, and the binary it ends up running.

    Attributes
    ----------
    path : str
        The program to run.
    version : str
        ``"13.0.88"``.
    binary : str
        The program that a wrapper script runs; equal to `path` where there is no wrapper.
    build : str
        Which build it is, from the files of every program that it runs, including the host
        compiler.
    """

    path: str
    version: str
    binary: str
    build: str = ""

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
    """One consistent set of compilers and headers.

    Attributes
    ----------
    nvrtc, nvjitlink : Library or None
    nvcc : Program or None
        It may be of another version than NVRTC, since it has its own CUDA headers.
    cudadevrt, host_compiler : str or None
        Paths.
    search : tuple of SearchDir
        Header directories for NVRTC, in search order, all of NVRTC's version.
    versions, found_via : mapping of str to str
        By part ("nvrtc", "cudart", "crt", "cccl", …): its version, and how it was found.
    missing : mapping of str to str
        By part: why it was not found and what to install.
    problems : tuple of str
        Problems that builds will meet: missing headers, versions that do not go together.
    depends : tuple of str
        Files and folders whose change makes this result outdated.
    doubts : tuple of str
        Programs that exist and did not answer; the result is then remembered only for a short time.
    """

    nvrtc: Library | None = None
    nvcc: Program | None = None
    nvjitlink: Library | None = None
    cudadevrt: str | None = None
    host_compiler: str | None = None
    search: tuple[SearchDir, ...] = ()
    versions: Mapping[str, str] = MappingProxyType({})
    found_via: Mapping[str, str] = MappingProxyType({})
    missing: Mapping[str, str] = MappingProxyType({})
    problems: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
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

"""`Toolchain`: the result of the search, the identities of its compilers, and the errors for missing parts.

A compiler's `build` identifies it without paths and times, so two machines with the same packages agree. It is
computed with the toolchain, and remembered until a file's stat changes.
"""

from __future__ import annotations

import functools
import glob
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from rtcompile.errors import ToolkitNotFound, limit_reached
from rtcompile.files.headers import SearchDir
from rtcompile.files.sealed import content_digest
from rtcompile.lookup.environment import signature
from rtcompile.named import NamedTuple
from rtcompile.request.key import digest, field
from rtcompile.request.units import nvcc_environ, worker_environ
from rtcompile.settings import Settings, temporary_folder

if TYPE_CHECKING:
    from rtcompile.toolkit.roots import Hit

# --- The values of the result, and the errors for missing parts ------------------------------------


@functools.lru_cache(maxsize=16)
def version_pair(version: str) -> tuple[int, int]:
    """Return ``(12, 9)`` for ``"12.9.86"``; missing numbers are 0."""
    major, minor = (*map(int, re.findall(r"\d+", version)[:2]), 0, 0)[:2]
    return major, minor


class Library(NamedTuple):
    """A shared library on disk, which need not be loaded."""

    path: str  # links are not resolved, since the loader finds siblings by this path
    version: str  # "12.9.86", or "12.9" if the folder shows no more digits
    # Libraries to open first: NVRTC opened by path does not find its own builtins.
    preload: tuple[str, ...] = ()
    build: str = ""  # of its file and NVRTC's builtins, or nvJitLink's device runtime
    # The architectures of an NVRTC newer than rtcompile; else empty.
    architectures: tuple[int, ...] = ()

    @property
    def version_pair(self) -> tuple[int, int]:
        """Major and minor version."""
        return version_pair(self.version)

    def identity(self) -> str:
        """Return the file's path, size and mtime."""
        return f"{self.path}:{signature(self.path)}"

    def to_load(self) -> str:
        """Return the libraries for a worker, with their identities, since an upgrade needs a new worker."""
        return os.pathsep.join((*self.preload, self.path)) + "\n" + self.identity()


class Executable(NamedTuple):
    """An executable, and the binary that it runs."""

    path: str
    version: str  # "13.0.88"
    binary: str  # the program that a wrapper script runs; else `path`
    build: str = ""  # of the files of all programs that it runs, including the host compiler

    @property
    def version_pair(self) -> tuple[int, int]:
        """Major and minor version."""
        return version_pair(self.version)


# The labels of directories that nvcc searches too. It finds the headers of CUDA and the host itself: the shims would
# hide the host's, and CUDA headers of NVRTC's version would mix with its own.
_FOR_NVCC = frozenset({"cutlass", "cupy", "rtcompile"})


class Toolchain(NamedTuple):
    """One consistent set of compilers and headers; mappings are by part: "nvrtc", "cccl", …."""

    nvrtc: Library | None = None
    # nvcc may have another version than NVRTC, since it has its own CUDA headers.
    nvcc: Executable | None = None
    nvjitlink: Library | None = None
    cudadevrt: str | None = None
    host_compiler: str | None = None
    # Header directories for NVRTC, in search order, all of NVRTC's version.
    search: tuple[SearchDir, ...] = ()
    versions: Mapping[str, str] = MappingProxyType({})
    found_via: Mapping[str, str] = MappingProxyType({})
    # Why a part was not found and what to install.
    missing: Mapping[str, str] = MappingProxyType({})
    # Problems for builds: missing headers, versions that do not fit together.
    problems: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()  # files and folders whose change invalidates this result
    # Programs that did not respond; the result is then not remembered for other processes.
    doubts: tuple[str, ...] = ()

    @property
    def nvcc_search(self) -> tuple[SearchDir, ...]:
        """The directories of `search` that nvcc does not search automatically."""
        return tuple(d for d in self.search if d.label in _FOR_NVCC)

    def header_folders(self) -> tuple[str, ...]:
        """Return the folders of the headers that come with NVCC and its host compiler."""
        folders = []
        if self.nvcc is not None:
            root = os.path.dirname(os.path.dirname(os.path.realpath(self.nvcc.binary)))
            folders.append(f"{root}/targets")
            if not os.path.isdir(f"{root}/conda-meta"):  # conda's has the headers of all packages
                folders.append(f"{root}/include")
        if self.host_compiler is not None:
            host = os.path.realpath(self.host_compiler)
            folder = host if os.path.isdir(host) else os.path.dirname(host)
            prefix = os.path.dirname(folder)
            folders += [f"{prefix}/{each}" for each in _HOST_FOLDERS]
            folders += glob.glob(f"{glob.escape(prefix)}/*-linux-gnu*/sysroot")
        return tuple(folders)

    def require_nvrtc(self) -> Library:
        """Return NVRTC, or raise `not_found`."""
        return self.nvrtc or self.not_found("nvrtc")

    def require_nvcc(self) -> Executable:
        """Return nvcc, or raise `not_found`."""
        return self.nvcc or self.not_found("nvcc")

    def not_found(self, part: str) -> NoReturn:
        """Raise `ToolkitNotFound`, which says where a part was searched for, and what to install."""
        raise ToolkitNotFound(self.missing.get(part, f"{part} not found"))


# The folders of a host compiler's own headers, below the parent of its `bin`.
_HOST_FOLDERS = ("lib/gcc", "lib64/gcc", "lib/clang", "include/c++")


# --- Identifies the build of a program or library from its files ----------------------------------

# Wrappers, profiles and drivers are read completely. Of the compilers themselves (tens of megabytes), only the size
# and both ends are read, which contain the build number and the section table.
_READ_WHOLE = 4 << 20
_END = 64 << 10

# The programs that NVCC runs in a folder given by -ccbin.
_HOST_COMPILERS = ("gcc", "g++", "clang")


def of_file(path: str) -> str:
    """Return an identity of the file's contents, ``""`` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= _READ_WHOLE:
                return content_digest(file.read())[:16]
            first = file.read(_END)
            file.seek(-_END, os.SEEK_END)
            return content_digest(b"%d:%s%s" % (size, first, file.read()))[:16]
    except OSError:
        return ""


def files_of_nvcc(program: Executable) -> list[str]:
    """Return the files that determine this NVCC's output for preprocessed source."""
    return list(dict.fromkeys([program.path, program.binary, *_files_below(program).values()]))


def of_nvcc(program: Executable, host_compiler: str | None) -> str:
    """Return NVCC's build and its host compiler's, ``"13.0.88 2f1c…; g++ 90ab…"``."""
    files = _files_below(program)
    if os.path.realpath(program.path) != os.path.realpath(program.binary):
        files["wrapper"] = program.path
    own = _together(files.items())
    host = of_host_compiler(host_compiler) if host_compiler else ""
    return f"{program.version} {own}" + (f"; {host}" if host else "")


def of_host_compiler(path: str) -> str:
    """Return the build of the host compiler at `path`, a program or the folder of one."""
    name = os.path.basename(path.rstrip("/"))
    if not os.path.isdir(path):
        return f"{name} {of_file(path)}"
    return f"{name}/ " + _together((each, os.path.join(path, each)) for each in _HOST_COMPILERS)


def of_nvrtc(library: Library) -> str:
    """Return the build of NVRTC and its builtins, ``"12.9.86 41c0…"``."""
    paths = (*library.preload, library.path)
    return f"{library.version} {_together((os.path.basename(path), path) for path in paths)}"


def of_nvjitlink(library: Library, cudadevrt: str | None) -> str:
    """Return the builds of nvJitLink and of the device runtime that it links."""
    runtime = f"; libcudadevrt {of_file(cudadevrt)}" if cudadevrt else ""
    return f"nvJitLink {library.version} {of_file(library.path)}{runtime}"


def _files_below(program: Executable) -> dict[str, str]:
    """Return NVCC's files by their names below its folder, which do not depend on links and wrappers."""
    from rtcompile.toolkit.catalogue import PART  # only a search needs it

    binary = os.path.realpath(program.binary)
    root = os.path.dirname(os.path.dirname(binary))
    found = {name: os.path.join(root, name) for name in PART["nvcc"].files}
    return {"nvcc": binary, **{name: path for name, path in found.items() if os.path.isfile(path)}}


def _together(files: Iterable[tuple[str, str]]) -> str:
    return digest([field(name, of_file(path)) for name, path in files])[:16]


# --- The versions of programs and libraries, and what they contain --------------------------------

_QUERY = "rtcompile.workers.libraries"
_SECONDS = 30.0  # enough for a cold network file system; longer counts as a hang
_UNPACK_SECONDS = 120.0  # unpacking takes 0.3
_FIRST_WITH_HEADERS = 13, 3


def describe_nvcc(path: str, version: str, environ: Mapping[str, str]) -> Executable | None:
    """Return the nvcc at `path`; it is run if `version` is unknown. None if that fails."""
    if not version:
        output = output_of([path, "--version"], nvcc_environ(environ))
        match = re.search(r"release \d+\.\d+, V(\d+\.\d+\.\d+)", output)
        if match is None:
            return None
        version = match[1]
    return Executable(path, version, _behind_wrapper(path, environ))


def architectures(nvrtc: Library, environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the numbers of the architectures that an NVRTC lists; empty if that fails."""
    from rtcompile.workers import process

    command = process.bare(f"{_QUERY}:architectures", *nvrtc.preload, nvrtc.path)
    listed = output_of(command, worker_environ(environ)).split()
    return tuple(int(word) for word in listed) if all(map(str.isdecimal, listed)) else ()


def unpack(nvrtc: Hit, settings: Settings) -> str | None:
    """Return the folder of NVRTC's own headers, unpacked if necessary; None if it has none."""
    if version_pair(nvrtc.version) < _FIRST_WITH_HEADERS:
        return None
    from rtcompile.store import inventory
    from rtcompile.workers import process

    name = f"{nvrtc.version}-{of_file(nvrtc.path)}"

    def write(folder: str) -> None:
        command = process.bare(f"{_QUERY}:headers", nvrtc.path, folder)
        if output_of(command, worker_environ(os.environ), _UNPACK_SECONDS).strip() != "written":
            raise OSError(f"{nvrtc.path} wrote no headers")

    found = inventory.find(settings.cache_dir, name) if settings.cache_on_disk else None
    if found or not settings.jit:
        return found
    with suppress(OSError):  # the error of a missing header names the packages that have it
        if settings.cache_on_disk:
            with suppress(OSError):  # if the cache is not writable, a temporary folder is used
                if found := inventory.publish(settings.cache_dir, name, write):
                    return found
        folder = temporary_folder("headers")
        write(folder)
        return folder
    return None


def _behind_wrapper(path: str, environ: Mapping[str, str]) -> str:
    """Return the binary that a wrapper script runs, since an upgrade changes only the binary."""
    # nvcc prints its own folder in a dry run; the format is not documented.
    with open(path, "rb") as file:
        if file.read(2) != b"#!":
            return path
    output = output_of([path, "--dryrun", "-x", "cu", "-c", os.devnull], nvcc_environ(environ))
    match = re.search(r"^#\$ _HERE_=(.+)$", output, re.MULTILINE)
    binary = os.path.join(match[1], "nvcc") if match else path
    return binary if os.path.isfile(binary) else path


def output_of(
    command: list[str],
    environ: dict[str, str],
    seconds: float = _SECONDS,
    given: bytes | None = None,
) -> str:
    """Return a program's output (without stderr if input is `given`); ``""`` if it cannot be run in time."""
    import subprocess  # takes 5 ms, which a remembered toolchain saves

    try:
        done = subprocess.run(
            command,
            env=environ,
            input=given or b"",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if given is None else subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
    # RuntimeError: an isolated subinterpreter starts no programs in this way.
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        if limit := limit_reached(getattr(error, "errno", None)):
            raise limit from None  # returning "" would be reported as "nvcc not found"
        return ""
    return done.stdout.decode("utf-8", "replace")

"""Finds compilers and headers whose versions fit together, once, and remembers the toolchain in a small file.

>>> toolchain = current()
>>> toolchain.nvrtc.version, [d.label for d in toolchain.search]
('12.9.86', ['cudart', 'crt', 'cccl', 'cutlass', 'cupy', 'rtcompile', 'shims'])

Some forty `stat`s detect changes. Only the programs found on PATH matter, not PATH itself, so a shell, a service
and a scheduler that find the same programs share one result.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rtcompile import forks
from rtcompile.files import sealed
from rtcompile.files.headers import SearchDir
from rtcompile.lookup import environment as environments
from rtcompile.lookup.environment import SEAL, TOOLCHAINS, Environment, signature
from rtcompile.named import NamedTuple
from rtcompile.settings import Settings
from rtcompile.store.folder import Folder
from rtcompile.toolkit.model import Executable, Library, Toolchain, architectures, unpack


class Known(NamedTuple):
    """A result of the search, and its files with their stat signatures, as `environments.packed` returns them."""

    toolchain: Toolchain
    files: Sequence[bytes]

    def is_valid(self, key: str, noted: str) -> bool:
        """Return whether the result's files are unchanged; `noted` is the digest of files just found unchanged."""
        return environments.noted(key, self.files) == noted or environments.are_unchanged(
            self.files
        )


_in_this_process: dict[str, Known] = {}  # by toolchain key
_lock = forks.lock()
_LONGEST_WAIT = 2.0  # seconds; a search takes one at most


def current(settings: Settings | None = None, trusted: float = 0.0) -> Toolchain:
    """Return the toolchain of this environment; missing parts raise only when they are required."""
    # The toolchain's files are checked, unless they were checked in the last `trusted` seconds.
    noted = environments.current().signature(trusted)
    environment = environments.current()  # A change in a folder of PATH makes a new snapshot.
    settings = settings or environment.settings
    key = environment.toolchain_key
    known = _in_this_process.get(key)
    if known is not None and known.is_valid(key, noted):
        if not environment.signature():  # this cache, perhaps another one, lacks the result
            write(settings, key, known)
        return known.toolchain
    if sys.platform != "linux" or os.uname().machine not in ("x86_64", "aarch64"):
        return _unsupported()
    # One thread searches at a time, so the next one uses its result. But the thread that searches may be interrupted by
    # a signal handler that waits for other threads.
    acquired = _lock.acquire(timeout=_LONGEST_WAIT)
    try:
        return _found(environment, settings, noted).toolchain
    finally:
        if acquired:
            _lock.release()


def _found(environment: Environment, settings: Settings, noted: str) -> Known:
    """Return the toolchain that another thread has just found, else the one in the file, else search for it."""
    key = environment.toolchain_key
    known = _in_this_process.get(key)
    if known is None and settings.cache_on_disk:
        known = read(settings, key)
        environment.signature()  # reads the same file
    if known is None or not known.is_valid(key, noted):
        # PATH may lead to another program now.
        environment = environments.looked_again()
        key = environment.toolchain_key
        _in_this_process.pop(key, None)
        known = _search(environment.site_dirs, settings)
        write(settings, key, known)
        environment.signature()  # From now on, a newly installed program on PATH is noticed.
    # A signal handler may have interrupted the search and found the toolchain first.
    known = _in_this_process.setdefault(key, known)
    nvrtc = known.toolchain.nvrtc
    if nvrtc is not None and nvrtc.architectures:
        from rtcompile.request import arch as archs

        archs.learn(nvrtc.version_pair, nvrtc.architectures)
    return known


def _unsupported() -> Toolchain:
    import platform

    why = (
        f"rtcompile compiles on Linux x86-64 and aarch64; this is {platform.system()} "
        f"{platform.machine()}. Importing it works, compiling does not."
    )
    parts = ("nvrtc", "nvcc", "nvjitlink", "cudadevrt", "host_compiler")
    return Toolchain(missing=dict.fromkeys(parts, why), problems=(why,))


def remember_device(capability: tuple[int, int], settings: Settings) -> None:
    """Remember the compute capability of this machine's devices, also for later processes."""
    environment = environments.current()
    known = _in_this_process.get(environment.toolchain_key)
    if environment.capability != capability and known is not None:
        environment.capability = capability
        write(settings, environment.toolchain_key, known)


def _search(site_dirs: Sequence[str], settings: Settings) -> Known:
    from rtcompile.request import arch as archs
    from rtcompile.toolkit.search import find

    toolchain = find(
        environments.expanded(os.environ),
        [*site_dirs, *_editable_cupy(site_dirs)],
        prefix=sys.prefix,
        unpack=lambda nvrtc: unpack(nvrtc, settings),
    )
    nvrtc = toolchain.nvrtc
    if nvrtc is not None and nvrtc.version_pair > archs.NEWEST_MEASURED:
        nvrtc = nvrtc._replace(architectures=architectures(nvrtc, os.environ))
        toolchain = toolchain._replace(nvrtc=nvrtc)
    loads = "" if toolchain.nvrtc is None else toolchain.nvrtc.to_load()
    files = environments.packed({path: signature(path) for path in toolchain.depends}, loads)
    return Known(toolchain, files)


def _editable_cupy(site_dirs: Sequence[str]) -> Sequence[str]:
    """Return the folder of a CuPy that only an import hook can find. Does not import it."""
    if any(os.path.isdir(os.path.join(folder, "cupy")) for folder in site_dirs):
        return ()
    import importlib.util

    cupy = importlib.util.find_spec("cupy")
    return (os.path.dirname(os.path.dirname(cupy.origin)),) if cupy and cupy.origin else ()


# --- the file ------------------------------------------------------------------------------------


def read(settings: Settings, key: str) -> Known | None:
    """Return the remembered result, which names libraries to load; None if it is not trusted."""
    folder = Folder(settings.cache_dir, writable=settings.jit)
    fields = folder.decoded(TOOLCHAINS, key, partial(sealed.unseal, SEAL))
    if fields is None:
        return None
    try:
        known = Known(_from_json(fields[3]), fields[:3])
    except (ValueError, TypeError, LookupError, AttributeError):
        return None
    return known if _unpacked_is_there(known.toolchain, settings) else None


def _unpacked_is_there(toolchain: Toolchain, settings: Settings) -> bool:
    """Return whether NVRTC's own headers, if the toolchain uses them, are in the cache, and record their use."""
    if "NVRTC" not in toolchain.found_via.values():
        return True
    from rtcompile.store import inventory

    top = f"{settings.cache_dir}/{inventory.HEADERS}/"
    names = [d.path.removeprefix(top) for d in toolchain.search if d.path.startswith(top)]
    return bool(names) and inventory.find(settings.cache_dir, names[0].split("/")[0]) is not None


def write(settings: Settings, key: str, known: Known) -> None:
    """Write the result by rename, unless the folder or RTCOMPILE_JIT=0 forbids it."""
    # A program that did not respond may do so in the next process, when the machine is less busy.
    if known.toolchain.doubts:
        return
    import json  # takes 1.5 ms, which `import rtcompile` alone should not cost

    plain = [dict(part) if isinstance(part, Mapping) else part for part in known.toolchain]
    found = json.dumps(plain).encode("utf-8", "surrogateescape")  # named tuples become lists
    here = environments.current()
    fields = [*known.files, found, bytes(here.capability)]
    if here.toolchain_key == key:
        here.note(fields)
    if not (settings.cache_on_disk and settings.jit):
        return
    folder = Folder(settings.cache_dir)
    with contextlib.suppress(OSError):
        folder.prepare()
        folder.publish(TOOLCHAINS, key, sealed.seal(SEAL, key, fields))


def _from_json(text: bytes) -> Toolchain:
    import json

    values = json.loads(text)
    if not isinstance(values, list) or len(values) != len(Toolchain._fields):
        raise ValueError("another rtcompile wrote this")
    found = Toolchain(*map(_tuples, values))
    return found._replace(
        nvrtc=found.nvrtc and Library(*found.nvrtc),
        nvcc=found.nvcc and Executable(*found.nvcc),
        nvjitlink=found.nvjitlink and Library(*found.nvjitlink),
        search=tuple(SearchDir(*directory) for directory in found.search),
    )


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value

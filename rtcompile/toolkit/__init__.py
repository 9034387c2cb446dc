"""Finds compilers and headers whose versions fit together, once, and remembers the toolchain in a small file.

>>> toolchain = current()
>>> toolchain.nvrtc.version, [d.label for d in toolchain.search]
('12.9.86', ['cudart', 'crt', 'cccl', 'cutlass', 'cupy', 'rtcompile', 'shims'])

Some forty `stat`s detect changes. Only the programs found on PATH matter, not PATH itself, so a shell, a service
and a scheduler that find the same programs share one result.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rtcompile import forks
from rtcompile.files.headers import SearchDir
from rtcompile.lookup import environment as environments
from rtcompile.lookup.environment import CHECK_SECONDS, signature
from rtcompile.settings import Settings
from rtcompile.toolkit.model import Executable, Library, Toolchain, architectures, unpack

_in_this_process: dict[str, Sequence[bytes]] = {}  # the fields of files, by toolchain key
_decoded: dict[tuple[bytes, ...], Toolchain] = {}  # by all fields except the devices' capability
_lock = forks.lock()
_LONGEST_WAIT = 2.0  # seconds; a search takes one at most


def current(trusted: float = 0.0) -> Toolchain:
    """Return the toolchain of this environment; missing parts raise only when they are required."""
    # The toolchain's files are checked unless that was done in the last `trusted` seconds.
    known = _known(trusted)
    if known is not None:
        return known
    if sys.platform != "linux" or os.uname().machine not in ("x86_64", "aarch64"):
        return _unsupported()
    # One thread searches at a time, so the next one uses its result. But the thread that searches may be interrupted by
    # a signal handler that waits for other threads.
    acquired = _lock.acquire(timeout=_LONGEST_WAIT)
    try:
        return _known() or _searched()
    finally:
        if acquired:
            _lock.release()


def _known(trusted: float = 0.0) -> Toolchain | None:
    """Return the toolchain that this process found before, or that is in the file, if its files are unchanged."""
    environments.current().signature(trusted)
    here = environments.current()  # A change in a folder of PATH makes a new snapshot.
    settings, key = here.usable_settings, here.toolchain_key
    fields = here.toolchain if here.signature() else _in_this_process.get(key)
    if fields is None or not (fields is here.toolchain or environments.are_unchanged(fields)):
        return None
    try:
        found = _decoded.get(tuple(fields[:4])) or _from_json(fields, settings)
    except (ValueError, TypeError, LookupError, AttributeError):
        return None  # NVRTC's own headers were evicted, or the file is damaged
    _in_this_process[key] = fields
    if fields is not here.toolchain:  # this cache, which may be a new one, lacks the result
        here.note(fields, writes=not found.doubts)
    return found


def _unsupported() -> Toolchain:
    import platform

    why = (
        f"rtcompile compiles on Linux x86-64 and aarch64; this is {platform.system()} "
        f"{platform.machine()}. Importing it works, compiling does not."
    )
    parts = ("nvrtc", "nvcc", "nvjitlink", "cudadevrt", "host_compiler")
    return Toolchain(missing=dict.fromkeys(parts, why), problems=(why,))


def remember_device(capability: tuple[int, int]) -> None:
    """Remember the compute capability of this machine's devices, also for later processes."""
    toolchain, here = current(), environments.current()
    if here.capability != capability and here.toolchain is not None:
        fields = [*here.toolchain[:4], bytes(capability)]
        here.note(fields, writes=not toolchain.doubts)


def _searched() -> Toolchain:
    import json  # takes 1.5 ms, which `import rtcompile` alone should not cost

    from rtcompile.request import arch as archs
    from rtcompile.toolkit.search import find

    here = environments.looked_again()  # PATH may lead to another program now
    site_dirs, settings = here.site_dirs, here.usable_settings
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
    plain = [dict(part) if isinstance(part, Mapping) else part for part in toolchain]
    text = json.dumps(plain).encode("utf-8", "surrogateescape")  # named tuples become lists
    # A program that did not respond may do so in the next process, when the machine is less busy.
    here.note([*files, text, bytes(here.capability)], writes=not toolchain.doubts)
    here.signature()  # From now on, a newly installed program on PATH is noticed.
    # A signal handler may have interrupted the search and found the toolchain first.
    return _known(CHECK_SECONDS) or toolchain


def _editable_cupy(site_dirs: Sequence[str]) -> Sequence[str]:
    """Return the folder of a CuPy that only an import hook can find. Does not import it."""
    if any(os.path.isdir(os.path.join(folder, "cupy")) for folder in site_dirs):
        return ()
    import importlib.util

    cupy = importlib.util.find_spec("cupy")
    return (os.path.dirname(os.path.dirname(cupy.origin)),) if cupy and cupy.origin else ()


# --- the toolchain in the file -------------------------------------------------------------------


def _from_json(fields: Sequence[bytes], settings: Settings) -> Toolchain:
    import json

    values = json.loads(fields[3])
    if not isinstance(values, list) or len(values) != len(Toolchain._fields):
        raise ValueError("another rtcompile wrote this")
    found = Toolchain(*map(_tuples, values))
    nvrtc = found.nvrtc and Library(*found.nvrtc)
    found = found._replace(
        nvrtc=nvrtc,
        nvcc=found.nvcc and Executable(*found.nvcc),
        nvjitlink=found.nvjitlink and Library(*found.nvjitlink),
        search=tuple(SearchDir(*directory) for directory in found.search),
    )
    # NVRTC's own headers must still be in the cache, and nobody else may be able to write there. This records their use.
    top = f"{settings.cache_dir}/headers/"
    for path in [d.path.removeprefix(top) for d in found.search if d.path.startswith(top)][:1]:
        from rtcompile.store import inventory

        if inventory.find(settings.cache_dir, path.split("/")[0]) is None:
            raise LookupError(path)
    if nvrtc is not None and nvrtc.architectures:
        from rtcompile.request import arch as archs

        archs.learn(nvrtc.version_pair, nvrtc.architectures)
    # Threads that decode the same fields at once get one toolchain.
    return _decoded.setdefault(tuple(fields[:4]), found)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value

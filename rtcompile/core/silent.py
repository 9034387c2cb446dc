"""Warnings about code that a compiler accepted silently and that a device would not run as meant.

Every build is checked by this module. It does not use the catalogue of messages, which takes 40 ms
to import.
"""

from __future__ import annotations

import re

from rtcompile.core import cubin
from rtcompile.core.arch import Arch

_TRAPS = re.compile(
    rb"Attempting to use (?P<what>[ -~]{1,80}?) without (?P<needs>[ -~]{1,60})"
    rb"|Arch conditional MMA instruction used without targeting (?P<arch>[ -~]{1,60})"
)
_STATIC_SHARED_LIMIT = 48 << 10


def check_code(code: bytes, arch: Arch) -> tuple[str, ...]:
    """Warn of code that a compiler accepted silently and that a device would not run as meant.

    Such are instructions that CuTe or CUTLASS replaced by a trap, since the architecture lacks
    them, and more static shared memory than a kernel may have. Only a cubin is examined.
    """
    return (*_traps(code, arch), *_oversized(code))


def _traps(code: bytes, arch: Arch) -> list[str]:
    # CuTe compiles each instruction only where its feature macro is set; else the call prints this
    # message and aborts.
    found = {match[0].decode("ascii"): match for match in _TRAPS.finditer(code)}
    if not found:
        return []
    specific = Arch(arch.major, arch.minor, "a")
    advice = f"compile for {specific}" if not arch.suffix and arch.major >= 9 else "another atom"
    quoted = ", ".join(sorted(found)[:3])
    return [
        f"The code holds traps instead of instructions: CuTe or CUTLASS says {quoted!r}. "
        f"{arch} has not what the source asks for: {advice}."
    ]


def _oversized(code: bytes) -> list[str]:
    try:
        if cubin.most_shared_bytes(code) <= _STATIC_SHARED_LIMIT:
            return []
        kernels = cubin.kernels(code)
    except ValueError:
        return []
    return [
        f"{kernel.name} has {kernel.shared_bytes} bytes of static shared memory; a kernel may have "
        f"{_STATIC_SHARED_LIMIT}. Make it dynamic (extern __shared__) and set "
        "max_dynamic_shared_size_bytes."
        for kernel in kernels
        if kernel.shared_bytes > _STATIC_SHARED_LIMIT
    ]

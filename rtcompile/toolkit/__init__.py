"""Finds the compilers and their headers, and checks that their versions go together.

>>> toolchain = current()
>>> toolchain.nvrtc.version, [d.label for d in toolchain.search]
('12.9.86', ['cudart', 'crt', 'cccl', 'cutlass', 'cupy', 'rtcompile', 'shims'])
"""

from __future__ import annotations

from rtcompile.toolkit.model import Library, Program, Toolchain
from rtcompile.toolkit.remembered import current, remember_compiler_id, remember_device

__all__ = [
    "Library",
    "Program",
    "Toolchain",
    "current",
    "find",
    "missing_header",
    "remember_compiler_id",
    "remember_device",
]


def __getattr__(name: str) -> object:
    # Imported on demand: while the last result is remembered, no search takes root.
    if name == "find":
        from rtcompile.toolkit.search import find

        return find
    if name == "missing_header":
        from rtcompile.toolkit.advice import missing_header

        return missing_header
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

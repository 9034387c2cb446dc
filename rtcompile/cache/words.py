"""The words of a request: all that its caller gave, as plain strings in a fixed order.

An answer (`rtcompile.cache.answers`) is kept under them, a record holds them, and the request is
made of them. Those of CuPy's own compile function and those of `RawModule` and `RawKernel` differ.
This module imports next to nothing, since each hit needs it.
"""

from __future__ import annotations

import os
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CUPY", "OfCupy", "OfModule", "folder_of", "of_cupy", "of_module", "read"]

# In place of a device's compute capability with the words of CuPy's function, which say it.
CUPY = (0, 0)

# Options that mean the same in every working directory: they name no path, or an absolute one.
_ANYWHERE = (
    "--define-macro=",
    "--fmad=",
    "--maxrregcount=",
    "--std=",
    "--use_fast_math",
    "-D",
    "-I/",
    "-U",
    "-std=",
    "-use_fast_math",
)


class OfCupy(NamedTuple):
    """What CuPy's compile function was given; `arch_flag` and `kind` follow from its device."""

    source: str
    arch_flag: str
    kind: str
    backend: str
    folder: str
    options: tuple[str, ...]
    names: tuple[str, ...]


class OfModule(NamedTuple):
    """The arguments of a `RawModule` or `RawKernel`."""

    source: str
    name: str
    folder: str
    options: tuple[str, ...]
    names: tuple[str, ...]


def of_cupy(
    source: str,
    arch_flag: str,
    kind: str,
    backend: str,
    folder: str,
    options: Sequence[str],
    names: Sequence[str],
) -> tuple[str, ...]:
    """Return the words of what CuPy's compile function was given; `folder` is that of `folder_of`."""
    return (source, arch_flag, kind, backend, folder, str(len(options)), *options, *names)


def of_module(
    source: str, name: str, folder: str, options: Sequence[str], names: Sequence[str]
) -> tuple[str, ...]:
    """Return the words of a `RawModule` or `RawKernel`; `folder` is that of `folder_of`."""
    return (source, name, folder, str(len(options)), *options, *names)


def read(words: Sequence[str], capability: tuple[int, int]) -> OfCupy | OfModule:
    """Return what words say; raise ValueError where they are none.

    Parameters
    ----------
    words : sequence of str
        What `of_cupy` or `of_module` returned.
    capability : (int, int)
        `CUPY` for those of CuPy's function.
    """
    fixed = len((OfCupy if capability == CUPY else OfModule)._fields) - 2
    if len(words) <= fixed or not words[fixed].isdecimal():
        raise ValueError("these are no words of a request")
    begin = fixed + 1
    end = begin + int(words[fixed])
    if len(words) < end:
        raise ValueError("these are no words of a request")
    options, names = tuple(words[begin:end]), tuple(words[end:])
    if capability == CUPY:
        source, arch_flag, kind, backend, folder = words[:fixed]
        return OfCupy(source, arch_flag, kind, backend, folder, options, names)
    source, name, folder = words[:fixed]
    return OfModule(source, name, folder, options, names)


def folder_of(options: Sequence[str]) -> str | None:
    """Return the working directory if an option may name a path relative to it, else "".

    None where that directory was removed.
    """
    # One string may hold several options: "-DN=1 -I include".
    if all(option.startswith(_ANYWHERE) and len(option.split()) == 1 for option in options):
        return ""
    try:
        return os.getcwd()
    except OSError:
        return None

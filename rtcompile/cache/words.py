"""The words of a request: all that its caller gave, as plain strings in a fixed order.

An answer (`rtcompile.cache.answers`) is kept under them, a record holds them, and the request is
made of them. Those of CuPy's own compile function and those of `RawModule` and `RawKernel` differ.
This module imports next to nothing, since each hit needs it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CUPY", "Said", "folder_of", "of_cupy", "of_module", "read"]

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


class Said:
    """What words say. No NamedTuple: to define one takes a first hit's time.

    Attributes
    ----------
    fixed : tuple of str
        Of CuPy's function the source, the flag for the architecture, the kind of code and the
        compiler; of a `RawModule` or `RawKernel` the source and the program's name.
    folder : str
        The working directory, if an option may name a path relative to it.
    options, names : tuple of str
        The options, and the name expressions.
    """

    __slots__ = ("fixed", "folder", "names", "options")

    def __init__(
        self, fixed: tuple[str, ...], folder: str, options: tuple[str, ...], names: tuple[str, ...]
    ) -> None:
        self.fixed = fixed
        self.folder = folder
        self.options = options
        self.names = names


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


def read(words: Sequence[str], capability: tuple[int, int]) -> Said:
    """Return what words say; raise ValueError where they are none.

    Parameters
    ----------
    words : sequence of str
        What `of_cupy` or `of_module` returned.
    capability : (int, int)
        `CUPY` for those of CuPy's function.
    """
    count = 4 if capability == CUPY else 2
    begin = count + 2
    if len(words) < begin or not words[begin - 1].isdecimal():
        raise ValueError("these are no words of a request")
    end = begin + int(words[begin - 1])
    if len(words) < end:
        raise ValueError("these are no words of a request")
    return Said(tuple(words[:count]), words[count], tuple(words[begin:end]), tuple(words[end:]))


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

"""Input and output of one run of a compiler or linker. A cache hit does not import this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rtcompile.core.arch import Arch
    from rtcompile.lookup.fileset import FileSet

# NamedTuples here and in what else a first build imports: to define a dataclass takes four times as long,
# 0.3 to 0.8 ms.


class Limits(NamedTuple):
    """What a compiler may use before it is killed: `timeout` in seconds, `memory` in bytes."""

    timeout: float | None = None
    memory: int | None = None


class LinkInput(NamedTuple):
    """Bytes for the linker and what they are: "cubin", "ptx", "ltoir", "fatbin", "object", "archive"."""

    kind: str
    name: str
    data: bytes


class TranslationUnit(NamedTuple):
    """The input of one run of a compiler, with every option and path already decided.

    `texts` are headers that exist in memory only, as a path below `core.memory_headers.FOLDER` and what
    it holds.
    """

    source: str
    name: str
    flags: tuple[str, ...]
    name_expressions: tuple[str, ...]
    target: str
    arch: Arch
    texts: tuple[tuple[str, str], ...] = ()


class Compiled(NamedTuple):
    """The output of one run of a compiler.

    `trace` lists the headers it read, as spelled by the compiler, in order of first inclusion;
    None where the compiler does not say, so a later change of them cannot be noticed.
    `milliseconds` maps phases ("queue", "compile", "link", …) to their duration. `files` is all that the compiler read and looked for, as it was at that moment; None where only `trace` is
    known.
    """

    code: bytes
    kind: str
    lowered_names: Mapping[str, str]
    log: str
    trace: tuple[str, ...] | None
    milliseconds: Mapping[str, float]
    notes: tuple[str, ...] = ()
    files: FileSet | None = None


class CompileFailure(NamedTuple):
    """Why there is no code. Crosses processes as a value; errors are raised at the public edge.

    `kind` is "error" (the compiler refused the source), "link", "crash" (`signal` says which),
    "timeout", "memory", or "start" (the compiler could not be run). `trace` lists the headers that
    the compiler had read, as far as it is known of one that died; None where it does not say.
    `files` is as in `Compiled`. `missing` lists the paths at which a header was looked for in vain,
    if that ended the build.
    """

    kind: str
    log: str
    command: tuple[str, ...]
    backend: str
    signal: int | None = None
    milliseconds: float = 0.0
    trace: tuple[str, ...] | None = ()
    files: FileSet | None = None
    missing: tuple[str, ...] = ()

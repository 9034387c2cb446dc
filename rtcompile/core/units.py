"""What one run of a compiler or linker is given, and what it gives. A hit imports none of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtcompile.core.arch import Arch
    from rtcompile.core.includes import Dependencies

__all__ = ["CompileFailure", "Compiled", "Limits", "LinkInput", "TranslationUnit"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a compiler may use before it is killed: `timeout` in seconds, `memory` in bytes."""

    timeout: float | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class LinkInput:
    """Bytes for the linker and what they are: "cubin", "ptx", "ltoir", "fatbin", "object", "archive"."""

    kind: str
    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class TranslationUnit:
    """What one run of a compiler is given: all decided, nothing left to find."""

    source: str
    name: str
    flags: tuple[str, ...]
    name_expressions: tuple[str, ...]
    target: str
    arch: Arch


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one run of a compiler gave.

    `trace` lists the headers it read, as spelled by the compiler, in order of first inclusion;
    None where the compiler does not say, and nobody can tell later whether they changed.
    `milliseconds` maps phases ("queue", "compile", "link", …) to their duration. `before` is what a
    precompiled header, which stood for the first of `trace`, depended on.
    """

    code: bytes
    kind: str
    lowered_names: Mapping[str, str]
    log: str
    trace: tuple[str, ...] | None
    milliseconds: Mapping[str, float]
    notes: tuple[str, ...] = ()
    before: Dependencies | None = None


@dataclass(frozen=True, slots=True)
class CompileFailure:
    """Why there is no code. Crosses processes as a value; errors are raised at the public edge.

    `kind` is "error" (the compiler refused the source), "link", "crash" (`signal` says which),
    "timeout", "memory", or "start" (the compiler could not be run). `trace` lists the headers that the
    compiler had read, as far as it is known of one that died; None where it does not say.
    """

    kind: str
    log: str
    command: tuple[str, ...]
    backend: str
    signal: int | None = None
    milliseconds: float = 0.0
    trace: tuple[str, ...] | None = ()

"""Builds CuPy's kernels that the look-up did not find."""

from __future__ import annotations

import sys

from rtcompile.build import planned
from rtcompile.errors import CompileError, ToolkitNotFound, warn
from rtcompile.lookup.find import Query
from rtcompile.request.object_code import ObjectCode

_warned_of_missing_toolkit = False

# Kernels of CuPy that a program builds, which open with the same headers: 31 everyday operations take 49.
_OWN_KERNELS = 49
_OWN_HEADERS = "#include <cupy/"


def build(query: Query) -> ObjectCode | None:
    """Build a CuPy request that was not found; None if CuPy has to compile it itself."""
    global _warned_of_missing_toolkit
    settings = query.settings
    try:
        found = planned.search(query)
        return _compiled(query) if found is None else found
    except CompileError as error:
        if settings.dump_source_on_error:
            error.dump(sys.stderr)
        raise
    except ToolkitNotFound as missing:
        if not settings.jit:  # otherwise CuPy would compile it
            raise
        if not _warned_of_missing_toolkit:
            _warned_of_missing_toolkit = True
            warn(f"rtcompile.install(): {missing} Until then CuPy compiles its kernels itself.")
        return None


def _compiled(query: Query) -> ObjectCode:
    from rtcompile.compilers import pch  # takes 5 ms, which hits do not need

    is_own = query.request.source.startswith(_OWN_HEADERS)
    token = pch.expected.set(_OWN_KERNELS if is_own else pch.expected.get())
    try:
        return planned.compile(query)
    finally:
        pch.expected.reset(token)

"""Builds CuPy's kernels that the look-up did not find, and precompiles their headers ahead of time."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

from rtcompile.build import planned
from rtcompile.errors import CompileError, RtcompileError, ToolkitNotFound, warn
from rtcompile.frontends.cupy_requests import CUB_INCLUDES
from rtcompile.lookup.find import Query
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.settings import Settings

_warned_of_missing_toolkit = False


def build(query: Query, *, ahead: bool) -> ObjectCode | None:
    """Build a CuPy request that was not found; None if CuPy has to compile it itself."""
    global _warned_of_missing_toolkit
    settings = query.settings
    try:
        found = planned.search(query)
        if found is None:
            if ahead:
                precompile_ahead(query.request, settings)
            found = planned.compile(query)
        return found
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


# --- The headers of CuPy's own kernels --------------------------------------------------------------

MAKER = "rtcompile-ahead"  # the name of the thread that precompiles headers
# The program and its compiler need one core. CUB's headers occupy another for two seconds.
_LEAST_CORES, _CORES_FOR_CUB = 2, 4

# From `cupy/_core/_cub_reduction.pyx`.
_CUB_OPTIONS = ("--std=c++17", "-DCUB_DISABLE_BF16_SUPPORT")

_begun = threading.Lock()  # taken once, and never released


def precompile_ahead(request: CompileRequest, settings: Settings) -> None:
    """Start to precompile CuPy's headers, without waiting, at a process's first build of its kernels."""
    if not (settings.pch and settings.cache_on_disk) or request.backend == "nvcc":
        return
    if not request.source.startswith(own_includes()) or not _begun.acquire(blocking=False):
        return
    cores = len(os.sched_getaffinity(0))
    if cores < _LEAST_CORES:
        return
    # This runs in a thread, since the build's own compiler has to start first.
    with suppress(RuntimeError):  # there are too many threads, or the interpreter is shutting down
        threading.Thread(
            target=_make, args=(request, settings, cores), name=MAKER, daemon=True
        ).start()


def _make(request: CompileRequest, settings: Settings, cores: int) -> None:
    from rtcompile.build import miss

    with suppress(RtcompileError, OSError):  # the builds meet the same error and report it
        for source, options in openings(cores):
            opening = request.replace(source=source, options=options, name_expressions=())
            miss.precompile(planned.plan(opening, settings), settings)


def openings(cores: int) -> list[tuple[str, tuple[str, ...]]]:
    """Return the leading includes and the options of CuPy's kernels."""
    from cupy import _environment
    from cupy._core import _accelerator

    own = own_includes()
    found = [(own, _assembled(()))]
    by_cub = _accelerator.ACCELERATOR_CUB in _accelerator.get_reduction_accelerators()
    if cores >= _CORES_FOR_CUB and by_cub and _environment.get_cub_path() == "<bundle>":
        found.append((f"{own}\n{CUB_INCLUDES}", _assembled(_CUB_OPTIONS)))
    return found


def _assembled(options: tuple[str, ...]) -> tuple[str, ...]:
    from cupy._core import core

    return (*core.assemble_cupy_compiler_options(options), "-ftz=true")


def own_includes() -> str:
    from cupy._core import core

    return "".join(f"#include <{header}>\n" for header in core._cupy_header_list)

"""Measures one compile by NVRTC, for profiles: all that the extra `rtcompile.extras.devtools` needs of the core."""

from __future__ import annotations

import os
import time
from functools import partial

from rtcompile.build import miss, planned
from rtcompile.build.plan import Plan
from rtcompile.compilers import nvrtc
from rtcompile.errors import InvalidRequest, JitDisabled
from rtcompile.lookup.find import query_of
from rtcompile.request.request import CompileRequest
from rtcompile.request.units import CompileFailure, Limits
from rtcompile.settings import Settings

# The fields are the program, the architecture, the compiler, the milliseconds from the request to a worker until the
# code is available, and those of each phase. The last field is NVRTC's own trace of a second compile: each event has a
# name, its start and duration in microseconds, and a detail.
Measured = tuple[str, str, str, float, dict[str, float], list[tuple[str, float, float, str]]]


def measure(request: CompileRequest, settings: Settings) -> Measured:
    """Compile a request by NVRTC without the cache or a precompiled header, and return its times."""
    if not settings.jit:
        raise JitDisabled(
            f"{request.name}: a profile compiles it anew; RTCOMPILE_JIT=0 forbids compiling it"
        )
    query = query_of(request, settings)
    attempt = miss.Attempt(planned.plan_of(query))
    build = miss.Miss(query)
    if attempt.plan.key_inputs.backend != "nvcc":
        attempt, found = build.with_added_flags(attempt, partial(_measured, build.limits))
        if not isinstance(found, CompileFailure):
            return found
        build.retried_by_nvcc(attempt, found)  # raises NVRTC's error, if that is final
    raise InvalidRequest(
        f"{request.name} is built by NVCC, and only NVRTC can be profiled here; `nvcc --time` and "
        "`nvcc --fdevice-time-trace` write NVCC's own profiles"
    )


def _measured(limits: Limits, plan: Plan) -> Measured | CompileFailure:
    library = plan.toolchain.require_nvrtc()
    unit = miss.unit_for_nvrtc(plan, plan.request.name_expressions)
    begin = time.monotonic()
    outcome = nvrtc.compile(unit, library, limits=limits, search=plan.search)
    milliseconds = (time.monotonic() - begin) * 1e3
    if isinstance(outcome, CompileFailure):
        return outcome
    traced = nvrtc.observe(unit, library, limits, traced=True)
    return (
        os.path.basename(plan.key_inputs.name),
        str(plan.choice.arch),
        f"nvrtc {library.version}",
        milliseconds,
        {**outcome.milliseconds},
        [] if isinstance(traced, CompileFailure) else traced["events"],
    )

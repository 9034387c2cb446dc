"""Measures one compile by NVRTC: the port of profiles, with what the extra `rtcompile.extras.devtools` imports."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from rtcompile.build import miss, planned
from rtcompile.build.failures import as_error
from rtcompile.build.plan import Plan
from rtcompile.compilers import nvrtc
from rtcompile.errors import InvalidRequest, JitDisabled
from rtcompile.named import NamedTuple
from rtcompile.request.request import CompileRequest
from rtcompile.request.units import CompileFailure, Limits
from rtcompile.settings import Settings
from rtcompile.store.store import Store


class Measured(NamedTuple):
    """A compile by NVRTC without a cache and a precompiled header."""

    program: str
    arch: str
    compiler: str
    milliseconds: float  # from the request to a worker until the code is available
    phases: Mapping[str, float]  # as the `milliseconds` of a `Compiled`
    # Of a second compile, NVRTC's own trace: name, begin and duration in microseconds, and detail.
    events: list[tuple[str, float, float, str]]


def measure(request: CompileRequest, settings: Settings) -> Measured:
    """Compile a request without the cache, and return its times."""
    if not settings.jit:
        raise JitDisabled(
            f"{request.name}: a profile compiles it anew; RTCOMPILE_JIT=0 forbids compiling it"
        )
    plan = planned.plan(request, settings)
    found = None if plan.key_inputs.backend == "nvcc" else _measured(plan, settings)
    if not isinstance(found, Measured):
        # After an error, the real build shows whether it needs another flag or NVCC.
        aside = Store(settings.cache_dir, on_disk=False, size=settings.cache_size)
        build = miss.Miss(plan, settings.override(pch=False), aside, lambda: "a profile")
        with aside.building(plan.key_inputs):
            built, plan = build.built()
        if built.obj.build.backend == "nvcc":
            raise InvalidRequest(
                f"{request.name} is built by NVCC, and a profile is of NVRTC; `nvcc --time` and "
                "`nvcc --fdevice-time-trace` write NVCC's own"
            )
        found = _measured(plan, settings)
        if isinstance(found, CompileFailure):
            raise as_error(found, plan)
    return found


def _measured(plan: Plan, settings: Settings) -> Measured | CompileFailure:
    library = plan.toolchain.require_nvrtc()
    unit = miss.unit_for_nvrtc(plan, plan.request.name_expressions)
    limits = Limits(settings.timeout, settings.memory_limit)
    begin = time.monotonic()
    reply = nvrtc.observe(unit, library, limits)
    milliseconds = (time.monotonic() - begin) * 1e3
    if isinstance(reply, CompileFailure):
        return reply
    if reply["error"]:
        return CompileFailure(reply["error"], reply["log"], unit.flags, "nvrtc")
    traced = nvrtc.observe(unit, library, limits, traced=True)
    return Measured(
        os.path.basename(plan.key_inputs.name),
        str(plan.choice.arch),
        f"nvrtc {library.version}",
        milliseconds,
        reply["milliseconds"],
        [] if isinstance(traced, CompileFailure) else traced["events"],
    )

"""A worker that died becomes a `CompileFailure` that says why."""

from __future__ import annotations

from rtcompile.core.units import CompileFailure, Limits
from rtcompile.workers.pool import Death

__all__ = ["failure"]


def failure(death: Death, command: tuple[str, ...], backend: str, limits: Limits) -> CompileFailure:
    """Return what the caller is told of a job that gave no answer."""
    reasons = {
        "crash": f"The compiler died by signal {death.signal}."
        if death.signal
        else "The compiler's process exited without an answer.",
        "timeout": f"The compiler was killed after its time limit of {limits.timeout} s.",
        "memory": f"The compiler was killed beyond its memory limit of {limits.memory} bytes.",
        "start": f"The compiler could not be run: {death.text}",
    }
    return CompileFailure(
        death.kind, reasons[death.kind], command, backend, signal=death.signal or None
    )

"""Turns a crash of a worker into a `CompileFailure` that says why."""

from __future__ import annotations

import signal

from rtcompile.core.units import CompileFailure, Limits
from rtcompile.workers.pool import Crash

# NVRTC maps files in its temporary folder, and gets this signal if they cannot be written.
_MEANINGS: dict[int, str] = {
    signal.SIGBUS: ": it may be that the folder for temporary files (TMPDIR) is full"
}


def failure(death: Crash, command: tuple[str, ...], backend: str, limits: Limits) -> CompileFailure:
    """Return the failure for a job that gave no answer."""
    reasons = {
        "crash": f"The compiler died by signal {death.signal}{_MEANINGS.get(death.signal, '')}."
        if death.signal
        else "The compiler's process exited without an answer.",
        "timeout": f"The compiler was killed after its time limit of {_seconds(limits)} s.",
        "memory": f"The compiler was killed beyond its memory limit of {limits.memory} bytes.",
        "start": f"The compiler could not be run: {death.text}",
    }
    return CompileFailure(
        death.kind, reasons[death.kind], command, backend, signal=death.signal or None
    )


def _seconds(limits: Limits) -> str:
    # A build that had to wait for another one, if only for a moment, was given what was left.
    seconds = limits.timeout or 0.0
    return f"{round(seconds, 2) or seconds:g}"

"""A compiler that died."""

from __future__ import annotations

from rtcompile.messages import facts
from rtcompile.messages.known import KnownMessage, row

ROWS: tuple[KnownMessage, ...] = (
    row(
        "out-of-memory",
        r"died due to signal 9|beyond its memory limit|Killed|NVRTC_ERROR_OUT_OF_MEMORY",
        "The compiler was killed for the memory it used.",
        "Lower RTCOMPILE_JOBS, raise memory_limit=, or split the source: one heavily instantiated "
        "template can take gigabytes.",
        "any",
    ),
    row(
        "timeout",
        r"killed after its time limit",
        "The compiler did not finish in time.",
        "Raise timeout= (seconds; RTCOMPILE_TIMEOUT), or look for exponential templates: a chain "
        "of nested function types never ends.",
        "any",
    ),
    row(
        "crash-in-cute",
        r"died (?:by|due to) signal (?P<signal>\d+)|Segmentation fault|Aborted",
        "The compiler itself crashed ({how}) on CuTe or CUTLASS code; this is its bug.",
        "What has helped: UniversalCopy in place of a cp.async or TMA atom, a destination tensor "
        "with a contiguous layout, a newer toolkit than {compiler}, backend='{other}'.",
        "any",
        facts.signal_in_cute,
    ),
    row(
        "crash",
        r"died (?:by|due to) signal (?P<signal>\d+)|Segmentation fault|Aborted",
        "The compiler itself crashed ({how}); this is its bug, not the source's.",
        "Try backend='{other}', the other compiler, or a newer toolkit than {compiler}; the "
        "reproducer is what NVIDIA needs to mend it.",
        "any",
        facts.signal,
    ),
    row(
        "code-generator",
        r"Internal Compiler Error|internal error",
        "The compiler's code generator gave up; this is its bug, not the source's.",
        "Try another -std, less inline assembly, the other compiler, or a newer toolkit than "
        "{compiler}.",
        "NVRTC 12.4",
    ),
)

"""Errors for code that the driver refused to load or to launch, with what is known of that code."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from rtcompile.core import cubin
from rtcompile.core.arch import Arch
from rtcompile.errors import DriverError
from rtcompile.messages import hints
from rtcompile.messages.facts import BuildContext


def driver_error(
    said: str,
    status: int,
    program: str,
    *,
    code: bytes = b"",
    capability: tuple[int, int] | None = None,
) -> DriverError:
    """Return the error for code that the driver did not load, whose error name and text are `said`."""
    arch = arch_of(code)
    what = "" if arch is None else f" (compiled for {arch})"
    first = f"{program}{what} was not loaded: {said}"
    hint = hints.hint_for(said, BuildContext(arch=arch, capability=capability))
    return DriverError(f"{first}\n  hint: {hint}" if hint else first, status)


def arch_of(code: bytes) -> Arch | None:
    """Return what a cubin or PTX was compiled for; None where it does not say."""
    try:
        return cubin.read(code).arch
    except ValueError:
        target = re.search(rb"^\s*\.target\s+(sm_\d+[af]?)", code, re.MULTILINE)
        return Arch.parse(target[1].decode()) if target else None


def launch_error(
    said: str, status: int, kernel: str, block: Any, shared: Any, limits: Mapping[str, int]
) -> DriverError:
    """Return the error for a launch that the driver refused.

    `limits` has the kernel's "threads" in a block, and bytes of "dynamic" and "static" shared
    memory. It is empty where the driver gives none.
    """
    problems = []
    threads = _product(block)
    most, dynamic, static = (limits.get(name, 0) for name in ("threads", "dynamic", "static"))
    if limits and isinstance(shared, int) and shared > dynamic:
        problems.append(
            f"shared_mem={shared} is more than the {dynamic} bytes of dynamic shared memory that "
            f"the kernel may have now ({static} are static); set "
            f"kernel.max_dynamic_shared_size_bytes = {shared} first."
        )
    if limits and threads > most:
        problems.append(
            f"{threads} threads in a block are more than the {most} that the kernel's registers "
            "and __launch_bounds__ allow; take smaller blocks."
        )
    hint = " ".join(problems) or hints.hint_for(said)
    first = f"the launch of {kernel} was refused: {said}"
    return DriverError(f"{first}\n  hint: {hint}" if hint else first, status)


def _product(block: Any) -> int:
    try:
        return math.prod(map(int, block))
    except (TypeError, ValueError):
        return 0

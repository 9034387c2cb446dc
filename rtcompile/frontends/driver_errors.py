"""Errors for code that the driver does not load or launch, with facts about that code."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rtcompile import cubin
from rtcompile.errors import DriverError, InvalidRequest, RtcompileError
from rtcompile.lookup import find as lookup
from rtcompile.messages import catalogue
from rtcompile.messages.facts import BuildContext
from rtcompile.request.values import Arch

if TYPE_CHECKING:
    from rtcompile.frontends.lazy_code import LazyCode
    from rtcompile.request.object_code import ObjectCode


_NOT_FOUND = 500


def load_error(error: Any, program: str, code: bytes | str = b"") -> DriverError:
    """Return the error for a program that the driver did not load; `code` is its code, or its path."""
    if isinstance(error, DriverError):  # there is no device, as its message says
        return error
    capability = None
    with suppress(RtcompileError):
        capability = lookup.compute_capability()
    if isinstance(code, str):
        path, code = code, b""
        with suppress(RtcompileError):  # the driver's message names a file that does not exist
            code = read(path)
    arch: Arch | None
    try:
        arch = cubin.read(code).arch
    except ValueError:
        target = re.search(rb"^\s*\.target\s+(sm_\d+[af]?)", code, re.MULTILINE)
        arch = Arch.parse(target[1].decode()) if target else None
    compiled_for = "" if arch is None else f" (compiled for {arch})"
    first = f"{program}{compiled_for} was not loaded: {error}"
    hint = catalogue.hint_for(str(error), BuildContext(arch=arch, capability=capability))
    return DriverError(f"{first}\n  hint: {hint}" if hint else first, error.status)


def of_launch(kernel: Any, message: str, status: int, block: Any, shared: Any) -> DriverError:
    """Return the error for a launch of a `RawKernel` that the driver rejected with `message`."""
    problems = []
    with suppress(Exception):  # every query fails in a context that an earlier error destroyed
        threads, most = math.prod(map(int, block)), kernel.max_threads_per_block
        static, dynamic = kernel.shared_size_bytes, kernel.max_dynamic_shared_size_bytes
        if isinstance(shared, int) and shared > dynamic:
            problems.append(
                f"shared_mem={shared} is more than the {dynamic} bytes of dynamic shared memory "
                f"that the kernel may have now ({static} are static); set "
                f"kernel.max_dynamic_shared_size_bytes = {shared} first."
            )
        if threads > most:
            problems.append(
                f"{threads} threads in a block are more than the {most} that the kernel's registers "
                "and __launch_bounds__ allow; take smaller blocks."
            )
    hint = " ".join(problems) or catalogue.hint_for(message)
    first = f"the launch of {kernel.name} was rejected: {message}"
    return DriverError(f"{first}\n  hint: {hint}" if hint else first, status)


def of_name(lazy: LazyCode, error: Any, kind: str, name: str) -> DriverError:
    """Return the error for a kernel or a variable that the driver did not find."""
    if error.status != _NOT_FOUND:
        return load_error(error, lazy.program)
    reported = "CUDA_ERROR_NOT_FOUND: named symbol not found"
    message = _absent(lazy, lazy.object_code(), kind, name)
    return DriverError(f"{message}\n  The driver says {reported}.", _NOT_FOUND)


def check_kernel(lazy: LazyCode, built: ObjectCode, name: str) -> None:
    """Raise, without a device, the error of `of_name` if code has no kernel of a name."""
    if name not in cubin.kernel_symbols(built.code):
        raise DriverError(_absent(lazy, built, "kernel", name), _NOT_FOUND)


def _absent(lazy: LazyCode, built: ObjectCode | None, kind: str, name: str) -> str:
    return cubin.absent(
        kind,
        name,
        read(lazy.path) if built is None else built.code,
        program=lazy.program,
        source=lazy.arguments["code"] or "",
        lowered={} if built is None else built.lowered_names,
    )


def read(path: str | None) -> bytes:
    """Return the contents of a module's file."""
    try:
        with open(path or "", "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidRequest(f"no module can be read from {path!r}: {error.strerror}") from None

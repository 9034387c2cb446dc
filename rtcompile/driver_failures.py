"""What is said when the driver refuses a kernel's code, or finds no such name in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rtcompile.errors import DriverError, InvalidRequest, RtcompileError
from rtcompile.lookup import device
from rtcompile.messages import driver

if TYPE_CHECKING:
    from rtcompile.lazy_code import LazyCode

_NOT_FOUND = 500
_NOT_FOUND_WORDS = "CUDA_ERROR_NOT_FOUND: named symbol not found"


def refused(error: Any, program: str, code: bytes | str = b"") -> DriverError:
    """Return the error for what the driver said of a program; `code` is its code, or its file."""
    capability = None
    with suppress(RtcompileError):
        capability = device.compute_capability()
    if isinstance(code, str):
        path, code = code, b""
        with suppress(RtcompileError):  # the driver has said that there is no such file
            code = read(path)
    return driver.driver_error(str(error), error.status, program, code=code, capability=capability)


def of_kernel(lazy: LazyCode, error: Any, name: str) -> DriverError:
    """Return the error for what the driver said when it was asked for a kernel."""
    from rtcompile.messages.absent import kernel_absent

    return _of_name(lazy, error, kernel_absent, name, source=lazy.arguments["code"] or "")


def of_variable(lazy: LazyCode, error: Any, name: str) -> DriverError:
    """Return the error for what the driver said when it was asked for a variable."""
    from rtcompile.messages.absent import variable_absent

    return _of_name(lazy, error, variable_absent, name)


def _of_name(
    lazy: LazyCode, error: Any, explain: Callable[..., str], name: str, **more: str
) -> DriverError:
    if error.status != _NOT_FOUND:
        return refused(error, lazy.program)
    built = lazy.object_code()
    code = read(lazy.path) if built is None else built.code
    names = {} if built is None else built.lowered_names
    said = explain(name, code, program=lazy.program, lowered_names=names, **more)
    return DriverError(f"{said}\n  The driver says {_NOT_FOUND_WORDS}.", _NOT_FOUND)


def read(path: str | None) -> bytes:
    """Return what is in a module's file."""
    try:
        with open(path or "", "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidRequest(f"no module can be read from {path!r}: {error.strerror}") from None

"""Typical mistakes as data: the source, and the text of the error's first line.

`docs/mistakes.md` shows them in Python, at the command and in a notebook; tests read them too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from tests.tables import rows

__all__ = ["FORTY", "MISTAKES", "Mistake", "pretended_device"]


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    `message` is in the first line of the error, `hint` in the rest of it. `kernel` is the name requested from
    the module; a mistake that `compiles` appears only at this request.
    """

    name: str
    source: str
    message: str
    hint: str = ""
    options: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    arch: str = "sm_80"
    kernel: str = "k"
    compiles: bool = False
    timeout: float | None = None
    fallback: str | None = "never"

    def module(self) -> Any:
        """Return its `RawModule`."""
        from rtcompile import RawModule

        return RawModule(
            code=self.source,
            options=self.options,
            name_expressions=self.names or None,
            arch=self.arch,
            fallback=self.fallback,
            timeout=self.timeout,
        )


def body(text: str, parameters: str = "float* x") -> str:
    return f'extern "C" __global__ void k({parameters}) {{\n  {text}\n}}\n'


def mistakes(file: str, fallback: str | None) -> tuple[Mistake, ...]:
    """Return the mistakes of a table."""
    found = []
    for name, message, hint, how, source in rows(file):
        if "options" in how:
            how["options"] = (how["options"],)
        found.append(Mistake(name, source, message, hint, fallback=fallback, **how))  # type: ignore[arg-type]
    return tuple(found)


MISTAKES = mistakes("mistakes.txt", "never")
# The whole message of these is tested; `make mistakes` writes it to ``docs/mistakes.md``.
FORTY = mistakes("forty_mistakes.txt", None)


@contextmanager
def pretended_device() -> Iterator[None]:
    """Let modules load and find their kernels without a GPU, with the driver's errors."""
    import cupy

    from rtcompile.cubin import kernel_symbols
    from rtcompile.frontends import lazy_code, raw_kernel

    class DriverError(cupy.cuda.driver.CUDADriverError):
        def __init__(self, status: int, words: str) -> None:
            Exception.__init__(self, words)  # CuPy's own queries the driver for the text
            self.status = status

    class Loaded:
        def __init__(self, code: bytes, names: tuple[tuple[str, str], ...]) -> None:
            self.symbols, self.mapping = kernel_symbols(code), dict(names)

        def get_function(self, name: str) -> Any:
            if name not in self.symbols:
                raise DriverError(500, "CUDA_ERROR_NOT_FOUND: named symbol not found")
            return mock.Mock(name=name)

        def get_global_var(self, name: str) -> Any:
            raise DriverError(500, "CUDA_ERROR_NOT_FOUND: named symbol not found")

    def load(code: bytes | str, names: tuple[tuple[str, str], ...]) -> Any:
        if isinstance(code, str):
            raise DriverError(301, "CUDA_ERROR_FILE_NOT_FOUND: file not found")
        if b"for sm_90a only" in code:
            raise DriverError(209, "CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available")
        return Loaded(code, names)

    with (
        mock.patch.object(raw_kernel, "current_device", return_value=0),
        mock.patch.object(lazy_code, "current_device", return_value=0),
        mock.patch.object(lazy_code, "_load", load),
    ):
        yield

"""The code of a `RawModule` or `RawKernel`, built when it is first wanted, loaded on each device."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

import cupy
from cupy.cuda.function import Module

from rtcompile import device, logs, pipeline
from rtcompile.core.arch import Arch
from rtcompile.core.request import (
    DEFAULT_NAME,
    CompileRequest,
    ObjectCode,
    one_of,
    text,
    truth,
)
from rtcompile.errors import (
    CompileError,
    DriverError,
    InvalidRequest,
    JitifyError,
    RtcompileError,
    adopt_cupy,
)
from rtcompile.settings import Settings

if TYPE_CHECKING:
    from rtcompile.report import Report

__all__ = [
    "BACKENDS",
    "CUDADriverError",
    "CUDARuntimeError",
    "LazyCode",
    "current_device",
    "ordinal",
]

adopt_cupy()
current_device = cupy.cuda.runtime.getDevice
CUDADriverError = cupy.cuda.driver.CUDADriverError
CUDARuntimeError = cupy.cuda.runtime.CUDARuntimeError

BACKENDS = ("nvrtc", "nvcc")
_NOT_FOUND = 500
_NOT_FOUND_WORDS = "CUDA_ERROR_NOT_FOUND: named symbol not found"

# cuComplex.h is replaced by CuPy's complex types where translate_cucomplex asks for it.
_CUCOMPLEX = r"(?m)^[ \t]*#[ \t]*include[ \t]*<[ \t]*cuComplex\.h[ \t]*>[^\n]*"
_CUPY_HEADERS = tuple(
    f"--pre-include=cupy/{header}"
    for header in ("complex.cuh", "carray.cuh", "atomics.cuh", "math_constants.h")
)


class LazyCode:
    """What `RawModule` and `RawKernel` share: the arguments of one build, and its results.

    What it built it keeps, per device: an instance builds once, as CuPy's does. A *new* `RawModule`
    of the same source asks the cache again, and so sees an edited header.
    """

    __slots__ = ("arguments", "modules", "objects", "path", "request")

    def __init__(
        self,
        *,
        code: str | None,
        path: str | None,
        options: Sequence[str] | str,
        backend: str,
        translate_cucomplex: bool,
        enable_cooperative_groups: bool,
        name_expressions: Iterable[str] | None,
        jitify: bool | None,
        arch: str | Arch | None,
        link: Sequence[Any],
        fallback: str | None,
        pch: bool | None,
        timeout: float | None,
        memory_limit: int | str | None,
        name: str = DEFAULT_NAME,
    ) -> None:
        backend = one_of("backend", backend, BACKENDS)
        if jitify and backend != "nvrtc":
            raise InvalidRequest("jitify=True is for backend='nvrtc'")
        translate_cucomplex = truth("translate_cucomplex", translate_cucomplex)
        # Checked now, whatever the environment says when the build is made.
        Settings("").override(
            fallback=fallback, pch=pch, timeout=timeout, memory_limit=memory_limit
        )
        request = CompileRequest(
            source="" if code is None else text("code", code),
            options=options,
            arch=arch,
            name_expressions=() if name_expressions is None else name_expressions,
            backend="nvcc" if backend == "nvcc" else "auto",
            link=link,
            name=name,
        )
        self.arguments: dict[str, Any] = {
            "code": None if code is None else request.source,
            "path": path,
            "options": request.options,
            "backend": backend,
            "translate_cucomplex": translate_cucomplex,
            "enable_cooperative_groups": truth(
                "enable_cooperative_groups", enable_cooperative_groups
            ),
            "name_expressions": None if name_expressions is None else request.name_expressions,
            "jitify": jitify,
            "arch": arch,
            "link": request.link,
            "fallback": fallback,
            "pch": pch,
            "timeout": timeout,
            "memory_limit": memory_limit,
            "name": request.name,
        }
        self.path = path
        self.modules: dict[int, Any] = {}
        self.objects: dict[int | None, ObjectCode] = {}
        self.request = None if code is None else request
        if translate_cucomplex and code is not None:
            source = re.sub(_CUCOMPLEX, "#include <cupy/cuComplex_bridge.h>", request.source)
            options = (*request.options, *_CUPY_HEADERS)
            self.request = request.replace(source=source, options=options)

    def module(self) -> Any:
        """Return CuPy's module of this build on the current device, built and loaded if need be."""
        found = self.modules.get(ordinal())
        return self.rebuild() if found is None else found

    def rebuild(self, log_stream: IO[str] | None = None) -> Any:
        """Ask the cache and, failing that, a compiler; load the code on the current device."""
        logs.check_stream(log_stream)
        place = ordinal()
        if self.request is None:
            module = _loaded(_load_file, self.path, program=self.path)
        else:
            code = self._compiled(self.request)
            if log_stream is not None:
                log_stream.write(code.build.log)
            self.objects[self._place()] = code
            names = tuple(code.lowered_names.items())
            module = _loaded(_load, code.code, names, program=self.request.name)
        self.modules[place] = module
        return module

    def function(self, name: str) -> Any:
        """Return CuPy's function of a kernel on the current device."""
        module = self.module()
        try:
            return module.get_function(name)
        except CUDADriverError as error:
            if error.status != _NOT_FOUND:
                raise _driver_error(error, self.program) from None
        from rtcompile.messages.absent import kernel_absent

        raise self._absent(kernel_absent, name, source=self.arguments["code"] or "")

    def variable(self, find: Callable[[str], Any], name: str) -> Any:
        """Return what CuPy's `find` gives for a variable of the module."""
        try:
            return find(name)
        except CUDADriverError as error:
            if error.status != _NOT_FOUND:
                raise _driver_error(error, self.program) from None
        from rtcompile.messages.absent import variable_absent

        raise self._absent(variable_absent, name)

    @property
    def program(self) -> str:
        """What messages call it."""
        return self.path or (self.request.name if self.request is not None else "")

    def _absent(self, explain: Callable[..., str], name: str, **more: str) -> DriverError:
        built = self.object_code()
        code = _read(self.path) if built is None else built.code
        names = {} if built is None else built.lowered_names
        said = explain(name, code, program=self.program, lowered_names=names, **more)
        return DriverError(f"{said}\n  The driver says {_NOT_FOUND_WORDS}.", _NOT_FOUND)

    def _compiled(self, request: CompileRequest) -> ObjectCode:
        arguments = self.arguments
        if arguments["jitify"]:
            # Jitify looks in the working directory too, after all else.
            request = request.replace(options=(*request.options, "-idirafter", os.getcwd()))
        settings = Settings.from_environ().override(
            fallback=arguments["fallback"],
            pch=arguments["pch"],
            timeout=arguments["timeout"],
            memory_limit=arguments["memory_limit"],
        )
        try:
            return pipeline.build(pipeline.for_this_device(request, settings), settings)
        except CompileError as error:
            if settings.dump_source_on_error:
                error.dump(sys.stderr)
            # Code written for Jitify catches JitifyException, which is no CompileException.
            if arguments["jitify"] and type(error) is CompileError:
                values, state = error.__reduce__()[1:]
                jitify_error = JitifyError(*values)
                jitify_error.__dict__.update(state)
                raise jitify_error from None
            raise

    def object_code(self) -> ObjectCode | None:
        """Return the code for the current device, or for `arch` without one; None for a file."""
        if self.request is None:
            return None
        place = self._place()
        if place not in self.objects:
            self.objects[place] = self._compiled(self.request)
        return self.objects[place]

    def report(self, kernel: str | None, block: int | None, dynamic_shared: int) -> Report:
        """Report on the code for the current device, or on the file's."""
        from rtcompile.report import report

        code: ObjectCode | bytes | None = self.object_code()
        if code is None:
            code = _read(self.path)
        return report(code, kernel=kernel, block=block, dynamic_shared=dynamic_shared)

    def _place(self) -> int | None:
        assert self.request is not None
        return None if self.request.arch is not None else ordinal()


def _from_code(code: bytes, lowered_names: tuple[tuple[str, str], ...]) -> Any:
    module = Module()
    module.load(code)
    module._set_mapping(dict(lowered_names))
    return module


def _from_file(path: str) -> Any:
    module = Module()
    module.load_file(path)
    return module


# Two modules of the same code share one loaded module per device, and so their __constant__ and
# __device__ variables, as they do in CuPy; cupy.clear_memo() forgets these too.
_load = cupy.memoize(for_each_device=True)(_from_code)
_load_file = cupy.memoize(for_each_device=True)(_from_file)

# CuPy's memo has no lock: two threads would load one module twice, each with variables of its own.
_loading = threading.Lock()


def ordinal() -> int:
    """Return the number of the current device.

    Raises
    ------
    UnsupportedArch
        There is none.
    """
    try:
        return int(current_device())
    except CUDARuntimeError as error:
        raise device.no_device(str(error)) from None


def _loaded(load: Callable[..., Any], *given: Any, program: str | None) -> Any:
    """Load a module on the current device.

    Raises
    ------
    DriverError
        The driver refuses it; the message says which architectures they are.
    """
    try:
        with _loading:
            return load(*given)
    except CUDADriverError as error:
        code = given[0] if isinstance(given[0], bytes) else _read(given[0])
        raise _driver_error(error, program or "", code) from None


def _driver_error(error: Any, program: str, code: bytes = b"") -> DriverError:
    from rtcompile.messages.driver import driver_error

    capability = None
    with suppress(RtcompileError):
        capability = device.compute_capability()
    return driver_error(str(error), error.status, program, code=code, capability=capability)


def _read(path: str | None) -> bytes:
    try:
        with open(path or "", "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidRequest(f"no module can be read from {path!r}: {error.strerror}") from None

"""`RawModule` and `RawKernel`: CuPy's classes, with rtcompile behind them.

They subclass CuPy's, so ``isinstance`` holds and a launch is CuPy's own: `kernel` gives a ready
``cupy.cuda.function.Function``, one per device.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

import cupy
from cupy.cuda.function import Module

from rtcompile import logs, pipeline
from rtcompile.core.arch import Arch
from rtcompile.core.request import (
    DEFAULT_NAME,
    BuildInfo,
    CompileRequest,
    ObjectCode,
    one_of,
    text,
    truth,
)
from rtcompile.core.request import path as checked_path
from rtcompile.errors import CompileError, InvalidRequest, JitifyError, adopt_cupy
from rtcompile.settings import Settings

if TYPE_CHECKING:
    from rtcompile.report import Report

__all__ = ["RawKernel", "RawModule"]

adopt_cupy()
_BACKENDS = ("nvrtc", "nvcc")
_current_device = cupy.cuda.runtime.getDevice

# cuComplex.h is replaced by CuPy's complex types where translate_cucomplex asks for it.
_CUCOMPLEX = r"(?m)^[ \t]*#[ \t]*include[ \t]*<[ \t]*cuComplex\.h[ \t]*>[^\n]*"
_CUPY_HEADERS = tuple(
    f"--pre-include=cupy/{header}"
    for header in ("complex.cuh", "carray.cuh", "atomics.cuh", "math_constants.h")
)


class _Build:
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
        backend = one_of("backend", backend, _BACKENDS)
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
        try:
            return self.modules[_current_device()]
        except KeyError:
            return self.rebuild()

    def rebuild(self, log_stream: IO[str] | None = None) -> Any:
        """Ask the cache and, failing that, a compiler; load the code on the current device."""
        logs.check_stream(log_stream)
        device = _current_device()
        if self.request is None:
            module = _load_file(self.path)
        else:
            code = self._compiled(self.request)
            if log_stream is not None:
                log_stream.write(code.build.log)
            self.objects[self._place()] = code
            with _loading:
                module = _load(code.code, tuple(code.lowered_names.items()))
        self.modules[device] = module
        return module

    def _compiled(self, request: CompileRequest) -> ObjectCode:
        arguments = self.arguments
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
                function, values, state = JitifyError, *error.__reduce__()[1:]
                jitify_error = function(*values)
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
            assert self.path is not None
            with open(self.path, "rb") as file:
                code = file.read()
        return report(code, kernel=kernel, block=block, dynamic_shared=dynamic_shared)

    def _place(self) -> int | None:
        assert self.request is not None
        return None if self.request.arch is not None else _current_device()


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


class _Built:
    """What a kernel and a module tell of their build."""

    _build: _Build

    @property
    def object_code(self) -> ObjectCode | None:
        """The code, built if need be (with `arch` it needs no device); None for a file's."""
        return self._build.object_code()

    @property
    def build(self) -> BuildInfo | None:
        """How `object_code` came to be: backend, cache hit, milliseconds, headers, log."""
        code = self.object_code
        return None if code is None else code.build


class RawKernel(_Built, cupy.RawKernel):  # type: ignore[misc]
    """A kernel from CUDA C++ source: `cupy.RawKernel`, built by rtcompile.

    Nothing is compiled before the first call. Each device gets its own build.

    Parameters
    ----------
    code : str
        CUDA C++ source.
    name : str
        The kernel's name in it.
    options : sequence of str, or str
        Compiler options, in NVRTC's or nvcc's spelling.
    backend : {"nvrtc", "nvcc"}
        ``"nvrtc"`` falls back to NVCC for what NVRTC cannot handle, unless `fallback` says no.
    translate_cucomplex : bool
        Replace ``cuComplex.h`` by CuPy's complex types.
    enable_cooperative_groups : bool
        Launch with ``cuLaunchCooperativeKernel``.
    jitify : bool, optional
        Accepted as CuPy's: headers are searched for anyway. A failed compile raises an error that
        is CuPy's ``JitifyException`` too.
    arch : str or Arch, optional
        Compile for this architecture and not for the current device's. One that the options name, and
        the device cannot run, is passed over with a `RtcompileWarning`.
    link, fallback, pch, timeout, memory_limit
        As in `rtcompile.compile`.

    Raises
    ------
    InvalidRequest
        An argument that cannot describe a build.
    CompileError
        At the first use, when the compiler refuses the source.
    """

    def __init__(
        self,
        code: str,
        name: str,
        options: Sequence[str] | str = (),
        backend: str = "nvrtc",
        *,
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        jitify: bool | None = None,
        arch: str | Arch | None = None,
        link: Sequence[Any] = (),
        fallback: str | None = None,
        pch: bool | None = None,
        timeout: float | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        build = _Build(
            code=text("code", code),
            path=None,
            options=options,
            backend=backend,
            translate_cucomplex=translate_cucomplex,
            enable_cooperative_groups=enable_cooperative_groups,
            name_expressions=None,
            jitify=None if jitify is None else truth("jitify", jitify),
            arch=arch,
            link=link,
            fallback=fallback,
            pch=pch,
            timeout=timeout,
            memory_limit=memory_limit,
        )
        self._bind(build, text("name", name))

    def _bind(self, build: _Build, name: str) -> None:
        arguments = build.arguments
        # CuPy's jitify argument is left out: giving it, even False, warns of its removal.
        super().__init__(
            arguments["code"],
            name,
            arguments["options"],
            arguments["backend"],
            translate_cucomplex=arguments["translate_cucomplex"],
            enable_cooperative_groups=arguments["enable_cooperative_groups"],
        )
        self._build = build
        self._functions: dict[int, Any] = {}

    @property
    def kernel(self) -> Any:
        """The ``cupy.cuda.function.Function`` on the current device, built if need be."""
        try:
            return self._functions[_current_device()]
        except KeyError:
            return self._kernel()

    def _kernel(self) -> Any:
        function = self._build.module().get_function(self.name)
        self._functions[_current_device()] = function
        return function

    def compile(self, log_stream: IO[str] | None = None) -> None:
        """Build now, for the current device, and write the compiler's log to `log_stream`."""
        self._functions.clear()
        self._build.rebuild(log_stream)
        self._kernel()

    @property
    def file_path(self) -> str | None:
        """The file of a kernel that came from ``RawModule(path=…)``."""
        return self._build.path

    def report(self, block: int | None = None, *, dynamic_shared: int = 0) -> Report:
        """Return what the kernel takes: registers, memory, and its occupancy.

        Parameters
        ----------
        block : int, optional
            Threads in a block, to compute the occupancy at; ``__launch_bounds__`` sets the default.
        dynamic_shared : int
            Bytes of dynamic shared memory at launch.

        Returns
        -------
        Report
            ``print`` shows a table; spills are in it with ``options=("-Xptxas=-v",)``.

        Raises
        ------
        InvalidRequest
            The code is PTX, which has no registers yet.
        """
        return self._build.report(self.name, block, dynamic_shared)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_kernel, (type(self), self._build.arguments, self.name)


class RawModule(_Built, cupy.RawModule):  # type: ignore[misc]
    """A module of CUDA kernels: `cupy.RawModule`, built by rtcompile.

    Nothing is compiled before the first use. Each device gets its own build.

    Parameters
    ----------
    code : str
        CUDA C++ source. Exactly one of `code` and `path` is given.
    path : path-like
        A cubin, PTX or fatbin file to load.
    options : sequence of str, or str
        Compiler options, in NVRTC's or nvcc's spelling.
    backend : {"nvrtc", "nvcc"}
        ``"nvrtc"`` falls back to NVCC for what NVRTC cannot handle, unless `fallback` says no.
    translate_cucomplex : bool
        Replace ``cuComplex.h`` by CuPy's complex types.
    enable_cooperative_groups : bool
        Launch with ``cuLaunchCooperativeKernel``.
    name_expressions : iterable of str
        C++ names, ``"f<float>"``, that `get_function` and `get_global` will be asked for.
    jitify : bool, optional
        Accepted as CuPy's: headers are searched for anyway. A failed compile raises an error that
        is CuPy's ``JitifyException`` too.
    arch : str or Arch, optional
        Compile for this architecture and not for the current device's.
    link, fallback, pch, timeout, memory_limit, name
        As in `rtcompile.compile`.

    Raises
    ------
    InvalidRequest
        An argument that cannot describe a build: neither or both of `code` and `path`, ….
    CompileError
        At the first use, when the compiler refuses the source.
    """

    def __init__(
        self,
        *,
        code: str | None = None,
        path: str | os.PathLike[str] | None = None,
        options: Sequence[str] | str = (),
        backend: str = "nvrtc",
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        name_expressions: Iterable[str] | None = None,
        jitify: bool | None = None,
        arch: str | Arch | None = None,
        link: Sequence[Any] = (),
        fallback: str | None = None,
        pch: bool | None = None,
        timeout: float | None = None,
        memory_limit: int | str | None = None,
        name: str = DEFAULT_NAME,
    ) -> None:
        if (code is None) == (path is None):
            given = "neither was" if code is None else "both were"
            raise InvalidRequest(f"exactly one of code= and path= must be given; {given}")
        jitify = None if jitify is None else truth("jitify", jitify)
        path = None if path is None else checked_path("path", path)
        if path is not None and (name_expressions is not None or jitify):
            raise InvalidRequest("name_expressions= and jitify= need code=, not path=")
        if name_expressions is not None and one_of("backend", backend, _BACKENDS) == "nvcc":
            # CuPy's words, which its users match; ours is the second half.
            raise InvalidRequest(
                "only nvrtc supports retrieving the mangled names for the given name expressions; "
                "with backend='nvrtc', fallback='always' builds with NVCC and retrieves them too"
            )
        self._build = _Build(
            code=code,
            path=path,
            options=() if code is None else options,
            backend="nvcc" if code is None else backend,
            translate_cucomplex=code is not None and translate_cucomplex,
            enable_cooperative_groups=enable_cooperative_groups,
            name_expressions=name_expressions,
            jitify=jitify,
            arch=arch,
            link=link,
            fallback=fallback,
            pch=pch,
            timeout=timeout,
            memory_limit=memory_limit,
            name=name,
        )
        self._hand_to_cupy()

    def _hand_to_cupy(self) -> None:
        arguments = self._build.arguments
        # CuPy's jitify argument is left out: giving it, even False, warns of its removal.
        super().__init__(
            code=arguments["code"],
            path=arguments["path"],
            options=arguments["options"],
            backend=arguments["backend"],
            translate_cucomplex=arguments["translate_cucomplex"],
            enable_cooperative_groups=arguments["enable_cooperative_groups"],
            name_expressions=arguments["name_expressions"],
        )

    @property
    def module(self) -> Any:
        """The ``cupy.cuda.function.Module`` on the current device, built if need be."""
        return self._build.module()

    def compile(self, log_stream: IO[str] | None = None) -> None:
        """Build now, for the current device, and write the compiler's log to `log_stream`."""
        self._build.rebuild(log_stream)

    def get_function(self, name: str) -> RawKernel:
        """Return the kernel `name`, a C++ name, or one of `name_expressions`.

        Raises
        ------
        cupy.cuda.driver.CUDADriverError
            The module holds no such kernel.
        """
        if self.name_expressions:
            name = self.module.mapping.get(name, name)
        kernel = RawKernel.__new__(RawKernel)
        kernel._bind(self._build, name)
        _ = kernel.kernel  # CuPy finds a missing name here and not at the first launch
        return kernel

    def get_global(self, name: str) -> Any:
        """Return a ``cupy.cuda.MemoryPointer`` to the variable `name`, or to a name expression's.

        Raises
        ------
        cupy.cuda.driver.CUDADriverError
            The module holds no such variable.
        """
        if self.name_expressions:
            name = self.module.mapping.get(name, name)
        return super().get_global(name)

    def report(self, block: int | None = None, *, dynamic_shared: int = 0) -> Report:
        """Return what each kernel of the module takes, as `RawKernel.report` does."""
        return self._build.report(None, block, dynamic_shared)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_module, (type(self), self._build.arguments)


def _restore_kernel(cls: type[RawKernel], arguments: dict[str, Any], name: str) -> RawKernel:
    kernel = cls.__new__(cls)
    kernel._bind(_Build(**arguments), name)
    return kernel


def _restore_module(cls: type[RawModule], arguments: dict[str, Any]) -> RawModule:
    module = cls.__new__(cls)
    module._build = _Build(**arguments)
    module._hand_to_cupy()
    return module

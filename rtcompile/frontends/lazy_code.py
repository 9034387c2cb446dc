"""The code of a `RawModule` or `RawKernel`: built at its first use, and loaded on each device."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

import cupy
from cupy.cuda.function import Module

from rtcompile import errors, forks
from rtcompile.build import pipeline
from rtcompile.errors import CompileError, DriverError, InvalidRequest, JitifyError, adopt_cupy
from rtcompile.files.sealed import read_argument
from rtcompile.lookup import environment as environments
from rtcompile.lookup import find as lookup
from rtcompile.lookup.environment import Environment
from rtcompile.request.request import (
    BACKENDS,
    DEFAULT_NAME,
    CompileRequest,
    names_architecture,
    refuse_two_architectures,
)
from rtcompile.request.values import check_stream, one_of, text, truth, working_directory
from rtcompile.request.values import path as checked_path
from rtcompile.settings import Settings, refuse_contradiction

if TYPE_CHECKING:
    from rtcompile.request.object_code import ObjectCode

adopt_cupy()
current_device = cupy.cuda.runtime.getDevice
CUDADriverError = cupy.cuda.driver.CUDADriverError
CUDARuntimeError = cupy.cuda.runtime.CUDARuntimeError

_OVERRIDES = ("fallback", "pch", "timeout", "memory_limit", "recompile")

# cuComplex.h is replaced by CuPy's complex types if translate_cucomplex is set.
_CUCOMPLEX = r"(?m)^[ \t]*#[ \t]*include[ \t]*<[ \t]*cuComplex\.h[ \t]*>[^\n]*"
_CUPY_HEADERS = tuple(
    f"--pre-include=cupy/{header}"
    for header in ("complex.cuh", "carray.cuh", "atomics.cuh", "math_constants.h")
)

# The arguments of CuPy's kernels and modules, without jitify=, which would cause a deprecation warning even if False.
OF_KERNELS = "code", "options", "backend", "translate_cucomplex", "enable_cooperative_groups"
OF_CUPY = (*OF_KERNELS, "path", "name_expressions")
_SCALARS = (*_OVERRIDES, "name")
_ARGUMENTS = (*OF_CUPY, "jitify", "arch", "link", "include_dirs", "headers", *_SCALARS)
# What a `RawKernel` gets in place of the arguments that only a module has.
OF_MODULES: dict[str, Any] = {"path": None, "name_expressions": None, "name": DEFAULT_NAME}


class LazyCode:
    """The common part of `RawModule` and `RawKernel`: the arguments of one build, and its results.

    `arguments` are the class's arguments in normal form. `request` is None for a file, which the driver loads itself.
    `functions` are by kernel name and device; `modules` and `objects` are by device, with None for ``arch=``. `used`
    is True if a build was started, or none is needed.
    """

    def __init__(self, **given: Any) -> None:
        self.arguments, self.request = _checked(given)
        request = self.request
        self.path: str | None = self.arguments["path"]
        self.modules: dict[int, Any] = {}
        self.functions: dict[str, dict[int, Any]] = {}
        self.objects: dict[int | None, ObjectCode] = {}
        self.used = request is None  # nothing can be built ahead
        self._overrides = {name: self.arguments[name] for name in _OVERRIDES}
        # The conditions under which `objects` are valid: environment, toolchain's signature, working directory.
        self._made: set[tuple[Environment, str, str]] = set()
        self._is_local = request is not None and request.depends_on_directory
        self._folder = self._working_directory()

    def _working_directory(self) -> str:
        """Return the working directory if the request depends on it, else ""."""
        try:
            return os.getcwd() if self._is_local else ""
        except OSError:
            return ""

    def is_valid(self) -> bool:
        """Return whether nothing has changed, so another kernel of the same arguments may share this."""
        here = environments.current()
        if self._is_local and self._folder != self._working_directory():
            return False
        for environment, toolchain, folder in self._made:
            if environment is not here or folder != self._folder:
                return False
            if toolchain and toolchain != here.signature():  # without a toolkit there is none
                return False
        for code in self.objects.values():
            files = code.build.files
            if files.uncacheable:
                return False
            if not files.is_empty and not files.is_unchanged(recent=True):
                return False
        return True

    @property
    def settings(self) -> Settings:
        """The environment's current settings, changed by the arguments."""
        return environments.current().settings.override(**self._overrides)

    def module(self) -> Any:
        """Return CuPy's module of this build on the current device, built and loaded on first use."""
        device = ordinal(loading=True)
        found = self.modules.get(device)
        return self._load(device) if found is None else found

    def rebuild(self, log_stream: IO[str] | None = None) -> None:
        """Look the code up in the cache, or compile it; load it on the current device."""
        if log_stream is not None:
            check_stream(log_stream)
        self._load(ordinal(loading=True), log_stream)
        for functions in self.functions.values():
            functions.clear()

    def _load(self, device: int, log_stream: IO[str] | None = None) -> Any:
        request = self.request
        given: tuple[Any, ...] = (self.path, ())
        if request is not None:
            code = self._built(request)
            if log_stream is not None:
                log_stream.write(code.build.log)
            given = (code.code, tuple(code.lowered_names.items()))
        try:
            with loading:
                module = self.modules[device] = _load(*given)
        except CUDADriverError as error:
            from rtcompile.messages.loading import of_load

            raise of_load(error, self.program, given[0]) from None
        return module

    def named(self, kind: str, find: Callable[[str], Any], name: str) -> Any:
        """Return the result of CuPy's `find` for a kernel or a variable of the module."""
        try:
            return find(name)
        except CUDADriverError as error:
            if error.status != _NOT_FOUND:
                from rtcompile.messages.loading import of_load

                raise of_load(error, self.program) from None
            reported = "CUDA_ERROR_NOT_FOUND: named symbol not found"
            says = f"\n  The driver says {reported}."
            raise self.absent(self.object_code(), kind, name, says) from None

    def absent(self, built: ObjectCode | None, kind: str, name: str, says: str = "") -> DriverError:
        """Return the error for a kernel or a variable that the code lacks; `built` is None for a file."""
        from rtcompile.messages.loading import absent

        message = absent(
            kind,
            name,
            self.contents() if built is None else built.code,
            program=self.program,
            source=self.arguments["code"] or "",
            lowered={} if built is None else built.lowered_names,
        )
        return DriverError(message + says, _NOT_FOUND)

    def contents(self) -> bytes:
        """Return the contents of a module's file."""
        return read_argument(str(self.path), f"no module can be read from {self.path!r}")

    @property
    def program(self) -> str:
        """The name of the module or kernel in messages."""
        return self.path or str(self.arguments["name"])

    def origin(self) -> str:
        """Return the origin of the code for `repr`, without building it."""
        code = next(iter(self.objects.values()), None)
        if code is not None:
            return f"{self.program}, {code.kind} for {code.arch}"
        if self.path is not None:
            return f"the file {self.path}"
        given = self.arguments["arch"]
        return f"{self.program}, {f'for {given}, ' if given else ''}not built yet"

    def expected(self) -> tuple[CompileRequest, Settings] | None:
        """Return the request and settings of the first use; None once its build has started, and for a file."""
        if self.request is None or self.used or self.arguments["recompile"]:
            return None
        return self.request, self.settings

    def is_cached(self) -> bool:
        """Return whether the code for the current device needs no build: it is loaded, cached or bundled."""
        request = self.request
        if request is None:
            return bool(self.modules) or os.access(str(self.path), os.R_OK)
        return self._device() in self.objects or pipeline.is_cached(request, self.settings)

    def _built(self, request: CompileRequest) -> ObjectCode:
        """Return the code, after keeping it and its conditions for the current device."""
        here = environments.current()
        settings = here.settings.override(**self._overrides)
        self.used = True
        try:
            code = pipeline.build(request, settings)
            while errors.unshown:
                errors.warn(errors.unshown.pop(0))
        except CompileError as error:
            if settings.dump_source_on_error:
                error.dump(sys.stderr)  # type: ignore[attr-defined]  # of CuPy's class
            # Code written for Jitify catches JitifyException, which is not a CompileException.
            if self.arguments["jitify"] and type(error) is CompileError:
                raise JitifyError.of(error) from None
            raise
        self._made.add((here, here.signature(), self._working_directory()))
        self.objects[self._device()] = code
        return code

    def object_code(self) -> ObjectCode | None:
        """Return the code for the current device, or for `arch` without one; None for a file."""
        request = self.request
        if request is None:
            return None
        known = self.objects.get(self._device())
        return self._built(request) if known is None else known

    def _device(self) -> int | None:
        return None if self.arguments["arch"] is not None else ordinal()


def code_of(given: dict[str, Any]) -> LazyCode:
    """Return the code of these arguments, all of `_ARGUMENTS`, shared while it is valid."""
    values = [given[name] for name in _ARGUMENTS]
    values = [tuple(value) if type(value) is list else value for value in values]
    headers = given["headers"]
    if type(headers) is dict:
        values[_ARGUMENTS.index("headers")] = tuple(headers.items())
    shared = _shared()
    key: tuple[Any, ...] | None = None
    lazy: LazyCode | None = None
    with suppress(Exception):  # a value without a hash, or one whose comparison raises
        # True equals 1, but is not a time limit.
        given_values = (*values, *[type(value) is bool for value in values[-len(_SCALARS) :]])
        lazy, key = shared.get(given_values), given_values
    if lazy is None or not lazy.is_valid():
        lazy = LazyCode(**given)
        # Linked inputs may be files, a file may be replaced, and `recompile` demands a build.
        if key and not (lazy.path or lazy.arguments["link"] or lazy.arguments["recompile"]):
            shared[key] = lazy
    return lazy


@cupy.memoize()  # type: ignore[untyped-decorator]
def _shared() -> dict[tuple[Any, ...], LazyCode]:
    """Return the codes by their arguments; a new dictionary after ``cupy.clear_memo()``, as for CuPy's kernels."""
    return {}


def _checked(given: dict[str, Any]) -> tuple[dict[str, Any], CompileRequest | None]:
    """Return the arguments in normal form, and their request: None for a file."""
    code, names = given["code"], given["name_expressions"]
    checked = _checked_together(given)
    # Check these now, although the environment may change before the build.
    overrides = {name: given[name] for name in _OVERRIDES}
    if any(value is not None and value is not False for value in overrides.values()):
        Settings("").override(**overrides)
    request = CompileRequest(
        source="" if code is None else text("code", code),
        options=given["options"],
        arch=given["arch"],
        name_expressions=() if names is None else names,
        backend="nvcc" if checked["backend"] == "nvcc" else "auto",
        link=given["link"],
        name=given["name"],
        headers=() if given["headers"] is None else given["headers"],
        include_dirs=given["include_dirs"],
        may_pass_over_arch=True,
    )
    if code is not None:
        refuse_contradiction(request.backend, given["fallback"])
    if request.arch is not None and names_architecture(request):
        refuse_two_architectures(request)
    arguments = {
        **given,
        **checked,
        "code": None if code is None else request.source,
        "options": request.options,
        "name_expressions": None if names is None else request.name_expressions,
        "link": request.link,
        "include_dirs": (),  # they are among the options now
        "headers": dict(request.headers) or None,
        "recompile": bool(given["recompile"]),
        "name": request.name,
    }
    return arguments, None if code is None else _with_cupys_headers(request, arguments)


def _checked_together(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that exclude one another, in normal form; raise if two of them are in conflict."""
    code, path, names = given["code"], given["path"], given["name_expressions"]
    if (code is None) == (path is None):
        which = "neither was" if code is None else "both were"
        raise InvalidRequest(f"exactly one of code= and path= must be given; {which}")
    jitify = None if given["jitify"] is None else truth("jitify", given["jitify"])
    path = None if path is None else checked_path("path", path)
    if path is not None and path.endswith((".cu", ".cuh", ".cc", ".cpp", ".cxx")):
        raise InvalidRequest(
            f"path= takes a cubin, PTX or fatbin, and {path} is a source; write "
            f"RawModule.from_file({path!r})"
        )
    if path is not None and (names is not None or jitify):
        raise InvalidRequest("name_expressions= and jitify= need code=, not path=")
    backend = one_of("backend", "nvcc" if code is None else given["backend"], BACKENDS)
    backend = "nvrtc" if backend == "auto" else backend  # CuPy's name of the default
    if names is not None and backend == "nvcc":
        # The first half is CuPy's own message, which existing code may match.
        raise InvalidRequest(
            "only nvrtc supports retrieving the mangled names for the given name expressions; "
            "with backend='nvrtc', fallback='always' builds with NVCC and retrieves them too"
        )
    if jitify and backend != "nvrtc":
        raise InvalidRequest("jitify=True is for backend='nvrtc'")
    flags = {
        "translate_cucomplex": code is not None and given["translate_cucomplex"],
        "enable_cooperative_groups": given["enable_cooperative_groups"],
    }
    checked_flags = {name: truth(name, value) for name, value in flags.items()}
    return {"path": path, "backend": backend, "jitify": jitify, **checked_flags}


def _with_cupys_headers(request: CompileRequest, arguments: dict[str, Any]) -> CompileRequest:
    """Return the request with the headers and folders that translate_cucomplex= and jitify= add."""
    source, options = request.source, request.options
    if arguments["translate_cucomplex"]:
        source = re.sub(_CUCOMPLEX, "#include <cupy/cuComplex_bridge.h>", source)
        options = (*options, *_CUPY_HEADERS)
    if arguments["jitify"]:
        # Jitify searches the working directory too, after all other directories.
        options = (*options, "-idirafter", working_directory("jitify=True"))
    if options == request.options:
        return request
    return request.replace(source=source, options=options)


# As in CuPy, two modules of the same code share one loaded module per device, and so their __constant__ and
# __device__ variables; cupy.clear_memo() clears these too.
@cupy.memoize(for_each_device=True)  # type: ignore[untyped-decorator]
def _load(given: bytes | str, lowered_names: tuple[tuple[str, str], ...]) -> Any:
    """Return the module of some code, or of the file at a path."""
    module = Module()
    if isinstance(given, str):
        module.load_file(given)
    else:
        module.load(given)
    module._set_mapping(dict(lowered_names))
    return module


# CuPy's memo has no lock: two threads would load one module twice, with separate variables.
loading = forks.lock()


def ordinal(loading: bool = False) -> int:
    """Return the number of the current device, to compile for it or, with `loading`, to load on it."""
    try:
        return int(current_device())
    except CUDARuntimeError as error:
        raise lookup.no_device(str(error), loading) from None


_NOT_FOUND = 500

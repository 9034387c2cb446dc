"""The code of a `RawModule` or `RawKernel`, built when it is first wanted, loaded on each device."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

import cupy
from cupy.cuda.function import Module

from rtcompile.building import device
from rtcompile.cache import answers, words
from rtcompile.errors import CompileError, InvalidRequest, JitifyError, adopt_cupy
from rtcompile.storage import places

if TYPE_CHECKING:
    from rtcompile.bundles.asked import FoundShipped
    from rtcompile.cache.answers import Answer
    from rtcompile.core.request import CompileRequest, ObjectCode
    from rtcompile.settings import Settings
    from rtcompile.watching.advice import Advice
    from rtcompile.watching.profiling import Profile
    from rtcompile.watching.report import Report

__all__ = [
    "ARGUMENTS",
    "CUDADriverError",
    "CUDARuntimeError",
    "LazyCode",
    "current_device",
    "ordinal",
    "shared",
    "stated",
]

adopt_cupy()
current_device = cupy.cuda.runtime.getDevice
CUDADriverError = cupy.cuda.driver.CUDADriverError
CUDARuntimeError = cupy.cuda.runtime.CUDARuntimeError

DEFAULT_NAME = "kernel.cu"  # as `core.request` has it

# A kernel made again within this time shares the earlier one's code if no header of the user's own
# was edited in between; those of the toolkit, hundreds, are checked after it. `compile()` always
# checks.
_SETTLED_SECONDS = 1.0
_FOR_EVER, _NEVER = float("inf"), float("-inf")


class LazyCode:
    """What `RawModule` and `RawKernel` share: the arguments of one build, and its results.

    An instance builds once per device and keeps the result, as CuPy's classes do. A *new*
    `RawModule` of the same source asks the cache again, and so sees an edited header; see `shared`.

    Attributes
    ----------
    folder : str
        The working directory where an option may name a path relative to it; else "".
    for_cupy : tuple
        Code, options, backend and those keyword arguments of CuPy's classes that are set.
    functions : dict
        Kernel's name to device to ``cupy.cuda.function.Function``.
    environment : object
        What `answers.environment` was when this was made; None where `words` is.
    settled_until : float
        Time of the monotonic clock until which another kernel of the same arguments may share this,
        where no header of the user's own has changed.
    words : tuple of str or None
        The arguments, where all of them are plain strings; None where any is something else.
    """

    __slots__ = (
        "_stated",
        "answers",
        "arguments",
        "environment",
        "folder",
        "for_cupy",
        "functions",
        "modules",
        "objects",
        "path",
        "settled_until",
        "words",
    )

    def __init__(
        self, arguments: dict[str, Any], request: CompileRequest | None, words: Any = None
    ) -> None:
        self.arguments = arguments
        self.path: str | None = arguments["path"]
        flags = ("translate_cucomplex", "enable_cooperative_groups")
        set_flags = {flag: True for flag in flags if arguments[flag]}
        self.for_cupy = (arguments["code"], arguments["options"], arguments["backend"], set_flags)
        self.modules: dict[int, Any] = {}
        self.functions: dict[str, dict[int, Any]] = {}
        self.objects: dict[int | None, ObjectCode] = {}
        self.answers: dict[int | None, Answer | FoundShipped] = {}
        self.settled_until = _FOR_EVER
        self.environment: object = None if words is None else answers.environment()
        self.words: tuple[str, ...] | None = words
        self.folder: str = "" if words is None else words[2]
        self._stated = request

    @classmethod
    def checked(cls, **given: Any) -> LazyCode:
        """Return the code for any arguments; raise `InvalidRequest` where they describe no build."""
        from rtcompile.code_arguments import checked  # with what plain words do without

        return cls(*checked(**given))

    def module(self) -> Any:
        """Return CuPy's module of this build on the current device, built and loaded if need be."""
        place = ordinal(loading=True)
        found = self.modules.get(place)
        if found is not None:
            return found
        answer = None
        if self.words is not None:
            capability = device.compute_capability()
            answer = answers.find(self.words, capability, missing=_start_compiler)
        if answer is None:
            return self.rebuild()
        found = _loaded(_load, answer.code, answer.names, program=self.program)
        self.answers[place] = answer
        self.modules[place] = found
        if answer.depends_on_files:
            self.settled_until = time.monotonic() + _SETTLED_SECONDS
        return found

    def is_settled(self) -> bool:
        """Say whether another kernel of the same words may share this."""
        if self.environment is not answers.environment():
            return False
        if self.folder and self.folder != _working_directory():
            return False
        if self.settled_until == _FOR_EVER:
            return True
        return self.settled_until > time.monotonic() and all(
            answer.own_files_hold() for answer in self.answers.values()
        )

    def _may_have_asked_for_files(self) -> bool:
        """Say whether the build may have looked at a file without reading one: ``__has_include``."""
        texts = (self.arguments["code"], *self.arguments["options"])
        return any("include" in text.replace("\\\n", "") for text in texts)

    @property
    def request(self) -> CompileRequest | None:
        """The request; one of plain words is made when it is first needed.

        None for a file, which the driver loads; but PTX with options for the linker is linked with
        them.
        """
        if self.path is not None:
            if self._stated is None and self.arguments["options"]:
                from rtcompile.building import links

                given = self.arguments
                self._stated = links.of_ptx(self.path, given["options"], given["arch"])
        elif self._stated is None:
            from rtcompile.core.request import CompileRequest

            given = self.arguments
            self._stated = CompileRequest(
                given["code"],
                options=given["options"],
                name_expressions=given["name_expressions"] or (),
                name=given["name"],
            )
        return self._stated

    def rebuild(self, log_stream: IO[str] | None = None) -> Any:
        """Ask the cache and, failing that, a compiler; load the code on the current device."""
        if log_stream is not None:
            from rtcompile.watching import logs

            logs.check_stream(log_stream)
        place = ordinal(loading=True)
        request = self.request
        if request is None:
            module = _loaded(_load_file, self.path, program=self.path)
        else:
            code = self._compiled(request, self.words)
            if log_stream is not None:
                log_stream.write(code.build.log)
            self.objects[self._place()] = code
            names = tuple(code.lowered_names.items())
            module = _loaded(_load, code.code, names, program=request.name)
            if self.words is not None and (code.build.headers or self._may_have_asked_for_files()):
                self.settled_until = (
                    _NEVER  # the next one asks for an answer, which knows the files
                )
        self.functions.clear()
        self.modules[place] = module
        return module

    def function(self, name: str) -> Any:
        """Return CuPy's function of a kernel on the current device."""
        module = self.module()
        try:
            return module.get_function(name)
        except CUDADriverError as error:
            from rtcompile import driver_failures

            raise driver_failures.of_kernel(self, error, name) from None

    def variable(self, find: Callable[[str], Any], name: str) -> Any:
        """Return what CuPy's `find` gives for a variable of the module."""
        try:
            return find(name)
        except CUDADriverError as error:
            from rtcompile import driver_failures

            raise driver_failures.of_variable(self, error, name) from None

    @property
    def program(self) -> str:
        """The name of the module or kernel in messages."""
        return self.path or str(self.arguments["name"])

    def is_cached(self) -> bool:
        """Say whether the code for the current device is there: loaded, cached, or in a bundle."""
        from rtcompile.building import pipeline

        request = self.request
        if request is None or self._place() in (*self.objects, *self.answers):
            return True
        request, settings = self._asked(request)
        return pipeline.is_cached(pipeline.for_this_device(request, settings), settings)

    def _asked(self, request: CompileRequest) -> tuple[CompileRequest, Settings]:
        """Return what is asked of the pipeline now, as the environment and the arguments say."""
        from rtcompile.settings import Settings

        arguments = self.arguments
        if arguments["jitify"]:
            # Jitify looks in the working directory too, after all else.
            request = request.replace(
                options=(*request.options, "-idirafter", places.working_directory("jitify=True"))
            )
        said = ("fallback", "pch", "timeout", "memory_limit", "recompile")
        given = {name: arguments[name] for name in said}
        return request, Settings.from_environ().override(**given)

    def _compiled(
        self, request: CompileRequest, words: tuple[str, ...] | None = None
    ) -> ObjectCode:
        from rtcompile.building import pipeline

        arguments = self.arguments
        request, settings = self._asked(request)
        try:
            request = pipeline.for_this_device(request, settings)
            return pipeline.build(request, settings, words)
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
        request = self.request
        if request is None:
            return None
        place = self._place()
        if place not in self.objects:
            answer = self.answers.get(place)
            self.objects[place] = (
                self._compiled(request, self.words) if answer is None else answer.object_code()
            )
        return self.objects[place]

    def report(self, kernel: str | None, block: int | None, dynamic_shared: int) -> Report:
        """Report on the code for the current device, or on the file's."""
        from rtcompile.watching.report import report

        code: ObjectCode | bytes | None = self.object_code()
        if code is None:
            code = self._file()
        return report(code, kernel=kernel, block=block, dynamic_shared=dynamic_shared)

    def advise(self, kernel: str, shared_mem: Any, launch_bounds: Any) -> Advice:
        """Advise on a kernel; a source is built again with what makes ptxas tell of spills."""
        from rtcompile.watching import advice

        bounds = None if launch_bounds is None else advice.bounds_of(launch_bounds)
        request = self.request
        if request is None:
            if bounds is not None:
                raise InvalidRequest("launch_bounds= needs a source to build again, not path=")
            return advice.advise(self._file(), kernel=kernel, shared_mem=shared_mem)[0]
        return advice.of_source(request, self._compiled, kernel, shared_mem, bounds)[0]

    def profile(self) -> Profile:
        """Compile anew for the current device, or for `arch`, and say where the time goes."""
        from rtcompile.building import pipeline
        from rtcompile.watching.profiling import profile

        request = self.request
        if request is None:
            raise InvalidRequest(f"{self.program} is compiled already: there is nothing to profile")
        request, settings = self._asked(request)
        return profile(pipeline.for_this_device(request, settings), settings)

    def _file(self) -> bytes:
        from rtcompile import driver_failures

        return driver_failures.read(self.path)

    def _place(self) -> int | None:
        return None if self.arguments["arch"] is not None else ordinal()


def _start_compiler(loads: str) -> None:
    """Start the process that compiles, before anything that a miss needs is imported."""
    from rtcompile.workers import process

    process.start(loads)


# --- the same words again ------------------------------------------------------------------------

# The entries live in a memo of CuPy's, so that cupy.clear_memo() empties it like CuPy's own. Each
# entry is a list of one element, because a memo's entry itself cannot be replaced.
_cells = cupy.memoize()(lambda code, options, names, cooperative, name: [None])


def shared(
    code: object, options: object, names: object, cooperative: object, name: str = DEFAULT_NAME
) -> LazyCode | None:
    """Return the code that kernels and modules of the same plain arguments have in common.

    In one environment, code that depends on no file is shared for as long as the process lives.
    Code that does is shared while the user's own headers are unchanged, and for a second: a kernel
    made later has the toolkit's checked again. None where the arguments need a full check, since
    one of them is not a plain string or is wrong.
    """
    try:
        cell = _cells(code, options, names, cooperative, name)
    except TypeError:  # a list, or what cannot be hashed
        return None
    lazy: LazyCode | None = cell[0]
    if lazy is not None and lazy.is_settled():
        return lazy
    if not _is_plain(code, options, names):
        return None
    assert isinstance(code, str)
    assert isinstance(options, tuple)
    assert names is None or isinstance(names, tuple)
    here = words.folder_of(options)
    if here is None:
        return None
    arguments = {**ARGUMENTS, "code": code, "options": options, "name": name}
    arguments["enable_cooperative_groups"] = bool(cooperative)
    arguments["name_expressions"] = names
    said = words.of_module(code, name, here, options, names or ())
    cell[0] = lazy = LazyCode(arguments, None, said)
    return lazy


def _working_directory() -> str:
    """Return the working directory; "" where it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


# The defaults of all arguments.
ARGUMENTS: dict[str, Any] = {
    "path": None,
    "options": (),
    "enable_cooperative_groups": False,
    "name_expressions": None,
    "backend": "nvrtc",
    "translate_cucomplex": False,
    "jitify": None,
    "arch": None,
    "link": (),
    "headers": None,
    "fallback": None,
    "pch": None,
    "timeout": None,
    "memory_limit": None,
    "recompile": False,
}


def stated(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments among the `locals` of a function that takes them by these names."""
    return {name: given[name] for name in ("code", "name", *ARGUMENTS) if name in given}


def _is_plain(code: object, options: object, names: object) -> bool:
    """Say whether these arguments are plain strings that pass every check of a request."""
    if type(options) is not tuple or (names is not None and type(names) is not tuple):
        return False
    words = (*options, *(names or ()))
    return (
        type(code) is str
        and "\0" not in code
        and (code.isascii() or _is_text(code))
        and all(
            type(word) is str
            and word.isascii()
            and word.isprintable()
            and "optf" not in word
            and "options-file" not in word
            for word in words
        )
    )


def _is_text(code: str) -> bool:
    try:
        code.encode()
    except UnicodeEncodeError:
        return False
    return True


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


def ordinal(loading: bool = False) -> int:
    """Return the number of the current device, to compile for it or, with `loading`, to load on it.

    Raises
    ------
    UnsupportedArch
        There is none.
    """
    try:
        return int(current_device())
    except CUDARuntimeError as error:
        raise device.no_device(str(error), loading) from None


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
        from rtcompile import driver_failures

        raise driver_failures.refused(error, program or "", given[0]) from None

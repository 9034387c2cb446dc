"""`RawKernel`, a subclass of CuPy's that launches as CuPy does."""

from __future__ import annotations

import os
import threading
import time
from _weakref import ref
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import cupy

import rtcompile
from rtcompile import errors, forks
from rtcompile.build import pipeline
from rtcompile.errors import InvalidRequest, RtcompileError, public
from rtcompile.frontends.lazy_code import (
    OF_KERNELS,
    OF_MODULES,
    CUDADriverError,
    CUDARuntimeError,
    LazyCode,
    code_of,
    current_device,
    ordinal,
)
from rtcompile.lookup import environment as environments
from rtcompile.lookup import find as lookup
from rtcompile.lookup.find import query_of
from rtcompile.request.object_code import KERNEL_MARKS, BuildInfo
from rtcompile.request.values import text

if TYPE_CHECKING:
    from rtcompile.request.object_code import ObjectCode
    from rtcompile.request.request import CompileRequest
    from rtcompile.request.values import Arch, Backend, Fallback
    from rtcompile.types import Profile, Report


class BuildOwner:
    """The common properties of a kernel and a module: the code, and how it was built."""

    _build: LazyCode
    _bind: Callable[[LazyCode, str], None]  # constructs CuPy's object for this code and kernel name
    _check: Callable[[ObjectCode], None]  # raises or warns if the code lacks this object's kernels

    @property
    @public
    def request(self) -> CompileRequest | None:
        """The request of its build; None for a file that the driver loads directly."""
        return self._build.request

    @property
    @public
    def object_code(self) -> ObjectCode | None:
        """The code, built on first use (with `arch` no device is needed); None for a file.

        A `RawKernel` raises `DriverError` if the code lacks its kernel; a `RawModule` without any kernel only warns.
        """
        code = self._build.object_code()
        if code is not None:
            self._check(code)
        return code

    @property
    @public
    def build(self) -> BuildInfo:
        """How `object_code` was built or found: backend, cache hit, milliseconds, headers, log.

        For a file that the driver loads directly, `hit` is ``"file"`` and `backend` is empty.
        """
        code = self.object_code
        if code is not None:
            return code.build
        return BuildInfo("", hit="file", why="path= is loaded as it is")

    @public
    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the code, built on first use, to a file, and return its path."""
        code = self.object_code
        if code is None:
            raise InvalidRequest(f"{self._build.program} is a file already: copy it")
        return code.save(path)

    @public
    def is_cached(self) -> bool:
        """Return whether using this object would compile nothing: its code is loaded, cached, or in a bundle.

        The result is for the current device, or for `arch`. The call compiles and writes nothing.

        Examples
        --------
        >>> module = RawModule(code='extern "C" __global__ void k() {}', arch="sm_80")
        >>> _ = module.object_code
        >>> module.is_cached()
        True
        """
        return self._build.is_cached()

    @public
    def compile(self, log_stream: IO[str] | None = None) -> None:
        """Build now, for the current device, and write the compiler's log to `log_stream`."""
        self._build.rebuild(log_stream)

    @public
    def report(self, block: int | None = None, *, dynamic_shared: int = 0) -> Report:
        """Return the resources of the kernel, or of each kernel of the module, as `ObjectCode.report` does."""
        from rtcompile.types import Report

        code = self._build.object_code() or self._build.contents()
        kernel = self.name if isinstance(self, cupy.RawKernel) else None
        return Report.of(code, kernel, block, dynamic_shared)

    @public
    def profile(self) -> Profile:
        """Compile again, without the cache, and return a profile of the compile time.

        Returns
        -------
        Profile
            Phases and templates with their cost; ``print`` shows tables.

        Raises
        ------
        CompileError
            The source does not compile.
        InvalidRequest
            The module is a file, which is compiled already.
        """
        from rtcompile.types import Profile

        if self.request is None:
            raise InvalidRequest(
                f"{self._build.program} is compiled already: there is nothing to profile"
            )
        return Profile.of(self.request, self._build.settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self._build.arguments, getattr(self, "name", ""))


def _restored(cls: type[BuildOwner], arguments: dict[str, Any], name: str) -> BuildOwner:
    """Return the unpickled kernel or module."""
    restored = cls.__new__(cls)
    restored._bind(LazyCode(**arguments), name)
    return restored


def _explained(kernel: RawKernel, error: Any, block: Any, shared: Any) -> Any:
    """Return the error for a launch that failed in CuPy, in the driver or in the runtime."""
    if isinstance(error, CUDARuntimeError):
        try:
            ordinal(loading=True)
        except RtcompileError as no_device:
            return errors.unchained(no_device)
        return error
    if isinstance(error, RtcompileError):
        return errors.unchained(error)
    from rtcompile.messages.loading import of_launch

    return of_launch(kernel, str(error), error.status, block, shared)


class RawKernel(BuildOwner, cupy.RawKernel):  # type: ignore[misc]
    """A kernel from CUDA C++ source: `cupy.RawKernel`, built by rtcompile.

    If the code is not cached, compiling starts in the background at construction; the first call waits for the build
    and raises its errors. Each device gets its own build.

    Parameters
    ----------
    code : str
        CUDA C++ source.
    name : str
        The kernel's name in the source.
    options : sequence of str, or str
        Compiler options, in NVRTC's or nvcc's spelling.
    backend : {"nvrtc", "nvcc", "auto"}
        ``"nvrtc"``, as in CuPy, and ``"auto"`` are the same: NVRTC, and NVCC for what NVRTC cannot handle, unless
        `fallback` forbids it.
    translate_cucomplex : bool
        Replace ``cuComplex.h`` by CuPy's complex types.
    enable_cooperative_groups : bool
        Launch with ``cuLaunchCooperativeKernel``.
    jitify : bool, optional
        Accepted for compatibility: headers are found in any case. With it, a failed compile raises an error that is
        also CuPy's ``JitifyException``.
    arch : str or Arch, optional
        Compile for this architecture instead of the current device's. An architecture in the options that the
        device cannot run is ignored with a `RtcompileWarning`.
    link, include_dirs, headers, fallback, pch, timeout, memory_limit, recompile
        As in `rtcompile.compile`.

    Raises
    ------
    InvalidRequest
        The arguments cannot describe a build.
    CompileError
        At the first use, if the compiler rejects the source.
    DriverError
        At the first use, if the code has no kernel `name`, or the device cannot load it.

    Examples
    --------
    >>> source = 'extern "C" __global__ void k(int* p) { *p = 1; }'
    >>> kernel = rtcompile.RawKernel(source, "k")
    >>> array = cupy.zeros(1, cupy.int32)  # doctest: +SKIP
    >>> kernel((1,), (1,), (array,))  # doctest: +SKIP
    >>> rtcompile.RawKernel(source, "k", arch="sm_90").object_code.kind  # needs no GPU
    'cubin'
    """

    __module__ = "rtcompile"  # its public module

    @public
    def __init__(
        self,
        code: str,
        name: str,
        options: Sequence[str] | str = (),
        backend: Backend = "nvrtc",
        *,
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        jitify: bool | None = None,
        arch: str | Arch | None = None,
        link: Sequence[Any] = (),
        include_dirs: Sequence[str | os.PathLike[str]] = (),
        headers: Mapping[str, str] | None = None,
        fallback: Fallback | None = None,
        pch: bool | None = None,
        timeout: float | None = None,
        memory_limit: int | str | None = None,
        recompile: bool = False,
    ) -> None:
        given = locals()
        del given["self"], given["name"]
        build = code_of(
            {**given, **OF_MODULES, "code": text("code", code) if code is None else code}
        )
        self._bind(build, name if type(name) is str else text("name", name))

    def _bind(self, build: LazyCode, name: str) -> None:
        super().__init__(name=name, **{each: build.arguments[each] for each in OF_KERNELS})
        self._functions = build.functions.setdefault(name, {})  # shared by all kernels of this name
        self._build = build
        queue_ahead(self, build)  # start compiling before the first use

    def _check(self, code: ObjectCode) -> None:
        mark = KERNEL_MARKS.get(code.kind)
        if mark is None or b"%b%b\0" % (mark, self.name.encode()) in code.code:
            return
        from rtcompile import cubin

        if self.name not in cubin.kernel_symbols(code.code):
            raise self._build.absent(code, "kernel", self.name)

    @property
    def kernel(self) -> Any:
        """The ``cupy.cuda.function.Function`` on the current device, built on first use."""
        try:
            function = self._functions.get(current_device())
        except CUDARuntimeError:  # there is no device; `_kernel` below raises an error that says so
            function = None
        return self._kernel() if function is None else function

    @public
    def _kernel(self) -> Any:
        build = self._build
        function = build.named("kernel", build.module().get_function, self.name)
        self._functions[ordinal()] = function
        return function

    def __call__(self, grid: Any, block: Any, args: Any, **kwargs: Any) -> None:
        """Launch the kernel: ``kernel(grid, block, args, *, shared_mem=0, stream=None)``.

        Parameters
        ----------
        grid : tuple of int
            Blocks in the grid, in up to three dimensions.
        block : tuple of int
            Threads in a block, in up to three dimensions.
        args : tuple
            The kernel's arguments: CuPy arrays, NumPy scalars, Python numbers.
        shared_mem : int
            Bytes of dynamic shared memory of a block.
        stream : cupy.cuda.Stream, optional
            The stream to launch on; None is the current one.

        Raises
        ------
        DriverError
            The driver rejects the launch, for example for too many threads or too much shared memory.
        """
        __tracebackhide__ = True
        # Every launch runs this. It repeats the property `kernel` to save the time of a call.
        try:
            function = self._functions.get(current_device())
            if function is None:
                function = self._kernel()
            if self.enable_cooperative_groups:
                kwargs["enable_cooperative_groups"] = True
            function(grid, block, args, **kwargs)
            return
        except (CUDARuntimeError, CUDADriverError, RtcompileError) as error:
            failure = error
        raise _explained(self, failure, block, kwargs.get("shared_mem", 0))

    def launch(
        self,
        grid: Any,
        block: Any,
        args: Any,
        *,
        cluster: Any = None,
        cooperative: bool = False,
        programmatic: bool = False,
        shared_mem: int = 0,
        stream: Any = None,
        priority: int | None = None,
    ) -> None:
        """Launch the kernel by ``cuLaunchKernelEx``, with attributes that CuPy's launch lacks.

        Parameters
        ----------
        grid, block, cluster : int or tuple of int
            The numbers of blocks, of threads in a block, and of blocks in a cluster: up to 8, on some devices 16.
        args : sequence
            CuPy's types, PyTorch tensors, and objects with ``__cuda_array_interface__`` or DLPack.
        cooperative : bool
            The kernel may synchronise its whole grid.
        programmatic : bool
            The kernel may begin before the one ahead in its stream has ended.
        shared_mem : int
            Bytes of dynamic shared memory of a block; they may exceed 48 KiB.
        stream : stream, optional
            A stream of any library. Default: PyTorch's current one if a tensor is passed, else CuPy's.
        priority : int, optional
            The launch's priority; lower numbers start earlier.

        Raises
        ------
        InvalidRequest
            An argument does not fit its parameter, or the device has no such cluster or priority.
        DriverError
            The driver rejects the launch, or the stream is being captured and the kernel is not loaded yet.
        ToolkitNotFound
            cuda-python is not installed.
        """
        __tracebackhide__ = True
        cooperative = cooperative or self.enable_cooperative_groups
        how = grid, block, cluster, cooperative, programmatic, shared_mem, priority
        try:  # `public` would take a tenth of the time
            rtcompile.launch(self, args, stream, how)  # type: ignore[attr-defined]  # which an extra has
            return
        except RtcompileError as error:
            failure = error
        raise errors.unchained(failure)

    @public
    def compile(self, log_stream: IO[str] | None = None) -> None:
        """Build now, for the current device, and write the compiler's log to `log_stream`."""
        super().compile(log_stream)
        self._kernel()

    @property
    def file_path(self) -> str | None:
        """The file of a kernel that came from ``RawModule(path=…)``."""
        return self._build.path

    def __repr__(self) -> str:
        return f"<RawKernel {self.name}: {self._build.origin()}>"


# --- Kernels that are built in the background before their first use ------------------------------

_FIRST_SECONDS = 0.005  # so a kernel that is launched at once is not looked up twice
_TICK = 0.01
_IDLE_SECONDS = 1.0  # after which the thread ends
_PAUSES = 50  # while everything is cached, looking ahead may take a fiftieth of the time

# Weak references to the program's kernels and modules, with their code.
expected: list[tuple[Callable[[], object | None], LazyCode]] = []
watching = False
_guard = forks.lock()


def queue_ahead(owner: BuildOwner, code: LazyCode) -> None:
    """Queue unused code to be looked up, and compiled if it is missing, for as long as `owner` exists."""
    global watching
    if code.used or not environments.current().looks_ahead:
        return
    expected.append((ref(owner), code))
    if watching:
        return
    with _guard:
        if not watching:
            try:
                threading.Thread(target=_watch, name="rtcompile ahead", daemon=True).start()
                watching = True
            except RuntimeError:  # no more threads, or the interpreter is shutting down
                expected.clear()


def _watch() -> None:
    """Look up constructed kernels, and manage the builds of missing ones, until nothing is left."""
    global watching
    pause, last = _FIRST_SECONDS, time.monotonic()
    errors.own.warnings = errors.unshown
    while True:
        time.sleep(pause)
        began = time.perf_counter()
        pause = _TICK
        while expected and time.perf_counter() - began < _TICK:
            last = time.monotonic()
            _look_ahead(*expected.pop(0))
            if lookup.builds_ahead is None:
                pause = _PAUSES * (time.perf_counter() - began)
                break
        ahead = lookup.builds_ahead  # only a program that lacks code imports `build.ahead`
        if ahead is not None and ahead.tend():
            last = time.monotonic()
        if not expected and time.monotonic() - last > _IDLE_SECONDS:
            with _guard:
                if not expected:
                    watching = False
                    return


def _look_ahead(owner: Callable[[], object | None], code: LazyCode) -> None:
    try:
        wanted = code.expected() if owner() is not None else None
        if wanted is None:
            return
        request, settings = wanted
        capability = environments.current().capability
        if request.arch is not None or len(capability) == 2:
            query = query_of(request, settings, capability or None)  # type: ignore[arg-type]
            if pipeline.is_found(query):
                return
            pipeline.start_compiler(settings)  # it starts while modules are imported
        from rtcompile.build import ahead

        ahead.add(owner, request, settings, code.expected)
    except Exception:  # noqa: BLE001, S110 - the first use raises the error
        pass


@forks.in_child
def _forget_after_fork() -> None:
    # The thread belongs to the parent, which compiles its own kernels.
    global watching
    watching = False
    expected.clear()
    errors.unshown.clear()

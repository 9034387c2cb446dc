"""`RawModule`, a subclass of CuPy's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import cupy

from rtcompile.build import pipeline
from rtcompile.errors import InvalidRequest, public, shown
from rtcompile.files.sealed import read_text
from rtcompile.frontends.lazy_code import OF_CUPY, LazyCode, code_of
from rtcompile.frontends.raw_kernel import BuildOwner, RawKernel, queue_ahead
from rtcompile.request.request import DEFAULT_NAME
from rtcompile.request.values import absolute
from rtcompile.request.values import path as checked_path

if TYPE_CHECKING:
    from rtcompile.request.object_code import ObjectCode
    from rtcompile.request.values import Arch, Backend, Fallback


class RawModule(BuildOwner, cupy.RawModule):  # type: ignore[misc]
    """A module of CUDA kernels: `cupy.RawModule`, built by rtcompile.

    If the code is not cached, compiling starts in the background at construction; the first use waits for the build
    and raises its errors. Each device gets its own build.

    Parameters
    ----------
    code : str
        CUDA C++ source. Exactly one of `code` and `path` is given.
    path : path-like
        A cubin, PTX or fatbin file to load.
    options : sequence of str, or str
        Compiler options, in NVRTC's or nvcc's spelling; as in CuPy, they are ignored with `path`.
    name_expressions : iterable of str
        C++ names, ``"f<float>"``, that `get_function` and `get_global` will look up.
    backend, translate_cucomplex, enable_cooperative_groups, jitify, arch
        As `RawKernel` takes them.
    link, include_dirs, headers, fallback, pch, timeout, memory_limit, recompile, name
        As in `rtcompile.compile`.

    Raises
    ------
    InvalidRequest
        The arguments cannot describe a build, such as neither or both of `code` and `path`.
    CompileError
        At the first use, if the compiler rejects the source.
    DriverError
        At the first use, if the device cannot load the code.

    Examples
    --------
    >>> source = "template <class T> __global__ void f(T* x) { *x += 1; }"
    >>> module = rtcompile.RawModule(code=source, name_expressions=["f<float>"], arch="sm_90")
    >>> kernel = module.get_function("f<float>")  # doctest: +SKIP
    >>> module.object_code.lowered_names["f<float>"]
    '_Z1fIfEvPT_'
    """

    __module__ = "rtcompile"  # its public module

    @public
    def __init__(
        self,
        *,
        code: str | None = None,
        path: str | os.PathLike[str] | None = None,
        options: Sequence[str] | str = (),
        backend: Backend = "nvrtc",
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        name_expressions: Iterable[str] | None = None,
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
        name: str = DEFAULT_NAME,
    ) -> None:
        given = locals()
        del given["self"]
        self._bind(code_of(given))

    @classmethod
    @public
    def from_file(cls, path: Any, **arguments: Any) -> RawModule:
        """Return the module of a source file as it is now; its folder is searched for quoted includes.

        Parameters
        ----------
        path : path-like
            The CUDA C++ source.
        **arguments
            As `RawModule` takes them.

        Raises
        ------
        InvalidRequest
            The file cannot be read, or is not UTF-8.
        """
        name = absolute(checked_path("path", path))  # by it the compiler finds quoted includes
        return cls(code=read_text(name), name=name, **arguments)

    def _bind(self, build: LazyCode, name: str = "") -> None:  # noqa: ARG002  # `RawKernel` has one
        super().__init__(**{argument: build.arguments[argument] for argument in OF_CUPY})
        self._build = build
        queue_ahead(self, build)  # start compiling before the first use

    def _check(self, code: ObjectCode) -> None:
        if self.request is not None:
            pipeline.check_kernels(self.request, code)
            pipeline.warn_of_source(self.request, code)

    @property
    @public
    def module(self) -> Any:
        """The ``cupy.cuda.function.Module`` on the current device, built on first use."""
        return self._build.module()

    @public
    def get_function(self, name: str) -> RawKernel:
        """Return the kernel `name`, a C++ name, or one of `name_expressions`.

        Raises
        ------
        DriverError
            The module contains no such kernel.
        InvalidRequest
            `name` is not a str.
        """
        if not isinstance(name, str):
            raise InvalidRequest(f"name must be a str, not {shown(name)}")
        if self.name_expressions:
            name = self.module.mapping.get(name, name)
        kernel = RawKernel.__new__(RawKernel)
        kernel._bind(self._build, name)
        _ = kernel.kernel  # CuPy finds a missing name here and not at the first launch
        return kernel

    @public
    def get_global(self, name: str) -> Any:
        """Return a ``cupy.cuda.MemoryPointer`` to the variable `name`, or to a name expression's.

        Raises
        ------
        DriverError
            The module contains no such variable.
        """
        if self.name_expressions:
            name = self.module.mapping.get(name, name)
        return self._build.named("variable", super().get_global, name)

    def __repr__(self) -> str:
        return f"<RawModule {self._build.origin()}>"

"""`SourceModule` as PyCUDA has it, with rtcompile's compiler, headers and cache.

If PyCUDA has a current context, the module and its functions are PyCUDA's own. Otherwise CuPy loads them, `kernel.launch`
launches them, and `Function` accepts the arguments that PyCUDA's function does.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import rtcompile
from rtcompile import cubin
from rtcompile.errors import CompileError, InvalidRequest, public, warn
from rtcompile.request import cxx

if TYPE_CHECKING:
    from rtcompile import ObjectCode


class _Copied:
    def __init__(self, array: Any) -> None:
        self.array = array


class In(_Copied):
    """An argument in host memory, which is copied to the device before the launch."""


class Out(_Copied):
    """An argument in host memory, which is copied from the device after the launch."""


class InOut(In, Out):
    """An argument in host memory, which is copied in both directions."""


try:  # PyCUDA may have a context at a launch, and its functions accept only its own classes
    from pycuda.driver import In, InOut, Out  # type: ignore[import-not-found, no-redef]  # noqa: F401
except ImportError:  # PyCUDA or the driver is missing
    pass


_POINTER = np.dtype(np.uintp)


class SourceModule:
    """A module of CUDA kernels: ``pycuda.compiler.SourceModule``, built by rtcompile.

    Parameters
    ----------
    source : str
        CUDA C++ source. Leading includes in angle brackets stay outside of ``extern "C"``.
    nvcc : str
        Accepted for compatibility: rtcompile finds the compiler.
    options : sequence of str, optional
        Options in nvcc's spelling; ``PYCUDA_DEFAULT_NVCC_FLAGS`` sets the default.
    keep : bool
        Write the source and the code to a new folder, and print its path.
    no_extern_c : bool
        Do not put the source in ``extern "C" { … }``.
    arch, code : str, optional
        Architectures as nvcc takes them; `code` counts if both are given. The default is the current device's.
    cache_dir : str or False, optional
        False compiles again. A folder is ignored with a warning; ``RTCOMPILE_CACHE_DIR`` sets the cache's.
    include_dirs : sequence of str, optional
        Folders with headers.

    Raises
    ------
    CompileError
        The source does not compile; ``pycuda.driver.CompileError`` if PyCUDA has a context.

    Examples
    --------
    >>> from rtcompile.extras.pycuda import SourceModule
    >>> module = SourceModule("__global__ void twice(float* x) { *x *= 2; }", arch="sm_90")
    >>> module.object_code.symbols()
    {'twice': 'twice'}
    """

    @public
    def __init__(
        self,
        source: str,
        nvcc: str = "nvcc",
        options: Sequence[str] | None = None,
        keep: bool = False,
        no_extern_c: bool = False,
        arch: str | None = None,
        code: str | None = None,
        cache_dir: str | bool | None = None,
        include_dirs: Sequence[str] | None = None,
    ) -> None:
        if nvcc != "nvcc":
            warn(
                f"nvcc={nvcc!r} is not used: rtcompile finds the toolkit; set CUDA_PATH to choose it"
            )
        if cache_dir:
            warn(f"cache_dir={cache_dir!r} is not used; set RTCOMPILE_CACHE_DIR instead")
        flags = os.environ.get("PYCUDA_DEFAULT_NVCC_FLAGS", "").split()
        flags = flags if options is None else [*options]
        if not any(flag.lstrip("-").startswith(("ftz", "use_fast_math")) for flag in flags):
            flags.append("-ftz=false")  # nvcc's default, which is not rtcompile's
        folders = list(include_dirs or ())
        if found := find_spec("pycuda"):
            folders.append(os.path.join(os.path.dirname(str(found.origin)), "cuda"))
        driver = _pycuda()
        if driver is not None and not (arch or code):
            arch = "sm_{}{}".format(*driver.Context.get_device().compute_capability())
        arguments: dict[str, Any] = {
            "options": flags,
            "include_dirs": folders,
            "arch": (code or arch or "").partition(",")[0] or None,
            "recompile": cache_dir is False,
        }
        text = source if no_extern_c else _extern_c(source)
        #: The code, as `rtcompile.compile` returns it.
        self.object_code: ObjectCode
        #: The loaded module: PyCUDA's, or a `rtcompile.RawModule`.
        self.module: Any
        if driver is None:
            self.module = rtcompile.RawModule(code=text, **arguments)
            self.object_code = self.module.object_code
        else:
            try:
                self.object_code = rtcompile.compile(text, **arguments)
            except CompileError as error:
                raise driver.CompileError(str(error), None) from error
            self.module = driver.module_from_buffer(self.object_code.code)
        if keep:
            folder = Path(tempfile.mkdtemp())
            (folder / "kernel.cu").write_text(text)
            self.object_code.save(folder / f"kernel.{self.object_code.kind}")
            print(f"*** compiler output in {folder}")
        self._has_cupy = driver is None

    @public
    def get_function(self, name: str) -> Any:
        """Return a kernel: PyCUDA's function, or a `Function`."""
        function = self.module.get_function(name)
        return Function(function) if self._has_cupy else function

    @public
    def get_global(self, name: str) -> tuple[Any, int]:
        """Return the address and the size of a variable; with CuPy the address is a ``MemoryPointer``."""
        found = self.module.get_global(name)
        if not self._has_cupy:
            return found  # type: ignore[no-any-return]
        sizes = {symbol.name: symbol.size for symbol in cubin.read_symbols(self.object_code.code)}
        return found, sizes[name]

    def __getattr__(self, name: str) -> Any:
        if name not in ("get_texref", "get_surfref"):
            raise AttributeError(f"SourceModule has no attribute {name!r}")
        found = getattr(vars(self).get("module"), name, None)
        if found is None:
            raise AttributeError(
                f"{name}: texture and surface references were removed with CUDA 12; declare a parameter "
                "cudaTextureObject_t, and pass a cupy.cuda.texture.TextureObject"
            )
        return found


class Function:
    """A kernel that is launched as PyCUDA does: ``f(*args, grid=(1, 1), block=(256, 1, 1))``.

    Attributes such as `num_regs`, `shared_size_bytes` and `max_threads_per_block` are the driver's, also in capitals.
    """

    _types: tuple[np.dtype[Any], ...] = ()

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    @public
    def __call__(
        self,
        *args: Any,
        block: tuple[int, ...],
        grid: tuple[int, ...] = (1, 1),
        stream: Any = None,
        shared: int = 0,
    ) -> None:
        """Launch the kernel.

        Parameters
        ----------
        *args : arrays and numbers
            What `RawKernel.launch` takes: arrays of any library, NumPy's scalars, structs as NumPy arrays or records;
            `In`, `Out`, `InOut`.
        block, grid : tuple of int
            Threads in a block, blocks in the grid.
        stream : cupy.cuda.Stream, optional
            None is the current stream, as for `RawKernel.launch`.
        shared : int
            Bytes of dynamic shared memory; above 48 KiB the kernel's limit is raised.

        Raises
        ------
        InvalidRequest
            An argument does not fit its parameter.
        """
        import cupy

        copied = [each for each in args if isinstance(each, (In, Out))]
        with stream or nullcontext():
            copies = {
                id(each): (cupy.asarray if isinstance(each, In) else cupy.empty_like)(each.array)
                for each in copied
            }
            values = [copies.get(id(each), each) for each in args]
            self._kernel.launch(grid, block, values, shared_mem=shared, stream=stream)
            for each in copied:
                if isinstance(each, Out):
                    each.array[...] = copies[id(each)].get()

    def prepare(self, arg_types: Sequence[Any]) -> Function:
        """Set the types for prepared calls: `struct` codes such as ``"PPif"``, or dtypes; other elements are pointers."""
        self._types = tuple(
            np.dtype(each)
            if isinstance(each, (str, np.dtype))
            or (isinstance(each, type) and issubclass(each, np.number))
            else _POINTER
            for each in arg_types
        )
        return self

    @public
    def prepared_call(self, grid: Any, block: Any, *args: Any, shared_size: int = 0) -> None:
        """Launch with arguments of the types that `prepare` was given."""
        self.prepared_async_call(grid, block, None, *args, shared_size=shared_size)

    @public
    def prepared_async_call(
        self, grid: Any, block: Any, stream: Any, *args: Any, shared_size: int = 0
    ) -> None:
        """Launch on a stream of any library, or on the current one for None."""
        if len(args) != len(self._types):
            raise InvalidRequest(
                f"prepare() was given {len(self._types)} types, and this call has {len(args)} arguments"
            )
        values = [
            value if kind == _POINTER else np.asarray(value, kind)
            for value, kind in zip(args, self._types, strict=True)
        ]
        self._kernel.launch(grid, block, values, shared_mem=shared_size, stream=stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name.lower())


def _extern_c(source: str) -> str:
    """Return the source in ``extern "C"`` after leading includes, which may have templates; lines keep their number."""
    rest = cxx.split_prefix(source)[1]
    head = source[: len(source) - len(rest)]
    # A quoted header may contain the kernels, so it is put in ``extern "C"`` too.
    if re.search(r'#\s*include\s*"', head):
        head, rest = "", source
    line = f"{head.count(chr(10)) + 2}" if head else "1\n"
    return f'{head}\nextern "C" {{\n#line {line}{rest}\n}}\n'


def _pycuda() -> Any:
    """Return PyCUDA's driver module if it has a current context."""
    driver = sys.modules.get("pycuda.driver")
    return driver if driver is not None and driver.Context.get_current() is not None else None

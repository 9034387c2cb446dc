"""`KernelLibrary`: kernels of a Python package, with sources as resources and calls checked by signatures."""

from __future__ import annotations

import importlib
import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import rtcompile
from rtcompile import CompileRequest
from rtcompile.errors import InvalidRequest, public, shown
from rtcompile.files.sealed import read_text
from rtcompile.named import NamedTuple, computed_once
from rtcompile.request.values import absolute, strings, text

if TYPE_CHECKING:
    from rtcompile import Arch, ObjectCode


class KernelLibrary:
    """The kernels of one Python package.

    Parameters
    ----------
    package : str
        The package that contains the sources as resources, usually ``__name__``.
    folder : str
        The package's folder with the sources; it is also searched for headers.
    options : sequence of str
        Compiler options of all kernels. For directories of the package use `include_dirs`.
    include_dirs : sequence of str
        Further folders of the package to search for headers.
    headers : mapping of str to str, optional
        Headers as strings (``{"tile.cuh": text}``), for generated headers; searched before all others.
    bundle : str, optional
        Path of the bundle in the package; see ``rtcompile bundle``. Without the file, kernels are
        compiled when they are first called.

    Raises
    ------
    InvalidRequest
        An argument has a wrong type; the message names it.

    Examples
    --------
    >>> library = rtcompile.KernelLibrary("mykernels", bundle="kernels.rtcb")
    >>> vectors = library.module("vectors.cu", {"scale<float>": "float* x, float factor, int n"})
    >>> list(vectors)
    ['scale<float>']
    >>> vectors["scale<float>"]((8,), (128,), (x, 2.0, x.size))  # doctest: +SKIP
    """

    def __init__(
        self,
        package: str,
        *,
        folder: str = "",
        options: Sequence[str] = (),
        include_dirs: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        bundle: str | None = None,
    ) -> None:
        self.package = text("package", package)
        self.folder = text("folder", folder)
        self.options = strings("options", options)
        self.include_dirs = strings("include_dirs", include_dirs)
        self.headers = CompileRequest("", headers=() if headers is None else headers).headers
        self.bundle = None if bundle is None else text("bundle", bundle)
        self.modules: list[KernelModule] = []

    @public
    def module(
        self, source: str, kernels: Mapping[str, str], *, options: Sequence[str] = ()
    ) -> KernelModule:
        """Declare the kernels of one source file.

        Parameters
        ----------
        source : str
            The file's name in the library's folder.
        kernels : mapping of str to str
            Each kernel, as a C++ name expression (``"scale<float>"``), with its parameters as C++
            declares them (``"float* x, float factor, int n"``).
        options : sequence of str
            Compiler options after the library's.

        Raises
        ------
        InvalidRequest
            An argument has a wrong type; the message names it. Signatures are read later: at a
            kernel's first call, and by ``rtcompile bundle``.
        """
        module = KernelModule(self, source, kernels, options)
        self.modules.append(module)
        return module

    @public
    def path(self, resource: str) -> str:
        """Return the path of a file or folder in the package's folder; it need not exist.

        Raises
        ------
        InvalidRequest
            The package cannot be imported, or is not a folder on disk.
        """
        advice = "give a KernelLibrary the __name__ of a package that can be imported"
        missing = f"there is no package {self.package!r} to hold kernels; {advice}"
        module = imported(self.package, missing)
        # This does what importlib.resources does, whose import takes 20 ms.
        for folder in getattr(module, "__path__", [os.path.dirname(module.__file__ or "")]):
            if os.path.isdir(folder):
                return absolute(os.path.join(folder, resource))
        raise InvalidRequest(
            f"package {self.package} is not a folder on disk, and compilers read files; install it unpacked"
        )

    def __repr__(self) -> str:
        return f"KernelLibrary({self.package!r}, modules={[m.source for m in self.modules]})"

    def __getstate__(self) -> dict[str, Any]:
        # Modules refer to their library: pickling both would be circular.
        return {**self.__dict__, "modules": []}


class KernelModule:
    """One source file of a `KernelLibrary`; ``module[name]`` is a `Kernel`, iteration gives names."""

    def __init__(
        self,
        library: KernelLibrary,
        source: str,
        kernels: Mapping[str, str],
        options: Sequence[str] = (),
    ) -> None:
        if not isinstance(library, KernelLibrary):
            raise InvalidRequest(f"library must be a KernelLibrary, not {shown(library)}")
        if not isinstance(kernels, Mapping):
            raise InvalidRequest(
                f"kernels must map names to signatures, not {shown(kernels)}; write "
                "{'scale<float>': 'float* x, float factor, int n'}"
            )
        self.library = library
        self.source = text("source", source)
        self.options = strings("options", options)
        self._kernels = {
            text("kernels", name): Kernel(self, name, text(f"kernels[{shown(name)}]", signature))
            for name, signature in kernels.items()
        }

    @public
    def __getitem__(self, name: str) -> Kernel:
        try:
            return self._kernels[name]
        except KeyError:
            declared = ", ".join(self._kernels) or "none"
            raise InvalidRequest(
                f"{self.source} has no kernel {name!r} declared; declared are: {declared}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    @computed_once
    def _given(self) -> dict[str, Any]:
        """The arguments of `CompileRequest`."""
        library = self.library
        folders = dict.fromkeys((library.folder, *library.include_dirs))
        include = (f"-I{library.path(folder)}" for folder in folders)
        return {
            "source": read_text(library.path(os.path.join(library.folder, self.source))),
            "options": (*include, *library.options, *self.options),
            "name_expressions": tuple(self._kernels),
            "name": os.path.basename(self.source),
            "headers": dict(library.headers),
        }

    @computed_once
    @public
    def request(self) -> CompileRequest:
        """The request of this module, with no architecture chosen."""
        return CompileRequest(**self._given)

    @public
    def compile(self, arch: str | Arch | None = None) -> ObjectCode:
        """Return the code for an architecture: from the bundle, the cache, or a compiler.

        Parameters
        ----------
        arch : str or Arch, optional
            ``"sm_90a"``; by default that of the current device.
        """
        self.use_bundle()
        return rtcompile.compile(**self._given, arch=arch)

    @computed_once
    @public
    def raw(self) -> Any:
        """The `RawModule` of these kernels."""
        self.use_bundle()
        given = dict(self._given)
        # If several threads create one at the same time, all of these share the loaded module.
        return rtcompile.RawModule(code=given.pop("source"), **given)

    @public
    def use_bundle(self) -> None:
        """Use the library's bundle, if there is one; calling a kernel does this too."""
        if self.library.bundle is not None:
            rtcompile.use_bundle(self.library.path(self.library.bundle))

    def __repr__(self) -> str:
        return f"KernelModule({self.library.package!r}, {self.source!r}, {list(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        signatures = {name: kernel.signature for name, kernel in self._kernels.items()}
        return KernelModule, (self.library, self.source, signatures, self.options)


class Kernel:
    """A kernel that checks its arguments. It is called like CuPy's: ``kernel(grid, block, args)``.

    Arguments must match the signature: arrays of the element type (of CuPy, or with
    ``__cuda_array_interface__``), and numbers that fit. Python's numbers are converted to the
    parameter's type: a ``float`` can be passed for a C++ ``float``, where CuPy passes a ``double``.

    Attributes
    ----------
    name : str
        The C++ name expression.
    signature : str
        Its parameters, as declared.
    """

    def __init__(self, module: KernelModule, name: str, signature: str) -> None:
        if not isinstance(module, KernelModule):
            raise InvalidRequest(f"module must be a KernelModule, not {shown(module)}")
        self.module = module
        self.name = text("name", name)
        self.signature = text("signature", signature)

    @computed_once
    @public
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters in the signature; raises `InvalidRequest` if it cannot be read."""
        return parse(self.signature, f"{self.module.source}: {self.name}")

    @public
    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
    ) -> None:
        """Launch the kernel on the current device and stream, as `RawKernel` does.

        Parameters
        ----------
        args : sequence
            One argument for each parameter of the signature: arrays in device memory, numbers.

        Raises
        ------
        InvalidRequest
            An argument does not fit the signature.
        """
        self.raw(grid, block, self.arguments(args), shared_mem=shared_mem)

    @public
    def arguments(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments as a `RawKernel` takes them.

        Raises
        ------
        InvalidRequest
            An argument does not fit the signature; the message names the parameter.
        """
        from rtcompile.extras.packaging.arguments import convert

        return convert(self.parameters, args, self.name)

    @public
    def compile(self, arch: str | Arch | None = None) -> ObjectCode:
        """Return the code of the kernel's module for an architecture, or for the current device."""
        return self.module.compile(arch)

    @computed_once
    @public
    def raw(self) -> Any:
        """The `RawKernel`, with CuPy's attributes; it is loaded on each device that calls it."""
        module = self.module.raw
        kernel = module.get_function(self.name)
        self.check(module.object_code)
        return kernel

    @public
    def check(self, obj: ObjectCode) -> None:
        """Compare the signature with the machine code, which contains the size of each parameter.

        Raises
        ------
        InvalidRequest
            They differ; the message gives both.
        """
        if obj.kind != "cubin":
            return
        symbol = obj.lowered_names.get(self.name, self.name)
        found = next((k for k in obj.report().kernels if k.symbol == symbol), None)
        if found is None:
            raise InvalidRequest(f"{self!r} is not a kernel of {self.module.source}")
        there = [size for _, size in found.parameters]
        declared = [parameter.bytes for parameter in self.parameters]
        fits = len(there) == len(declared) and all(
            size in (None, own) for size, own in zip(declared, there, strict=True)
        )
        if not fits:
            raise InvalidRequest(
                f"{self!r} declares {_sizes(declared)}; the kernel in {self.module.source} takes "
                f"{_sizes(there)}: correct the signature"
            )

    def __repr__(self) -> str:
        return f"{self.name}({self.signature})"

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, (self.module, self.name)


def _sizes(sizes: Sequence[int | None]) -> str:
    listed = ", ".join("?" if size is None else str(size) for size in sizes)
    return f"parameters of {listed} bytes" if sizes else "no parameters"


def imported(name: str, missing: str) -> ModuleType:
    """Import a module; raise InvalidRequest if it is missing. Errors inside it are raised unchanged."""
    try:
        if all(map(str.isidentifier, name.split("."))):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, but one that it imports does not
    raise InvalidRequest(missing)


# --- Signatures -----------------------------------------------------------------------------------

POINTER_BYTES = 8

# The sizes in bytes of types that NumPy lacks.
_OTHERS = {
    "__int128": 16,
    "unsigned __int128": 16,
    "__nv_bfloat16": 2,
    "nv_bfloat16": 2,
    "__nv_fp8_e4m3": 1,
    "__nv_fp8_e5m2": 1,
}

_BASIC = frozenset(
    ("bool", "char", "short", "int", "long", "signed", "unsigned", "float", "double", "void")
)
_BUILT_IN = _BASIC | {"__int128"}
_QUALIFIERS = re.compile(
    r"\b(?:const|volatile|struct|class|enum|union|typename|restrict|__restrict__|__restrict|__grid_constant__)\b"
)
_NAMESPACES = re.compile(r"\b(?:std|cuda|thrust|cupy)::|(?<![\w>])::")
_NAME = re.compile(r"[A-Za-z_]\w*\Z")


class Parameter(NamedTuple):
    """One parameter.

    Attributes
    ----------
    declaration : str
        The declaration as it was written.
    name : str
        The parameter's name, or ``""``.
    type : str
        Its type, or the type that it points to, without qualifiers and standard namespaces.
    pointer : bool
        Whether it is a pointer.
    const : bool
        Whether the value that it points to is constant.
    dtype : str
        NumPy's name for `type`, or ``""``.
    size : int or None
        Bytes of `type`; None if the type is unknown.
    """

    declaration: str
    name: str
    type: str
    pointer: bool
    const: bool
    dtype: str
    size: int | None

    @property
    def bytes(self) -> int | None:
        """Bytes of the parameter itself."""
        return POINTER_BYTES if self.pointer else self.size

    def __str__(self) -> str:
        return self.declaration


def parse(signature: str, kernel: str) -> tuple[Parameter, ...]:
    """Read a kernel's parameters as C++ declares them, ``float* x, int n``, without default values and comments."""
    if signature.strip() in ("", "void"):
        return ()
    from rtcompile.request import cxx  # declaring a kernel does not need it

    return tuple(_parameter(part, kernel, cxx.NUMBERS) for part in cxx.split(signature))


def _parameter(declaration: str, kernel: str, numbers: Mapping[str, str]) -> Parameter:
    text = _NAMESPACES.sub("", _QUALIFIERS.sub(" ", declaration))
    pointed, star, behind = text.partition("*")
    name = ""
    if star:
        name = behind.replace("*", "").strip()
    else:
        pointed, bracket, _ = text.partition("[")
        star = bracket
        words = pointed.split()
        if len(words) > 1 and words[-1] not in _BASIC and _NAME.match(words[-1]):
            name = words.pop()
            pointed = " ".join(words)
    type_ = _canonical(pointed)
    unclear = re.search(r"[&=(){}]", text) or not _is_type(type_)
    unclear = unclear or any(text.count(a) != text.count(b) for a, b in ("<>", "[]"))
    if unclear or (name and not _NAME.match(name)):
        raise InvalidRequest(
            f"{kernel}: {declaration!r} is not a parameter of a kernel; expected one like "
            "'const float* x' or 'int n'"
        )
    many = "*" in behind  # for a pointer to pointers no array has the right element type
    dtype = "" if many else numbers.get(type_, "")
    size = POINTER_BYTES if many else int(dtype[1:] or 1) if dtype else _OTHERS.get(type_)
    const = "const" in declaration.partition("*")[0].split()
    return Parameter(declaration, name, type_, bool(star), const, dtype, size)


def _is_type(canonical: str) -> bool:
    """Return whether this is the name of one type; only built-in types and templates contain blanks."""
    words = re.sub(r"<.*>", "", canonical).split()
    return len(words) == 1 or (bool(words) and _BUILT_IN.issuperset(words))


def _canonical(text: str) -> str:
    """Return ``"unsigned long long"`` for ``"long unsigned  int long"``, other types as they are."""
    words = text.split()
    if not words or not _BASIC.issuperset(words):
        return re.sub(r"\s*([<>,])\s*", r"\1", " ".join(words))
    if "char" in words and "signed" in words:
        return "signed char"
    kept = [word for word in words if word not in ("signed", "unsigned", "int")] or ["int"]
    return ("unsigned " if "unsigned" in words else "") + " ".join(kept)

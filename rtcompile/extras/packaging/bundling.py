"""Bundles what a package declares.

A target is a `KernelLibrary` or one of its modules, a `RawModule`, a `RawKernel`, a
`CompileRequest`, or a list of these. ``"package.module"`` names all that a Python module declares,
``"package.module:name"`` one of them, ``"kernel.cu"`` a source file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rtcompile.build import to_bundle
from rtcompile.build.to_bundle import OVERRIDES, Built, Work
from rtcompile.errors import InvalidRequest, shown
from rtcompile.frontends.library import KernelLibrary, KernelModule
from rtcompile.request.request import CompileRequest
from rtcompile.request.values import items


def bundle(
    targets: Iterable[Any], path: str | os.PathLike[str], *, archs: Sequence[str], **options: Any
) -> list[Built]:
    """Build targets, objects or names for `resolve`, into a bundle; `options` as `to_bundle.bundle`."""
    return to_bundle.bundle(works(targets, archs), path, **options)


def works(targets: Iterable[Any], archs: Sequence[str]) -> list[Work]:
    """Return the builds of targets for architectures, as for `bundle`."""
    work = [*to_bundle.for_archs(_works(items("targets", targets, "objects or names")), archs)]
    if not work:
        raise InvalidRequest("nothing to bundle: the targets declare no kernels")
    return work


def resolve(name: str) -> list[Any]:
    """Return the objects that a target's name refers to; this imports their Python module."""
    if name.endswith(".cu"):
        return [_source_file(name)]
    import importlib

    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except (ModuleNotFoundError, TypeError, ValueError) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        # An error inside an existing module is shown to its author unchanged.
        if (
            module_name.replace(".", "").isidentifier()
            and module_name[0] != "."
            and (missing is None or not f"{module_name}.".startswith(f"{missing}."))
        ):
            raise
        raise InvalidRequest(
            f"{name!r}: there is no module {missing or module_name!r}; a target is "
            "'package.module', 'package.module:name' or 'kernel.cu'"
        ) from None
    if not path:
        declared = [v for v in vars(found).values() if isinstance(v, _DECLARED) or _is_raw(v)]
        # A module is left out where its library is listed too, since it would be built twice.
        found = [v for v in declared if getattr(v, "library", None) not in declared]
        if not found:
            raise InvalidRequest(f"{name!r} declares nothing to build")
        return list(found)
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InvalidRequest(f"{name!r}: {found!r} has no {part!r}") from None
    return [found]


def _works(target: Any) -> Iterator[Work]:
    if isinstance(target, (str, list, tuple)):
        for found in resolve(target) if isinstance(target, str) else target:
            yield from _works(found)
    elif isinstance(target, (Work, CompileRequest)):
        yield target if isinstance(target, Work) else Work(target)
    elif isinstance(target, (KernelLibrary, KernelModule)):
        for module in getattr(target, "modules", [target]):
            kernels = tuple(module[name] for name in module)
            for kernel in kernels:
                _ = kernel.parameters  # a wrong signature is reported before anything is built
            yield Work(module.request, kernels=kernels)
    elif _is_raw(target):
        build = target._build
        if build.path is not None:
            raise InvalidRequest(f"{target!r} is a compiled file: there is nothing to build")
        yield Work(build.request, {name: build.arguments[name] for name in OVERRIDES})
    else:
        raise InvalidRequest(
            f"{shown(target)} cannot be bundled; a KernelLibrary, RawModule, RawKernel or "
            "CompileRequest can"
        )


_DECLARED = (CompileRequest, KernelLibrary, KernelModule)


def _is_raw(value: Any) -> bool:
    """Return whether a value is a `RawModule` or `RawKernel`, without importing CuPy."""
    return any(
        cls.__name__ in ("RawModule", "RawKernel") and cls.__module__.split(".")[0] == "rtcompile"
        for cls in type(value).__mro__
    )


def _source_file(path: str) -> CompileRequest:
    try:
        with open(path, encoding="utf-8") as source:
            text = source.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {error}") from None
    folder = os.path.dirname(os.path.abspath(path))
    return CompileRequest(text, options=(f"-I{folder}",), name=os.path.basename(path))

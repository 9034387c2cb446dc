"""Builds the kernels of a package for several architectures, in parallel, into one bundle.

A target is what a package declares: a `KernelLibrary` or one of its modules, a `RawModule`, a
`RawKernel`, a `CompileRequest`, or a list of these. ``"package.module"`` names all that a Python
module declares, ``"package.module:name"`` one of them, ``"kernel.cu"`` a source file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rtcompile.build import from_bundle, planned
from rtcompile.build.many import compile_many
from rtcompile.bundles import index as bundles
from rtcompile.bundles.file import Bundle, Contents, LeftOut, Row, contents_of, listed, write
from rtcompile.errors import InvalidRequest, shown
from rtcompile.files.fileset import FileSet
from rtcompile.files.sealed import content_digest
from rtcompile.lookup.find import query_of
from rtcompile.request import options as compiler_options
from rtcompile.request.object_code import ObjectCode, files_of
from rtcompile.request.request import CompileRequest, with_headers
from rtcompile.request.values import items, strings
from rtcompile.request.values import path as checked_path
from rtcompile.settings import Settings

if TYPE_CHECKING:
    from rtcompile.extras.packaging.library import Kernel


_OVERRIDES = ("fallback", "pch", "timeout", "memory_limit")


@dataclass(frozen=True, slots=True)
class Built:
    """One build in a bundle: its request and its result."""

    request: CompileRequest
    code: ObjectCode


@dataclass(frozen=True, slots=True)
class Work:
    """A build, the further arguments of its `RawModule`, and the kernels that it declares."""

    request: CompileRequest
    overrides: tuple[Any, ...] = (None,) * len(_OVERRIDES)
    kernels: tuple[Kernel, ...] = ()  # kernels of a library, whose signatures the code must match
    # The request that programs make, if it is not `request`, and the compute capability of their
    # devices; None for that of the build's architecture.
    requested: CompileRequest | None = None
    requested_by: tuple[int, int] | None = None
    origin: str = ""  # the line of a recorded program that requested it, "train.py:12"

    def label(self) -> str:
        """Return the build's name in messages."""
        names = ", ".join(self.request.name_expressions)
        requested_at = f", requested by {self.origin}" if self.origin else ""
        return f"{self.request.name}{f' ({names})' if names else ''}{requested_at}"

    def settings(self) -> Settings:
        return Settings.from_environ().override(**self.arguments())

    def arguments(self) -> dict[str, Any]:
        return dict(zip(_OVERRIDES, self.overrides, strict=True))


def bundle(
    targets: Iterable[Any],
    path: str | os.PathLike[str],
    *,
    archs: Sequence[str],
    update: bool = False,
    progress: bool | Callable[[int, int, Any], Any] | None = None,
    skip_unshippable: bool = False,
) -> list[Built]:
    """Build targets, objects or names for `resolve`, and write them into a bundle.

    ``"compute_90"`` gives PTX, which later devices run too. A target whose options or ``arch=`` fix
    an architecture is built for that one alone. `update` keeps what the file already holds for
    other architectures, sources and CUDA versions. Without `skip_unshippable`, one target that
    cannot be bundled is an error. After an error the file is unchanged.
    """
    target = checked_path("path", path)
    if os.path.isdir(target):
        raise InvalidRequest(f"{target} is a folder; a bundle is one file, as kernels.rtcb")
    work = works(targets, archs)
    with bundles.out_of_use():
        codes = _compile(work, progress)
        for w, code in zip(work, codes, strict=True):
            for kernel in w.kernels:
                kernel.check(code)
        contents: list[Contents] = []
        built: list[Built] = []
        unbundleable: list[LeftOut] = []
        for w, code in zip(work, codes, strict=True):
            try:
                contents.append(_contents(w, code))
            except UnbundleableError as error:
                unbundleable.append(_left_out(w, code, str(error)))
            else:
                built.append(Built(w.request, code))
    if unbundleable and not (skip_unshippable and contents):
        raise InvalidRequest(_unbundleable_message(unbundleable, len(work)))
    before = Bundle(target) if update else None
    kept = before.contents() if before is not None else []
    # Builds that were left out before and are in the bundle now are removed from the list.
    unmade = [
        each
        for each in (before.left_out() if before is not None else ())
        if not any(each.is_row(c.row) for c in contents)
    ]
    try:
        write(target, [*kept, *contents], [*unmade, *unbundleable])
    except OSError as error:
        raise InvalidRequest(f"{target} cannot be written: {error.strerror}") from None
    return built


class UnbundleableError(Exception):
    """A build cannot be part of a bundle; the message says why."""


def _left_out(work: Work, code: ObjectCode, reason: str) -> LeftOut:
    request = work.request
    options = from_bundle.effective_options(request, work.settings()).key_fields()
    return LeftOut(
        work.label(),
        str(code.arch),
        content_digest(request.source.encode()),
        reason,
        listed(_texts(options)),
        listed(request.name_expressions),
    )


def _texts(options: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(f"{label} {value}".strip() for label, value in options)


def _unbundleable_message(unbundleable: Sequence[LeftOut], count: int) -> str:
    builds = dict.fromkeys(
        f"{each.program} cannot be bundled: {each.reason}" for each in unbundleable
    )
    if count == 1:
        return next(iter(builds))
    lines = "".join(f"\n  {build}" for build in builds)
    rest = (
        "no bundle was written. To bundle the rest: rtcompile bundle … --skip-unshippable"
        if len(unbundleable) < count
        else "no bundle was written"
    )
    return f"{len(unbundleable)} of {count} builds cannot be bundled; {rest}{lines}"


def works(targets: Iterable[Any], archs: Sequence[str]) -> list[Work]:
    """Return the builds of targets for architectures, as for `bundle`."""
    archs = strings("archs", archs)
    work = [
        w
        for target in items("targets", targets, "objects or names")
        for w in for_archs(_works(target), archs)
    ]
    if not work:
        raise InvalidRequest("nothing to bundle: the targets declare no kernels")
    return work


def _compile(work: Sequence[Work], progress: Any) -> list[ObjectCode]:
    codes: dict[int, ObjectCode] = {}
    for overrides in dict.fromkeys(w.overrides for w in work):  # usually there is just one
        batch = [index for index, w in enumerate(work) if w.overrides == overrides]
        requests = [work[index].request for index in batch]
        built = compile_many(requests, progress=progress, **work[batch[0]].arguments())
        codes.update(zip(batch, built, strict=True))
    return [codes[index] for index in range(len(work))]


def _contents(work: Work, code: ObjectCode) -> Contents:
    """Return what a bundle stores of a build; raise `UnbundleableError` if it cannot be bundled."""
    request, name = work.request, work.request.name
    settings = work.settings()
    inputs = from_bundle.key_inputs(request, settings)
    if inputs is None:
        raise UnbundleableError("link= holds sources; compile them and link the results")
    plan = planned.plan(request, settings)
    read = files_of(code.build) or FileSet(code.build.headers)
    if read.uncacheable and not read.headers:
        raise UnbundleableError(read.uncacheable)
    if read.current() is None:
        raise InvalidRequest(f"{name}: a header changed while it was bundled; try again")
    if code.build.backend == "nvrtc" and (strays := [h for h in read.headers if not h.label]):
        raise UnbundleableError(
            f"it includes {strays[0].path} by its path on this machine; give its folder by -I"
        )
    row = Row(
        key=inputs.bundle_key(),
        arch=code.arch,
        kind=code.kind,
        backend=code.build.backend,
        compiler=code.build.compiler,
        cuda=int(code.build.compiler.split()[1].partition(".")[0]),
        program=os.path.basename(name),
        source=content_digest(request.source.encode()),
        options=_texts(inputs.options),
        names=request.name_expressions,
        labels=tuple(directory.label for directory in plan.search),
    )
    return contents_of(row, code, read, plan.search, _request_digests(work, row))


def _request_digests(work: Work, row: Row) -> list[str]:
    """Return the digests of the requests that a build serves, on a device and for its architecture."""
    request = work.request if work.requested is None else work.requested
    forms = [request, request.replace(arch=row.arch, target=row.kind)]
    return list(dict.fromkeys(filter(None, (_digest(each, work, row) for each in forms))))


def _digest(request: CompileRequest, work: Work, row: Row) -> str:
    """Return the digest of a request; "" if it may need another build than this one."""
    settings = work.settings()
    query = query_of(request, settings, work.requested_by or (row.arch.major, row.arch.minor))
    found = bundles.digest_of(query)
    inputs = from_bundle.key_inputs(request, settings)
    if found is None or inputs is None or inputs.bundle_key() != row.key:
        return ""
    own = sum(label.startswith("user") for label in row.labels) - bool(request.headers)
    is_exact = request.arch in (None, row.arch) and request.target == row.kind
    return found[0] if is_exact and len(found[1]) == own else ""


def for_archs(works: Iterable[Work], archs: Sequence[str]) -> Iterator[Work]:
    for work in works:
        request = with_headers(work.request)
        work = replace(work, request=request, requested=work.requested or work.request)
        if request.arch is not None or compiler_options.parse(request.options).arch:
            yield work
            continue
        if not archs:
            raise InvalidRequest(f"{request.name}: no architecture to build for; give one, sm_90a")
        for name in archs:
            yield replace(work, request=request.replace(arch=name))


# --- Targets --------------------------------------------------------------------------------------


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
        declared = [value for value in vars(found).values() if _is_target(value)]
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
    if isinstance(target, str):
        for found in resolve(target):
            yield from _works(found)
    elif isinstance(target, Work):
        yield target
    elif isinstance(target, CompileRequest):
        yield Work(target)
    elif _is_library(target):
        yield from map(_of_module, getattr(target, "modules", [target]))
    elif _is_raw(target):
        yield _of_raw(target)
    elif isinstance(target, (list, tuple)):
        for item in target:
            yield from _works(item)
    else:
        raise InvalidRequest(
            f"{shown(target)} cannot be bundled; a KernelLibrary, RawModule, RawKernel or "
            "CompileRequest can"
        )


def _of_module(module: Any) -> Work:
    kernels = tuple(module[name] for name in module)
    for kernel in kernels:
        _ = kernel.parameters  # a wrong signature is reported before anything is built
    return Work(module.request, kernels=kernels)


def _of_raw(target: Any) -> Work:
    if target._build.path is not None:
        raise InvalidRequest(f"{target!r} is a compiled file: there is nothing to build")
    given = target._build.arguments
    return Work(target._build.request, tuple(given[name] for name in _OVERRIDES))


def _is_target(value: Any) -> bool:
    return isinstance(value, CompileRequest) or _is_library(value) or _is_raw(value)


def _is_library(value: Any) -> bool:
    from rtcompile.extras.packaging.library import KernelLibrary, KernelModule

    return isinstance(value, (KernelLibrary, KernelModule))


def _is_raw(value: Any) -> bool:
    import sys

    # If its module is not loaded, the value cannot be one.
    kernels, modules = map(
        sys.modules.get, ("rtcompile.frontends.raw_kernel", "rtcompile.frontends.raw_module")
    )
    return (kernels is not None and isinstance(value, kernels.RawKernel)) or (
        modules is not None and isinstance(value, modules.RawModule)
    )


def _source_file(path: str) -> CompileRequest:
    try:
        with open(path, encoding="utf-8") as source:
            text = source.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {error}") from None
    folder = os.path.dirname(os.path.abspath(path))
    return CompileRequest(text, options=(f"-I{folder}",), name=os.path.basename(path))

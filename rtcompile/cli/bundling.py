"""``rtcompile bundle``: builds the kernels that a package declares into one file, and verifies it."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rtcompile.build.from_bundle import rows as rows_of
from rtcompile.cli import output, to_bundle
from rtcompile.cli.arguments import BUNDLE_ACTIONS
from rtcompile.cli.running import cupys_record, read_record
from rtcompile.cli.to_bundle import OVERRIDES, Work
from rtcompile.errors import InvalidRequest, shown
from rtcompile.extras.packaging.library import KernelLibrary, KernelModule, imported
from rtcompile.files.sealed import read_text
from rtcompile.lookup.bundles import Bundle, use_bundle
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.request.values import absolute, items

if TYPE_CHECKING:
    from rtcompile.extras.record.recording import Record


def run(given: Namespace) -> int:
    """Build a bundle, or describe one."""
    view, *files = given.targets or [""]
    if view in BUNDLE_ACTIONS:
        if given.output is not None:
            raise InvalidRequest(f"`rtcompile bundle {view}` writes no bundle: leave out -o")
        (_verify if view == "verify" else _list)(given, files)
        return 0
    if not given.targets and not given.cupy:
        raise InvalidRequest("nothing to bundle: name a TARGET, or CuPy's own kernels by --cupy")
    if given.output in (None, "-"):
        raise InvalidRequest("a bundle is written to a file: name it by -o FILE")
    sys.path.insert(0, os.getcwd())  # as `python -m` does: the package need not be installed
    archs = given.arch or []
    with ExitStack() as stack:
        found = [each for name in given.targets for each in _targets(given, name, archs, stack)]
        if given.cupy:
            found += _recorded(cupys_record(given), archs, stack)
        built = bundle(
            found,
            given.output,
            archs=archs,
            update=given.update,
            progress=False if given.json else None,
            skip_unbundleable=given.skip_unbundleable,
        )
    rows = [
        (
            request.name,
            code.arch,
            code.kind,
            code.build.backend,
            output.human_size(len(code.code)),
            f"{code.build.milliseconds:.0f} ms" if code.build.hit is None else "cached",
        )
        for request, code in built
    ]
    _show(given, given.output, ("program", "arch", "kind", "backend", "size", "built"), rows)
    return 0


def _list(given: Namespace, files: Sequence[str]) -> None:
    """Show the builds of bundles."""
    titles = ("program", "arch", "kind", "compiler", "options", "names")
    for path in files:
        rows = [
            (r.program, r.arch, r.kind, r.compiler, " ".join(r.options), ", ".join(r.names))
            for r in rows_of(_bundle(path))
        ]
        _show(given, path, titles, rows)


def _verify(given: Namespace, files: Sequence[str]) -> None:
    """Verify every byte of a bundle, and find the builds of targets in it."""
    path, *names = files or [""]
    if not path:
        raise InvalidRequest("write rtcompile bundle verify FILE, or verify FILE TARGET…")
    found = rows_of(_bundle(path))
    archs = [row.arch.virtual if row.kind == "ptx" else str(row.arch) for row in found]
    archs = list(dict.fromkeys(archs))
    rows: Sequence[Sequence[object]]
    rows = [(row.program, row.arch, row.kind, "verified") for row in found]
    sys.path.insert(0, os.getcwd())
    with ExitStack() as stack:
        targets = [target for name in names for target in _targets(given, name, archs, stack)]
        if names:
            rows = [*_found(path, works(targets, archs))]
    _show(given, path, ("program", "arch", "kind", "outcome"), rows)


def _found(path: str, works: Iterable[Work]) -> Iterator[Sequence[object]]:
    """Yield a row for each build that programs find in a bundle without a compiler and a cache."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="rtcompile-verify-") as empty:
        alone = {"RTCOMPILE_JIT": "0", "RTCOMPILE_BUNDLES": "", "RTCOMPILE_REMOTE": ""}
        os.environ.update(alone, RTCOMPILE_CACHE_DIR=empty)
        try:
            for work in works:
                library = work.kernels[0].module.library if work.kernels else None
                used = library.path(library.bundle) if library and library.bundle else path
                if not os.path.exists(used):
                    raise InvalidRequest(
                        f"{library} has its bundle at {os.path.relpath(used)}, but it is written to "
                        f"{path}: name the same path"
                    )
                use_bundle(used)
                code = work.build()
                yield work.label(), code.arch, code.kind, "found"
        finally:
            os.environ.clear()
            os.environ.update(before)


def _bundle(path: str) -> Bundle:
    """Open a bundle and read every byte of it, since a damaged one must not be described."""
    bundle = Bundle(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is an error here
        rows_of(bundle)
        if bundle.problem:
            raise InvalidRequest(f"{path}: {bundle.problem}")
        to_bundle.verify(bundle)
    return bundle


def _targets(
    given: Namespace, name: str, archs: Sequence[str], stack: ExitStack
) -> Iterator[object]:
    """Yield the targets of a name; headers from a record exist until `stack` is closed."""
    if name.endswith((".json", ".json.part")):
        yield from _recorded(read_record(name, given), archs, stack)
        return
    for target in resolve(name):
        if name.endswith(".cu") and isinstance(target, CompileRequest):
            # The command line's options and name expressions apply to source files only.
            yield target.replace(
                options=(*target.options, *given.compiler_options),
                name_expressions=tuple(given.name_expression),
            )
        else:
            yield target


def _recorded(record: Record, archs: Sequence[str], stack: ExitStack) -> Iterator[Work]:
    """Yield the builds of a record; their headers exist until `stack` is closed."""
    from rtcompile.extras.record import warming

    for wanted in stack.enter_context(warming.requests(record, archs)):
        requested, requested_by = wanted.recorded.program_request(wanted.request)
        origin = wanted.origin
        yield Work(wanted.request, requested=requested, requested_by=requested_by, origin=origin)


def _show(
    given: Namespace, path: str, header: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    size = os.path.getsize(path)
    if given.json:
        builds = [dict(zip(header, map(str, row), strict=True)) for row in rows]
        output.print_json({"path": path, "bytes": size, "builds": builds})
        return
    print(output.table(header, rows))
    print(f"{path}: {output.human_size(size)}")


# --- Targets: what a package declares ---------------------------------------------------------------


def bundle(
    targets: Iterable[Any], path: str | os.PathLike[str], *, archs: Sequence[str], **options: Any
) -> list[tuple[CompileRequest, ObjectCode]]:
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
        options = (f"-I{os.path.dirname(absolute(name))}",)
        return [CompileRequest(read_text(name), options=options, name=os.path.basename(name))]
    module, _, path = name.partition(":")
    kinds = "a target is 'package.module', 'package.module:name' or 'kernel.cu'"
    found: Any = imported(module, f"{name!r}: there is no module {module!r}; {kinds}")
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
                _ = kernel.parameters  # reports a wrong signature before anything is built
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
    loaded = sys.modules.get("rtcompile.frontends.raw_kernel")
    return loaded is not None and isinstance(value, loaded.BuildOwner)

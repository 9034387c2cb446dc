"""``rtcompile bundle`` builds a package's kernels into one file, ``rtcompile warm`` a record's into the cache.

A bundle has no times and no paths: equal builds give equal bytes.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from rtcompile import toolkit
from rtcompile.build import planned
from rtcompile.build.many import compile_many
from rtcompile.build.plan import linker_input
from rtcompile.cli import BUNDLE_ACTIONS, output
from rtcompile.errors import InvalidRequest, JitDisabled, shown, warn
from rtcompile.extras.packaging.library import KernelLibrary, KernelModule, imported
from rtcompile.extras.record import recording
from rtcompile.files import sealed
from rtcompile.files.fileset import FileSet, with_links
from rtcompile.files.headers import FOLDER, SearchDir, relative_to
from rtcompile.files.sealed import content_digest
from rtcompile.lookup import bundles
from rtcompile.lookup.bundles import Bundle, Extent, Row, Search, UnusableError
from rtcompile.lookup.find import compute_capability, query_of
from rtcompile.request import object_code
from rtcompile.request import options as compiler_options
from rtcompile.request.object_code import ObjectCode, Record
from rtcompile.request.request import CompileRequest
from rtcompile.request.values import Arch, absolute, items, strings
from rtcompile.request.values import path as checked_path
from rtcompile.settings import Settings

# --- ``rtcompile bundle`` ------------------------------------------------------------------------------------


def run(given: Namespace) -> int:
    """Build a bundle, or describe one."""
    view, *files = given.targets or [""]
    if view in BUNDLE_ACTIONS:
        if given.output is not None:
            raise InvalidRequest(f"`rtcompile bundle {view}` writes no bundle: leave out -o")
        if not files:
            raise InvalidRequest("write rtcompile bundle list FILE…, or verify FILE TARGET…")
        for path in files if view == "list" else files[:1]:
            _describe(given, path, files[1:] if view == "verify" else ())
        return 0
    if not given.targets and not given.cupy:
        raise InvalidRequest("nothing to bundle: name a TARGET, or CuPy's own kernels by --cupy")
    if given.output in (None, "-"):
        raise InvalidRequest("a bundle is written to a file: name it by -o FILE")
    sys.path.insert(0, os.getcwd())  # as `python -m` does: the package need not be installed
    archs = given.arch or []
    with ExitStack() as stack:
        names = [*given.targets, *["cupy"] * given.cupy]
        built = bundle(
            [*_targets(given, names, archs, stack)],
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


def _describe(given: Namespace, path: str, names: Sequence[str]) -> None:
    """Verify every byte of a bundle, and show its builds, or those of targets."""
    header = ["program", "arch", "kind"]
    rows: list[Sequence[object]] = []
    contents = read(Bundle(path))
    # The architectures of each request's key, and those of all builds under "".
    archs: dict[str, dict[str, None]] = {}
    for row, *_ in contents:
        for key in ("", row.key):
            archs.setdefault(key, {})[row.arch_option] = None
    sys.path.insert(0, os.getcwd())
    with ExitStack() as stack:
        for target in _works([*_targets(given, names, [*archs[""]], stack)] if names else []):
            known = bundles.key_of(target.request, target.settings().debug)
            own = archs.get(known[0] if known else "") or archs[""]
            for work in works([target], [*own]):
                rows.append((work.label(), *_found(path, work), "found"))
    for row, code, _ in () if names else contents:
        inputs = object_code.key_inputs(row.sealed_key, code)
        texts = [f"{each[7:]} {inputs[each]}" for each in inputs if each.startswith("option ")]
        what = row.compiler, " ".join(texts), inputs["name expressions"]
        rows.append((row.program, row.arch, row.kind, *what))
    header += ["outcome"] if names else ["compiler", "options", "names"]
    _show(given, path, header, rows)


def _found(path: str, work: Work) -> tuple[Arch, str]:
    """Return the architecture and kind of the build that a program finds in a bundle; raise if there is none."""
    library = work.kernels[0].module.library if work.kernels else None
    used = library.path(library.bundle) if library and library.bundle else path
    if not os.path.exists(used) or not os.path.samefile(used, path):
        raise InvalidRequest(
            f"{library} has its bundle at {os.path.relpath(used)}, but this one is {path}: name the "
            "same path"
        )
    search = Search(query_of(work.request, work.settings()._replace(bundles=(used,))))
    found = search.exact()
    if found is None:
        description, details = planned.explained(search)
        raise JitDisabled(f"{description} is not found without a compiler.{details}")
    return found.obj.arch, found.obj.kind


def _targets(
    given: Namespace, names: Iterable[str], archs: Sequence[str], stack: ExitStack
) -> Iterator[Any]:
    """Yield the targets of the command line; headers from a record exist until `stack` is closed."""
    for name in names:
        if name != "cupy" and not name.endswith((".json", ".json.part")):
            yield from resolve(name, given.compiler_options, given.name_expression)
            continue
        record = _record_of(name, given)
        for request, recorded in stack.enter_context(recording.requests(record, archs)):
            yield Work(request, origin=recorded.origin)


def _show(
    given: Namespace, path: str, header: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    size = os.path.getsize(path)
    builds = [dict(zip(header, map(str, row), strict=True)) for row in rows]
    text = f"{output.table(header, rows)}\n{path}: {output.human_size(size)}"
    output.print_result(given, {"path": path, "bytes": size, "builds": builds}, text)


# --- ``rtcompile warm``, and records as targets ---------------------------------------------------------


def warm(given: Namespace) -> int:
    """Build everything in the records into the cache."""
    archs = given.arch or []
    rows = []
    for path in given.records:
        begin = time.perf_counter()
        record = _record_of(path, given)
        # Progress is shown without a terminal too: a record may take minutes, as while a container's image is built.
        codes = recording.warm(record, archs=archs, progress=not given.json)
        built = sum(code.build.hit is None for code in codes)
        seconds = round(time.perf_counter() - begin, 1)
        size = sum(len(code.code) for code in codes)
        rows.append((path, len(codes), built, len(codes) - built, seconds, size))
    header = ("record", "builds", "built", "there already", "seconds", "bytes")
    records = [dict(zip(header, row, strict=True)) for row in rows]
    shown = [(*row[:-2], f"{row[-2]} s", output.human_size(row[-1])) for row in rows]
    table = output.table((*header[:-2], "took", "size"), shown)
    output.print_result(given, {"records": records}, table)
    return 0


def _record_of(path: str, given: Namespace) -> recording.Record:
    """Return the record in a file, or of CuPy's own kernels, and print differences from this environment."""
    if path == "cupy":
        path = "the record of CuPy's kernels"
        archs = given.arch or ["sm_{}{}".format(*compute_capability())]
        record = recording.record_of_cupy(archs[0])
    else:
        record = recording.read(path, trust_options=given.trust_options)
    found = toolkit.current()
    compilers = [each.version for each in (found.nvrtc, found.nvcc) if each is not None]
    for difference in recording.differences(record, compilers):
        text = f"{path} was {difference}: the program may request other builds"
        print(f"rtcompile: {text}", file=sys.stderr)
    return record


# --- Targets: what a package declares ---------------------------------------------------------------

OVERRIDES = ("fallback", "pch", "timeout", "memory_limit")


@dataclass(frozen=True, slots=True)
class Work:
    """A build to bundle, the further arguments of its `RawModule`, and the kernels that it declares."""

    request: CompileRequest
    arguments: Mapping[str, Any] = field(default_factory=lambda: dict.fromkeys(OVERRIDES))
    # A library's `Kernel`s, whose signatures are checked against the code.
    kernels: tuple[Any, ...] = ()
    origin: str = ""  # the line of a recorded program that requested it, "train.py:12"

    def label(self) -> str:
        """Return the build's name in messages."""
        names = ", ".join(self.request.name_expressions)
        requested_at = f", requested by {self.origin}" if self.origin else ""
        return f"{self.request.name}{f' ({names})' if names else ''}{requested_at}"

    @property
    def _build(self) -> Work:
        return self  # so that a batch takes it as it takes a `RawModule`

    def settings(self) -> Settings:
        return Settings.from_environ().override(**self.arguments)


def works(targets: Iterable[Any], archs: Sequence[str]) -> list[Work]:
    """Return the builds of targets for each architecture; a build with a fixed architecture, once."""
    archs = strings("archs", archs)
    found: list[Work] = []
    for each in _works(items("targets", targets, "objects or names")):
        request = each.request
        if request.arch is not None or compiler_options.parse(request.options).arch:
            found.append(each)
            continue
        if not archs:
            raise InvalidRequest(
                f"{request.name}: no architecture to build for; give one, such as sm_90a"
            )
        found += [replace(each, request=request.replace(arch=name)) for name in archs]
    if not found:
        raise InvalidRequest("nothing to bundle: the targets declare no kernels")
    return found


def resolve(name: str, options: Sequence[str] = (), names: Sequence[str] = ()) -> list[Any]:
    """Return what a target's name refers to; options and name expressions are for a source file."""
    if name.endswith(".cu"):
        source, folder = sealed.read_text(name), f"-I{os.path.dirname(absolute(name))}"
        return [
            CompileRequest(
                source,
                options=(folder, *options),
                name_expressions=tuple(names),
                name=os.path.basename(name),
            )
        ]
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


# --- Building a bundle ------------------------------------------------------------------------------


def bundle(
    targets: Iterable[Any],
    path: str | os.PathLike[str],
    *,
    archs: Sequence[str],
    update: bool = False,
    progress: bool | Callable[[int, int, Any], Any] | None = None,
    skip_unbundleable: bool = False,
) -> list[tuple[CompileRequest, ObjectCode]]:
    """Build targets (objects, or names that `resolve` takes) into a bundle; `update` keeps the bundle's other builds.

    Return what was built.
    """
    work, target = works(targets, archs), checked_path("path", path)
    if os.path.isdir(target):
        raise InvalidRequest(f"{target} is a folder; a bundle is one file, such as kernels.rtcb")
    with bundles.out_of_use():
        contents: list[Contents] = []
        bundled: list[tuple[CompileRequest, ObjectCode]] = []
        reasons: list[str] = []
        for w, code in zip(work, compile_many(work, progress=progress), strict=True):
            for kernel in w.kernels:
                kernel.check(code)
            try:
                contents.append(_contents(w, code))
                bundled.append((w.request, code))
            except InvalidRequest as error:
                reasons.append(f"{w.label()} cannot be bundled: {error}")
    if reasons:
        advice = "; rtcompile bundle … --skip-unbundleable bundles the rest" if contents else ""
        head = f"{len(reasons)} of {len(work)} builds cannot be bundled{advice}"
        message = "\n  ".join([head, *dict.fromkeys(reasons)]) if len(work) > 1 else reasons[0]
        if not (skip_unbundleable and contents):
            raise InvalidRequest(message)
        warn(message)
    kept = read(Bundle(target)) if update else []
    try:
        write(target, [*kept, *contents])
    except OSError as error:
        raise InvalidRequest(f"{target} cannot be written: {error.strerror}") from None
    return bundled


def _contents(work: Work, code: ObjectCode) -> Contents:
    """Return a build's data for a bundle; raise `InvalidRequest` if it cannot be bundled."""
    request, settings = work.request, work.settings()
    known = bundles.key_of(request, settings.debug)
    plan = planned.plan(request, settings)
    linked = [linker_input(item, index) for index, item in enumerate(request.link)]
    if known is None or any(isinstance(each, CompileRequest) for each in linked):
        raise InvalidRequest("link= contains sources; compile them and link the results")
    key, shape = known
    own = {each.path for each in plan.search if each.is_own and not each.path.startswith(FOLDER)}
    if own != {*shape.folders}:
        raise InvalidRequest(f"not all its folders are given as -I/folder: {', '.join(own)}")
    read = code.build.files
    if read.uncacheable and not read.headers:
        raise InvalidRequest(read.uncacheable)
    if read.current() is None:
        raise InvalidRequest("a header changed while it was bundled; try again")
    # NVCC's own headers and the host compiler's have no label either, and need no check.
    named = (
        plan.options.pre_includes
        if code.build.backend == "nvcc"
        else [h.path for h in read.headers]
    )
    if strays := [each.path for each in read.headers if not each.label and each.path in named]:
        raise InvalidRequest(
            f"it includes {strays[0]} by its path on this machine; give its folder by -I"
        )
    program, compiler = os.path.basename(request.name), code.build.compiler
    row = Row(request.source_digest, key, program, code.arch, code.kind, compiler)
    timeless = code.replace(build=code.build.replace(compiled_in=0.0))
    inputs = plan.key_inputs.summary()
    files = _encoded(read, tuple([SearchDir("", folder) for folder in shape.folders]))
    return row, object_code.encode(row.sealed_key, timeless, inputs), files


def _encoded(read: FileSet, search: tuple[SearchDir, ...]) -> bytes:
    """Return the record of a build's files in the request's folders, with each folder's number in place of its path."""
    split = relative_to(search)

    def is_inside(path: str) -> bool:
        return split(path)[0] >= 0

    headers = tuple([header for header in read.headers if is_inside(header.path)])
    absent, present = (tuple(filter(is_inside, paths)) for paths in (read.absent, read.present))
    files = FileSet(headers, absent, present, with_links((), headers))
    return object_code.encode_records("", [Record(files.without_stats())], search=search)


# --- The contents of a bundle -------------------------------------------------------------------------


# What a bundle stores of a build: its row, its object's file, and the record of the package's own headers.
Contents = tuple[Row, bytes, bytes]


def read(bundle: Bundle) -> list[Contents]:
    """Return all builds of a bundle; raise `InvalidRequest` if a byte of it is damaged."""
    found, end = [], 0
    try:
        for row in bundle.rows():
            bundle.object(row), bundle.files(row, None)
            found.append((row, bundle.blob(row.code), bundle.blob(row.files)))
            end = max(end, *(start + size for start, size, _ in (row.code, row.files)))
    except UnusableError as error:
        raise InvalidRequest(f"{bundle.path} cannot be used: {error}") from None
    if bundle.problem:
        raise InvalidRequest(f"{bundle.path}: {bundle.problem}")
    end += bundle.end_of_index
    if os.path.getsize(bundle.path) > end:
        raise InvalidRequest(f"{bundle.path}: the bytes from {end} on belong to no build")
    return found


def write(path: str, builds: Iterable[Contents]) -> None:
    """Write a bundle in one step, with the last build for each key, architecture, kind and CUDA version."""
    last = {build[0].sealed_key: build for build in builds}
    blobs: dict[bytes, Extent] = {}
    size = 0
    rows: list[bytes] = []
    for _, (row, code, files) in sorted(last.items()):
        for blob in (code, files):
            if blob not in blobs:
                blobs[blob] = size, len(blob), content_digest(blob)
                size += len(blob)
        rows.append(row._replace(code=blobs[code], files=blobs[files]).encode())
    index = sealed.seal(bundles.INDEX, "", rows)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    sealed.publish(path, b"".join((bundles.HEAD.pack(bundles.MAGIC, len(index)), index, *blobs)))
    os.chmod(path, 0o644)  # other users may use an installed package

"""``rtcompile bundle``: builds the kernels that a package declares into one file."""

from __future__ import annotations

import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rtcompile.build import to_bundle
from rtcompile.build.to_bundle import Work
from rtcompile.bundles.file import Bundle
from rtcompile.cli import output
from rtcompile.cli.running import cupys_record, read_record
from rtcompile.errors import InvalidRequest
from rtcompile.extras.packaging import bundling
from rtcompile.request.request import CompileRequest

if TYPE_CHECKING:
    from rtcompile.extras.record.recording import Record


def run(given: Namespace) -> int:
    """Build a bundle, or describe one."""
    shown = next((name for name in ("list", "matrix", "provenance") if getattr(given, name)), None)
    if shown and given.output is not None:
        raise InvalidRequest(
            f"--{shown} shows a bundle and writes none: without --{shown} it is written to "
            f"{given.output}, then `rtcompile bundle --{shown} {given.output}` shows it"
        )
    if shown:
        return {"list": _list, "matrix": _matrix, "provenance": _provenance}[shown](given)
    if given.only and not given.cupy:
        raise InvalidRequest(
            "--only chooses among CuPy's own kernels, of `rtcompile bundle --cupy`"
        )
    if not given.targets and not given.cupy:
        raise InvalidRequest("nothing to bundle: name a TARGET, or CuPy's own kernels by --cupy")
    if given.targets[:1] == ["verify"]:
        return _verify(given)
    if given.rebuild:
        raise InvalidRequest("--rebuild is for rtcompile bundle verify FILE TARGET… --rebuild")
    if given.output in (None, "-"):
        raise InvalidRequest("a bundle is written to a file: name it by -o FILE")
    sys.path.insert(0, os.getcwd())  # as `python -m` does: the package need not be installed
    archs = given.arch or []
    with ExitStack() as stack:
        found = [each for name in given.targets for each in _targets(given, name, archs, stack)]
        if given.cupy:
            found += _recorded(cupys_record(given), archs, stack)
        built = bundling.bundle(
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


def _list(given: Namespace) -> int:
    for path in given.targets:
        rows = [
            (row.program, row.arch, row.kind, row.compiler, ", ".join(row.names))
            for row in _bundle(path).rows()
        ]
        _show(given, path, ("program", "arch", "kind", "compiler", "names"), rows)
    return 0


def _matrix(given: Namespace) -> int:
    for path in given.targets:
        bundle = _bundle(path)
        served = to_bundle.matrix(bundle)
        # Print a line per program only if programs differ.
        rows = [(s.gpu, s.code, s.driver, f"CUDA {s.cuda}", s.program) for s in served]
        if len({row[-1] for row in rows}) > 1 and all(
            len({r[1:3] for r in rows if (r[0], r[3]) == (row[0], row[3])}) == 1 for row in rows
        ):
            rows = list(dict.fromkeys((*row[:-1], "all") for row in rows))
        if len({row[-1] for row in rows}) == 1 and not given.json:  # there is one program
            rows = [(*row[:-1], row[-1].partition(" (")[0]) for row in rows]
        _show(given, path, ("gpu", "code", "least driver", "made with", "program"), rows)
    return 0


def _provenance(given: Namespace) -> int:
    found = []
    for path in given.targets:
        bundle = _bundle(path)
        left_out = [each._asdict() for each in bundle.left_out()]
        found.append({"path": path, "builds": to_bundle.provenance(bundle), "left out": left_out})
    output.print_json({"bundles": found})
    return 0


def _verify(given: Namespace) -> int:
    """Verify every byte of a bundle; with --rebuild also compile it again and compare."""
    _, *files = given.targets
    path, *names = files or [""]
    if not path or (bool(names) is not given.rebuild):
        raise InvalidRequest(
            "write rtcompile bundle verify FILE, or rtcompile bundle verify FILE TARGET… --rebuild "
            "with the targets that it was made of"
        )
    bundle = _bundle(path)
    count = len(bundle.rows())
    archs = sorted({str(row.arch) for row in bundle.rows()})
    if not given.rebuild:
        rows = [(row.program, row.arch, row.kind, "verified") for row in bundle.rows()]
        _show(given, path, ("program", "arch", "kind", "outcome"), rows)
        return 1 if bundle.left_out() else 0
    sys.path.insert(0, os.getcwd())
    with ExitStack() as stack:
        targets = [target for name in names for target in _targets(given, name, archs, stack)]
        rebuilt = to_bundle.rebuild(
            bundle, bundling.works(targets, to_bundle.architectures(bundle))
        )
    _show(given, path, ("program", "arch", "kind", "outcome"), rebuilt)
    same = sum(row.outcome == "same" for row in rebuilt)
    if not given.json:
        print(f"{same} of {count} builds are the same, byte by byte")
    return 0 if same == count and not bundle.left_out() else 1


def _bundle(path: str) -> Bundle:
    """Open a bundle and read every byte of it, since a damaged one must not be described."""
    bundle = Bundle(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is an error here
        bundle.rows()
        if bundle.problem:
            raise InvalidRequest(f"{path}: {bundle.problem}")
        to_bundle.provenance(bundle)
    return bundle


def _targets(
    given: Namespace, name: str, archs: Sequence[str], stack: ExitStack
) -> Iterator[object]:
    """Yield the targets of a name; headers from a record exist until `stack` is closed."""
    if name.endswith((".json", ".json.part")):
        yield from _recorded(read_record(name, given), archs, stack)
        return
    for target in bundling.resolve(name):
        if name.endswith(".cu") and isinstance(target, CompileRequest):
            # The command line's options and names are those of source files.
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
        requested, requested_by = wanted.by_program or (None, None)
        yield Work(
            wanted.request, requested=requested, requested_by=requested_by, origin=wanted.origin
        )


def _show(
    given: Namespace, path: str, header: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    size = os.path.getsize(path)
    lacking = _bundle(path).left_out()
    if given.json:
        builds = [dict(zip(header, map(str, row), strict=True)) for row in rows]
        left_out = [each._asdict() for each in lacking]
        output.print_json({"path": path, "bytes": size, "builds": builds, "left out": left_out})
        return
    print(output.table(header, rows))
    for each in lacking:
        print(f"left out: {each.program} for {each.arch}: {each.reason}")
    incomplete = f"; incomplete, {len(lacking)} left out" if lacking else ""
    print(f"{path}: {output.human_size(size)}{incomplete}")

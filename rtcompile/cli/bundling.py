"""``rtcompile bundle``: what a package declares, built for its users' devices into one file."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from rtcompile.bundles.file import Bundle
from rtcompile.cli import output
from rtcompile.core.request import CompileRequest
from rtcompile.errors import InvalidRequest
from rtcompile.packages import bundling

__all__ = ["run"]


def run(given: Namespace) -> int:
    """Build a bundle, or list what is in one."""
    if given.list:
        return _list(given)
    if given.output in (None, "-"):
        raise InvalidRequest("a bundle is written to a file: name it by -o FILE")
    sys.path.insert(0, os.getcwd())  # as `python -m` does: the package need not be installed
    archs = given.arch.split(",") if given.arch else []
    with ExitStack() as stack:
        built = bundling.bundle(
            [target for name in given.targets for target in _targets(given, name, archs, stack)],
            given.output,
            archs=archs,
            update=given.update,
            progress=False if given.json else None,
        )
    rows = [
        (
            b.request.name,
            b.code.arch,
            b.code.kind,
            b.code.build.backend,
            output.human_size(len(b.code.code)),
            f"{b.code.build.milliseconds:.0f} ms" if b.code.build.hit is None else "cached",
        )
        for b in built
    ]
    _show(given, given.output, ("program", "arch", "kind", "backend", "size", "built"), rows)
    return 0


def _list(given: Namespace) -> int:
    for path in given.targets:
        bundle = Bundle(path)
        rows = [
            (row.program, row.arch, row.kind, row.compiler, ", ".join(row.names))
            for row in bundle.rows()
        ]
        if bundle.problem:
            raise InvalidRequest(f"{path}: {bundle.problem}")
        _show(given, path, ("program", "arch", "kind", "compiler", "names"), rows)
    return 0


def _targets(
    given: Namespace, name: str, archs: Sequence[str], stack: ExitStack
) -> Iterator[object]:
    """Yield what a name stands for; a record's headers are there until `stack` is closed."""
    if name.endswith((".json", ".json.part")):
        from rtcompile.everywhere import recording, warming

        yield from stack.enter_context(warming.requests(recording.read(name), archs))
        return
    for target in bundling.resolve(name):
        if name.endswith(".cu") and isinstance(target, CompileRequest):
            # A source file has the options and names that the command line gives it.
            yield target.replace(
                options=(*target.options, *given.compiler_options),
                name_expressions=tuple(given.name_expression),
            )
        else:
            yield target


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

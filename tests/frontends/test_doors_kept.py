"""Tests of builds from a bundle or a record: every door finds them in every spelling, and edits are noticed."""

import functools
import itertools
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests import matrix
from tests.doors import TAKES
from tests.kernel_process import ROOT, Process, RequestError, text_in
from tests.processes import command

pytest.importorskip("cupy")

pytestmark = pytest.mark.needs_compiler

GIVEN = {"headers": {"given.h": '#define OPTION ""\n'}}
# A package names its targets: it has no cells, and CuPy's own classes cannot be targets.
SHIPPED_DOORS = [door for door in matrix.DOORS if door not in matrix.NAMES]
PACKAGED = """
import rtcompile
def packaged(door, source, options=(), **more):
    policy = {{name: more.pop(name) for name in ("fallback", "pch", "timeout") if name in more}}
    if door == "RawKernel":
        return rtcompile.RawKernel(source, "k", options, **more, **policy)
    if door == "RawModule":
        return rtcompile.RawModule(code=source, options=options, **more, **policy)
    return rtcompile.CompileRequest(source, options, **more)
for number, (door, wanted, more) in enumerate({rows!r}):
    globals()[f"row_{{number}}"] = packaged(door, *wanted, **more)
"""
RECORDED = """
from tests import doors
doors.pretend_device()
opened = {{}}
for name, wanted, more in {rows!r}:
    if name not in opened:
        opened[name] = doors.door(name)
    opened[name](*wanted, **more)
"""
KEPT = {
    "bundle of what a package names": SHIPPED_DOORS,
    "bundle of a record": matrix.DOORS,
    "warmed from a record": matrix.DOORS,
}


def requested(name: str) -> tuple[str, Any, dict[str, Any]]:
    """Return the request of a name: a source, options and further arguments."""
    if name in matrix.SPELLINGS:
        options, more = matrix.SPELLINGS[name]
        text = matrix.TEMPLATE if "name_expressions" in more else matrix.KERNEL
        return '#include "value.h"' + text, options, more
    if name in matrix.KERNELS:
        return matrix.KERNELS[name], matrix.OPTIONS, {}
    return {
        "edited": (matrix.REQUESTED, matrix.EDITED, {}),
        "given": ('#include "given.h"' + matrix.REQUESTED, matrix.EDITED, GIVEN),
    }[name]


class Kept:
    """A bundle, or a warmed cache, and processes that use it: the second may not compile."""

    def __init__(
        self, how: str, folder: Path, wanted: Collection[tuple[str, str]], open_: ExitStack
    ) -> None:
        cache = str(folder / "cache")
        builder = open_.enter_context(Process(RTCOMPILE_CACHE_DIR=cache))
        self.program = matrix.Program(folder, [builder, builder], folder)
        rows = []
        for door, name in wanted:
            source, options, more = requested(name)
            given = (self.program.salt + source, self.program.options(door, options))
            rows.append((door, given, more))
        template = PACKAGED if how == "bundle of what a package names" else RECORDED
        (folder / "rows.py").write_text(template.format(rows=rows))

        def made(*arguments: object, **more: str) -> None:
            path = os.pathsep.join([str(ROOT), str(folder)])
            done = command(*arguments, cwd=folder, environ={"PYTHONPATH": path, **more})
            assert done.returncode == 0, done.stdout + done.stderr

        environ = {"RTCOMPILE_CACHE_DIR": cache}
        record, bundle = folder / "kernels.json", folder / "kernels.rtcb"
        if template is RECORDED:
            made("run", "--record", record, "rows.py", **environ)
        own = [{"RTCOMPILE_CACHE_DIR": str(folder / name)} for name in ("first", "second")]

        if how == "warmed from a record":
            made("warm", record, **own[0])
            shutil.copytree(*(each["RTCOMPILE_CACHE_DIR"] for each in own))
        else:
            of = [record] if template is RECORDED else ["rows", "--arch", "sm_80"]
            made("bundle", *of, "-o", bundle, **environ)
            own = [{**each, "RTCOMPILE_BUNDLES": str(bundle)} for each in own]
        self.builder = builder
        self.first = open_.enter_context(Process(**own[0], cwd=folder))
        self.second = open_.enter_context(Process(**own[1], cwd=folder, RTCOMPILE_JIT="0"))

    def request(self, process: Process, door: str, name: str) -> bytes | None:
        """Return the code; None if it is not found and may not be compiled."""
        source, options, more = requested(name)
        if process is self.second:
            with suppress(RequestError):
                return self.program.request(process, door, source, options, **more)
            return None
        return self.program.request(process, door, source, options, **more)

    def value(self, process: Process, door: str, name: str) -> str | None:
        code = self.request(process, door, name)
        return None if code is None else text_in(code)


def each_way(names: str, rows: Iterable[tuple[Any, ...]], *count: int) -> Callable[[Any], Any]:
    """Test each row with each way to keep builds; `make test` takes some."""
    ways = [(how, *row) for row in rows for how in KEPT if row[0] in KEPT[how]]
    return lambda test: pytest.mark.some(*count)(
        pytest.mark.parametrize(f"how, {names}", ways)(test)
    )


@pytest.fixture(scope="session")  # a process of pytest-xdist may come back to this file
def keep(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Kept]]:
    """Return a function that prepares one way, once for all tests of this file and process.

    It keeps what the selected tests request, since all of them would take a third of a minute for each way.
    """
    here = [item for item in request.session.items if item.path == Path(__file__)]
    selected = [item.callspec.params for item in here if "kept" in item.fixturenames]

    def prepared(how: str) -> Kept:
        wanted = {(each["door"], each["name"]): None for each in selected if each["how"] == how}
        return Kept(how, tmp_path_factory.mktemp("kept"), wanted, open_)

    with ExitStack() as open_:
        yield functools.cache(prepared)


@pytest.fixture
def kept(how: str, keep: Callable[[str], Kept]) -> Kept:
    return keep(how)


# --- the same code ------------------------------------------------------------------------------


def check_found(kept: Kept, door: str, name: str) -> None:
    expected = kept.request(kept.builder, door, name)
    assert kept.request(kept.second, door, name) == expected
    assert kept.request(kept.first, door, name) == expected


@each_way("door, name", [*matrix.MATRIX, *itertools.product(matrix.DOORS, matrix.QUICK)])
def test_every_spelling_and_kernel_is_found(door, name, kept):
    check_found(kept, door, name)


@pytest.mark.slow
@pytest.mark.parametrize("how", KEPT)
def test_a_kernel_with_cute_is_found_by_every_door(how, tmp_path):
    with ExitStack() as open_:
        kept = Kept(how, tmp_path, [(door, "CuTe") for door in KEPT[how]], open_)
        for door in KEPT[how]:
            check_found(kept, door, "CuTe")


# --- edits ---------------------------------------------------------------------------------------


@each_way("door, name, edit", itertools.product(matrix.DOORS, ["edited"], matrix.EDITS))
def test_an_edit_is_noticed_in_a_kept_build(door, name, edit, kept):
    """A process that may not compile then gets nothing; after the edit is undone it gets the same code."""
    kept.program.make_folders()
    try:
        assert [kept.value(who, door, name) for who in (kept.first, kept.second)] == ["1"] * 2
        expected = edit(kept.program)
        assert kept.value(kept.first, door, name) == expected
        assert kept.value(kept.second, door, name) in (None, expected)
    finally:
        kept.program.make_folders()
    assert [kept.value(who, door, name) for who in (kept.first, kept.second)] == ["1"] * 2


@each_way("door, name", [(door, "given") for door in matrix.DOORS if "headers" in TAKES[door]], 2)
def test_an_edit_beside_header_texts_is_noticed(door, name, kept):
    both = (kept.first, kept.second)
    assert [kept.value(who, door, name) for who in both] == ["1"] * 2
    try:
        kept.program.header.write_text('#define VALUE "2"\n')
        assert [kept.value(who, door, name) for who in both] == ["2", None]
    finally:
        kept.program.make_folders()
    assert [kept.value(who, door, name) for who in both] == ["1"] * 2

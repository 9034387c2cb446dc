"""Tests of builds from a bundle or a record: every door finds them in every spelling, and edits are noticed."""

from __future__ import annotations

import functools
import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests import matrix
from tests.doors import TAKES
from tests.kernel_process import Process, RequestError, text_in

pytest.importorskip("cupy")

pytestmark = pytest.mark.needs_compiler

OPTIONS_FILE = ("--options-file={root}/value.txt",)
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


def requests_of(kernels: dict[str, str]) -> dict[tuple[str, str], tuple]:
    """Return the requests by door and name: a source, options and further arguments."""
    wanted = {}
    for door, spelling in matrix.MATRIX:
        options, more = matrix.SPELLINGS[spelling]
        text = matrix.TEMPLATE if "name_expressions" in more else matrix.KERNEL
        wanted[door, spelling] = ('#include "value.h"' + text, options, more)
    for door in matrix.DOORS:
        for name, source in kernels.items():
            wanted[door, name] = (source, matrix.OPTIONS, {})
        wanted[door, "edited"] = (matrix.REQUESTED, matrix.EDITED, {})
        wanted[door, "options"] = (matrix.KERNEL, OPTIONS_FILE, {})
        if "headers" in TAKES[door]:
            wanted[door, "given"] = ('#include "given.h"' + matrix.REQUESTED, matrix.EDITED, GIVEN)
    return wanted


class Kept:
    """A bundle, or a warmed cache, and processes that use it: the second may not compile."""

    def __init__(self, how: str, folder: Path, kernels: dict[str, str], open_: ExitStack) -> None:
        cache = str(folder / "cache")
        builder = open_.enter_context(Process(RTCOMPILE_CACHE_DIR=cache))
        self.program = matrix.Program(folder, [builder, builder], folder)
        self.requests = requests_of(kernels)
        self.doors = KEPT[how]
        self.of_file = folder / "value.txt"
        self.restore()
        rows = []
        for (door, _), (source, options, more) in self.requests.items():
            if door in self.doors:
                given = (self.program.salt + source, self.program.options(door, options))
                rows.append((door, given, more))
        template = PACKAGED if how == "bundle of what a package names" else RECORDED
        (folder / "rows.py").write_text(template.format(rows=rows))
        environ = {"RTCOMPILE_CACHE_DIR": cache}
        record, bundle = folder / "kernels.json", folder / "kernels.rtcb"
        if template is RECORDED:
            matrix.command("run", "--record", record, "rows.py", cwd=folder, **environ)
        own = [{"RTCOMPILE_CACHE_DIR": str(folder / name)} for name in ("first", "second")]
        if how == "warmed from a record":
            matrix.command("warm", record, cwd=folder, **own[0])
            shutil.copytree(*(each["RTCOMPILE_CACHE_DIR"] for each in own))
        else:
            of = [record] if template is RECORDED else ["rows", "--arch", "sm_80"]
            matrix.command("bundle", *of, "-o", bundle, cwd=folder, **environ)
            own = [{**each, "RTCOMPILE_BUNDLES": str(bundle)} for each in own]
        self.builder = builder
        self.first = open_.enter_context(Process(**own[0], cwd=folder))
        self.second = open_.enter_context(Process(**own[1], cwd=folder, RTCOMPILE_JIT="0"))

    def restore(self) -> None:
        """Undo all edits."""
        self.program.make_folders()
        self.of_file.write_text('-DVALUE=\\"none\\"')

    def request(self, process: Process, door: str, name: str) -> bytes | None:
        """Return the code; None if it is not found and may not be compiled."""
        source, options, more = self.requests[door, name]
        if process is self.second:
            with suppress(RequestError):
                return self.program.request(process, door, source, options, **more)
            return None
        return self.program.request(process, door, source, options, **more)

    def value(self, process: Process, door: str, name: str) -> str | None:
        code = self.request(process, door, name)
        return None if code is None else text_in(code)


def in_turn(names: str, rows: Iterable[tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Test each row with one way to keep builds, in turn; `make test-slow` tests the others."""
    cases = []
    for number, row in enumerate(rows):
        turn = number + matrix.DOORS.index(row[0])
        ways = [how for how in KEPT if row[0] in KEPT[how]]
        for way in ways:
            marks = [] if way == ways[turn % len(ways)] else [pytest.mark.slow]
            cases.append(pytest.param(way, *row, marks=marks))
    return pytest.mark.parametrize(f"how, {names}", cases)


@pytest.fixture(scope="session")  # a process of pytest-xdist may come back to this file
def keep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Kept]]:
    """Return a function that prepares one way, once for all tests of this file and process."""
    kernels = {name: source for name, source in matrix.KERNELS.items() if name != "CuTe"}
    with ExitStack() as open_:
        yield functools.cache(
            lambda how: Kept(how, tmp_path_factory.mktemp("kept"), kernels, open_)
        )


@pytest.fixture
def kept(how: str, keep: Callable[[str], Kept]) -> Kept:
    return keep(how)


# --- the same code ------------------------------------------------------------------------------


def check_found(kept: Kept, door: str, name: str) -> None:
    expected = kept.request(kept.builder, door, name)
    assert kept.request(kept.second, door, name) == expected
    assert kept.request(kept.first, door, name) == expected


@in_turn("door, spelling", matrix.MATRIX)
def test_every_spelling_is_found(door: str, spelling: str, kept: Kept) -> None:
    check_found(kept, door, spelling)


@in_turn(
    "door, kernel",
    itertools.product(matrix.DOORS, [name for name in matrix.KERNELS if name != "CuTe"]),
)
def test_every_kernel_is_found(door: str, kernel: str, kept: Kept) -> None:
    check_found(kept, door, kernel)


@pytest.mark.slow
@pytest.mark.parametrize("how", KEPT)
def test_a_kernel_with_cute_is_found_by_every_door(how: str, tmp_path: Path) -> None:
    with ExitStack() as open_:
        kept = Kept(how, tmp_path, {"CuTe": matrix.KERNELS["CuTe"]}, open_)
        for door in KEPT[how]:
            check_found(kept, door, "CuTe")


# --- edits ---------------------------------------------------------------------------------------


@in_turn("door, edit", itertools.product(matrix.DOORS, matrix.EDITS))
def test_an_edit_is_noticed_in_a_kept_build(
    door: str, edit: Callable[[matrix.Program], str], kept: Kept
) -> None:
    """A process that may not compile then gets nothing; after the edit is undone it gets the same code."""
    kept.restore()
    try:
        assert [kept.value(who, door, "edited") for who in (kept.first, kept.second)] == ["1"] * 2
        expected = edit(kept.program)
        assert kept.value(kept.first, door, "edited") == expected
        assert kept.value(kept.second, door, "edited") in (None, expected)
    finally:
        kept.restore()
    assert [kept.value(who, door, "edited") for who in (kept.first, kept.second)] == ["1"] * 2


@in_turn("door", zip(matrix.DOORS))
def test_an_edited_options_file_is_read_again(door: str, kept: Kept) -> None:
    try:
        for value, found in (("2", None), ("none", "none")):
            kept.of_file.write_text(f'-DVALUE=\\"{value}\\"')
            assert kept.value(kept.first, door, "options") == value
            assert kept.value(kept.second, door, "options") == found
    finally:
        kept.restore()


@in_turn("door", zip(door for door in matrix.DOORS if "headers" in TAKES[door]))
def test_an_edit_beside_header_texts_is_noticed(door: str, kept: Kept) -> None:
    both = (kept.first, kept.second)
    assert [kept.value(who, door, "given") for who in both] == ["1"] * 2
    try:
        kept.program.header.write_text('#define VALUE "2"\n')
        assert [kept.value(who, door, "given") for who in both] == ["2", None]
    finally:
        kept.restore()
    assert [kept.value(who, door, "given") for who in both] == ["1"] * 2

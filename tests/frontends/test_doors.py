"""Tests of every door and spelling: same code, found by another process, and every edit is noticed."""

import contextlib
import importlib.util
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doors import TAKES
from tests.kernel_process import ROOT, Process, RequestError, text_in
from tests.matrix import (
    DOORS,
    EDITED,
    EDITS,
    KERNEL,
    KERNELS,
    MATRIX,
    NAMES,
    OPTIONS,
    QUICK,
    REQUESTED,
    SPELLINGS,
    TEMPLATE,
    Program,
)

pytest.importorskip("cupy")

pytestmark = pytest.mark.needs_compiler


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for all files of the processes."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def processes(scratch: Path) -> Iterator[list[Process]]:
    """Two processes for all tests of this file; the second may not compile."""
    environ = {"RTCOMPILE_CACHE_DIR": str(scratch / "cache"), "TMPDIR": str(scratch)}
    with Process(**environ) as first, Process(**environ, RTCOMPILE_JIT="0") as second:
        yield [first, second]


@pytest.fixture
def program(tmp_path: Path, processes: list[Process], scratch: Path) -> Program:
    return Program(tmp_path, processes, scratch)


# --- the same code ------------------------------------------------------------------------------


@pytest.mark.some
@pytest.mark.parametrize(("door", "spelling"), MATRIX)
def test_every_spelling_gives_the_same_code_and_another_process_finds_it(door, spelling, program):
    options, more = SPELLINGS[spelling]
    names = {name: value for name, value in more.items() if name == "name_expressions"}
    source = '#include "value.h"' + (TEMPLATE if names else KERNEL)
    expected = program.first.request(
        "compile", source, program.options("compile", OPTIONS), **names
    )

    built = program.request(program.first, door, source, options, **more)

    assert built == expected
    assert program.request(program.second, door, source, options, **more) == built


@pytest.mark.some
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kernel", [*QUICK, pytest.param("CuTe", marks=pytest.mark.slow)])
def test_a_kernel_with_headers_gives_the_same_code_through_every_door(door, kernel, program):
    program.salt = ""  # the doors share the builds, which take seconds with CuTe
    plain = program.options("compile", OPTIONS)
    named = {"name": NAMES[door]} if door in NAMES else {}  # some symbols contain the name
    expected = program.first.request("compile", KERNELS[kernel], plain, **named)

    built = program.request(program.first, door, KERNELS[kernel], OPTIONS)

    assert built == expected
    assert program.request(program.second, door, KERNELS[kernel], OPTIONS) == built


def test_every_door_finds_the_builds_of_the_others(program):
    ours = [door for door in DOORS if door != "install"]
    for number, door in enumerate(ours):
        source = f"{KERNELS['own header']}\n__device__ int n = {number};"
        built = program.request(program.first, door, source, OPTIONS)
        for other in ours:
            if "cell" not in (door, other):  # a cell's source has no comments
                assert program.request(program.second, other, source, OPTIONS) == built, other


# --- edits ---------------------------------------------------------------------------------------


@pytest.mark.some
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_noticed_by_every_process(door, edit, program):
    def values() -> list[str]:
        both = [program.first, program.first, program.second, program.second]
        return [text_in(program.request(process, door, REQUESTED, EDITED)) for process in both]

    assert values() == ["1"] * 4
    expected = edit(program)
    assert values() == [expected] * 4


@pytest.mark.some(2)
@pytest.mark.parametrize("door", DOORS)
def test_an_edited_source_is_compiled(door, program):
    for value in ("1", "2", "1"):
        source = f'#define VALUE "{value}"' + KERNEL
        for process in (program.first, program.second):
            assert text_in(program.request(process, door, source)) == value


@pytest.mark.some(2)
@pytest.mark.parametrize("door", DOORS)
def test_a_relative_directory_depends_on_the_working_directory(door, program):
    earlier = program.folder.parent / "earlier"
    (earlier / "value.h").write_text('#define VALUE "earlier"\n')
    for folder, value in itertools.islice(
        itertools.cycle([(program.folder, "1"), (earlier, "earlier")]), 4
    ):
        for process in (program.first, program.second):
            process.run(f"os.chdir({str(folder)!r})")
            code = program.request(process, door, KERNELS["own header"], ("-I.",))
            assert text_in(code) == value


def checkout(folder: Path, value: str) -> Path:
    """Make a checkout of CUTLASS, which `RTCOMPILE_CUTLASS_PATH` may name."""
    headers = folder / "include" / "cutlass"
    headers.mkdir(parents=True)
    (headers / "version.h").write_text(
        f'#define VALUE "{value}"\n'
        "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 0\n"
    )
    return folder


@pytest.mark.some(2)
@pytest.mark.parametrize("door", DOORS)
def test_a_changed_variable_takes_effect_at_once(door, program, tmp_path):
    source = "#include <cutlass/version.h>" + KERNEL
    for value in ("1", "2"):
        checkout(tmp_path / value, value)
    try:
        for value in ("1", "2", "1"):
            for process in (program.first, program.second):
                process.run(f"os.environ['RTCOMPILE_CUTLASS_PATH'] = {str(tmp_path / value)!r}")
                assert text_in(program.request(process, door, source)) == value
    finally:
        for process in (program.first, program.second):
            process.run("os.environ.pop('RTCOMPILE_CUTLASS_PATH')")


def test_another_toolkit_at_the_same_path_is_noticed_by_every_door(tmp_path):
    """Even within the second for which a process trusts the toolkit's files."""
    installed = Path(importlib.util.find_spec("nvidia").submodule_search_locations[0])
    for number in ("1", "2"):
        updated = tmp_path / number / "nvidia" / "cuda_runtime"
        updated.parent.mkdir(parents=True)
        for part in installed.iterdir():
            if part.name != updated.name:
                (updated.parent / part.name).symlink_to(part)
        shutil.copytree(installed / updated.name, updated)
        with (updated / "include" / "cuda_fp16.h").open("a") as header:
            header.write(f'\n#define VALUE "{number}"\n')
        for part in installed.parent.glob("nvidia_*.dist-info"):
            (tmp_path / number / part.name).symlink_to(part)
    site = tmp_path / "site-packages"
    site.symlink_to(tmp_path / "1")
    environ = {"PYTHONPATH": f"{site}:{ROOT}", "RTCOMPILE_CACHE_DIR": str(tmp_path / "cache")}
    options = {door: "" if door == "cell" else () for door in DOORS}
    source = "#include <cuda_fp16.h>" + KERNEL
    with Process(**environ) as first, Process(**environ, RTCOMPILE_JIT="0") as second:
        for number in ("1", "2", "1"):
            site.unlink()
            site.symlink_to(tmp_path / number)
            time.sleep(1.1)
            for process in (first, second):
                results = {
                    door: text_in(process.request(door, source, options[door])) for door in DOORS
                }
                assert results == dict.fromkeys(DOORS, number)


# --- who requested first -------------------------------------------------------------------------

NEEDS_A_FLAG = 'extern "C" __global__ void k(long* p) { p[0] = (__int128)p[1] * p[2] >> 64; }'


# CuPy's name of the program; otherwise the two requests are equal.
OF_CUPY = {"name": "k.cu"}
MAY_ADD_FLAGS = ["compile", "compile_many"]


@pytest.mark.parametrize("ours", MAY_ADD_FLAGS)
@pytest.mark.parametrize("is_first", [True, False], ids=["before CuPy", "after CuPy"])
def test_only_doors_that_may_add_a_flag_compile_what_needs_one(is_first, ours, program):
    for turn in range(4):
        if (turn % 2 == 0) is is_first:
            assert program.request(program.first, ours, NEEDS_A_FLAG, **OF_CUPY)
            continue
        with pytest.raises(RequestError, match="CompileE"):
            program.request(program.first, "install", NEEDS_A_FLAG)
        with pytest.raises(RequestError):
            program.request(program.second, "install", NEEDS_A_FLAG)


@pytest.mark.some(2)
@pytest.mark.parametrize("door", [door for door in DOORS if "headers" in TAKES[door]])
def test_header_texts_are_read_as_passed(door, program):
    """Even if somebody edits the files to which they were written."""
    name = f"{door}{program.folder.parent.name}.h"
    headers = {name: '#define VALUE "given"\n'}
    for number in range(3):
        source = f'#include "{name}"{KERNEL}__device__ int n = {number};'
        assert text_in(program.request(program.first, door, source, headers=headers)) == "given"
        # `os.walk` passes over the folders that workers remove meanwhile.
        for folder, _, files in os.walk(program.scratch):
            if name in files:
                with contextlib.suppress(FileNotFoundError):
                    Path(folder, name).write_text('#define VALUE "other"\n')


# --- the number of calls -------------------------------------------------------------------------------

# The largest allowed number of rtcompile's functions.
GATES = {"a hit from disk": 120, "again": 40}


def test_a_compile_calls_few_functions(program):
    arguments = ("compile", KERNELS["plain"], ("-DTILE=16",))
    with Process(cupy=False) as process:
        process.request(*arguments, arch="sm_80")
    passed = {}
    with Process(cupy=False) as process:
        for what in GATES:
            passed[what], _, _ = process.count(*arguments, arch="sm_80")

    assert {what: count for what, count in passed.items() if count > GATES[what]} == {}

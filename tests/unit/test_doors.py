"""Every door and every spelling: the same bytes, found by another process, and no edit overlooked."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.asking import ROOT, AskedError, Process, answer_of
from tests.doors import TAKES

pytest.importorskip("cupy")

KERNEL = """
extern "C" __device__ const char answer[] = "ANSWER:" VALUE;
extern "C" __global__ void k(char* p) { *p = answer[threadIdx.x]; }
"""
TEMPLATE = """
extern "C" __device__ const char answer[] = "ANSWER:" VALUE;
template <class T> __global__ void k(T* p) { *p = answer[threadIdx.x]; }
"""
KERNELS = {
    "plain": '#define VALUE "none"' + KERNEL,
    "own header": '#include "value.h"' + KERNEL,
    "WMMA": '#include <mma.h>\n#include "value.h"' + KERNEL,
}
DOORS = list(TAKES)
OPTIONS = ("-DTILE=16", "--use_fast_math", "-I{folder}")
# Options and further arguments. All mean the same as `OPTIONS` to a compiler.
SPELLINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tuple": (OPTIONS, {}),
    "list": (list(OPTIONS), {}),
    "str": (" ".join(OPTIONS), {}),
    "jitify=False": (OPTIONS, {"jitify": False}),
    "jitify=True": (OPTIONS, {"jitify": True}),
    "arch=": (OPTIONS, {"arch": "sm_80"}),
    "pch=": (OPTIONS, {"pch": True}),
    "timeout=": (OPTIONS, {"timeout": 60.0}),
    "fallback=": (OPTIONS, {"fallback": "auto"}),
    "name_expressions": (OPTIONS, {"name_expressions": ["k<char>"]}),
    "headers=": (OPTIONS[:2], {"headers": {"value.h": '#define VALUE "1"\n'}}),
    "a relative -I": (("-DTILE=16", "-I", "include", "--use_fast_math"), {}),
    "a non-ASCII -I": ((*OPTIONS[:2], "-I{root}/Köpfe"), {}),
    "an options file": (("--options-file={folder}/options.txt",), {}),
}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes keep whatever they write."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def processes(scratch: Path) -> Iterator[list[Process]]:
    """Two processes that live as long as the tests of this file: the second may not compile."""
    environ = {"RTCOMPILE_CACHE_DIR": str(scratch / "cache"), "TMPDIR": str(scratch)}
    with Process(**environ) as first, Process(**environ, RTCOMPILE_JIT="0") as second:
        yield [first, second]


class Program:
    """A program in two processes, with a folder of headers, that asks for one kernel."""

    def __init__(self, folder: Path, processes: list[Process], scratch: Path) -> None:
        self.first, self.second = processes
        self.scratch = scratch
        self.folder = folder / "include"
        for place in (self.folder, folder / "Köpfe", folder / "earlier"):
            place.mkdir()
        self.header = self.folder / "value.h"
        self.options_file = self.folder / "options.txt"
        self.options_file.write_text(" ".join(OPTIONS).format(folder=self.folder))
        for place in (self.folder, folder / "Köpfe"):
            (place / "value.h").write_text('#define VALUE "1"\n')
        for process in processes:
            process.run(f"os.chdir({str(folder)!r})")
        # Of a build of its own in the cache of all these tests; a comment is not in the code.
        self.salt = f"// {folder}\n"

    def options(self, door: str, options: Any) -> Any:
        """Return options as the door takes them: those of a cell are a line."""
        places = {"folder": self.folder, "root": self.folder.parent}
        if isinstance(options, str):
            return options.format(**places)
        filled = type(options)(option.format(**places) for option in options)
        return shlex.join(filled) if door == "cell" else filled

    def ask(
        self, process: Process, door: str, source: str, options: Any = (), /, **more: Any
    ) -> bytes:
        return process.ask(door, self.salt + source, self.options(door, options), **more)


@pytest.fixture
def program(tmp_path: Path, processes: list[Process], scratch: Path) -> Program:
    return Program(tmp_path, processes, scratch)


# --- the same bytes ------------------------------------------------------------------------------


# CuPy takes no str.
MATRIX = [
    (door, spelling)
    for door, takes in TAKES.items()
    for spelling, (options, more) in SPELLINGS.items()
    if more.keys() <= takes and (door, spelling) != ("install", "str")
]


@pytest.mark.parametrize(("door", "spelling"), MATRIX)
def test_every_spelling_gives_the_same_bytes_and_another_process_finds_them(
    door: str, spelling: str, program: Program
) -> None:
    options, more = SPELLINGS[spelling]
    names = {name: value for name, value in more.items() if name == "name_expressions"}
    source = '#include "value.h"' + (TEMPLATE if names else KERNEL)
    expected = program.first.ask("compile", source, program.options("compile", OPTIONS), **names)

    built = program.ask(program.first, door, source, options, **more)

    assert built == expected
    assert program.ask(program.second, door, source, options, **more) == built


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("door", DOORS)
def test_a_kernel_with_headers_gives_the_same_bytes_through_every_door(
    door: str, kernel: str, program: Program
) -> None:
    plain = program.options("compile", OPTIONS)
    expected = program.first.ask("compile", KERNELS[kernel], plain)

    built = program.ask(program.first, door, KERNELS[kernel], OPTIONS)

    assert built == expected
    assert program.ask(program.second, door, KERNELS[kernel], OPTIONS) == built


def test_what_one_door_built_every_other_door_of_ours_finds(program: Program) -> None:
    ours = [door for door in DOORS if door != "install"]
    for number, door in enumerate(ours):
        source = f"{KERNELS['own header']}\n__device__ int n = {number};"
        built = program.ask(program.first, door, source, OPTIONS)
        for other in ours:
            if "cell" not in (door, other):  # its text is the cell's without comments
                assert program.ask(program.second, other, source, OPTIONS) == built, other


# --- edits ---------------------------------------------------------------------------------------

# Asks for files in the ways that a header can: beside another, along the path, and by __has_include.
ASKING = """
#include "value.h"
#if __has_include(<extra.h>)
#define MORE ", and extra"
#else
#define MORE ""
#endif
extern "C" __device__ const char answer[] = "ANSWER:" VALUE MORE OPTION;
extern "C" __global__ void k(char* p) { *p = answer[threadIdx.x]; }
"""
EDITED = ("-I{root}/earlier", "-I{folder}", "-I{root}/later", "-DOPTION=")


def header_edited(program: Program) -> str:
    program.header.write_text('#define VALUE "2"\n')
    return "2"


def header_edited_and_its_time_set_back(program: Program) -> str:
    before = program.header.stat()
    program.header.write_text('#define VALUE "2"\n')
    os.utime(program.header, ns=(before.st_atime_ns, before.st_mtime_ns))
    return "2"


def header_replaced_by_a_rename(program: Program) -> str:
    new = program.folder / "new.h"
    new.write_text('#define VALUE "2"\n')
    new.rename(program.header)
    return "2"


def header_added_earlier(program: Program) -> str:
    (program.folder.parent / "earlier" / "value.h").write_text('#define VALUE "earlier"\n')
    return "earlier"


def header_removed(program: Program) -> str:
    program.header.unlink()
    return "later"


def header_is_now_a_link(program: Program) -> str:
    (program.folder / "other.h").write_text('#define VALUE "2"\n')
    program.header.unlink()
    program.header.symlink_to("other.h")
    return "2"


def header_is_now_a_folder(program: Program) -> str:
    program.header.unlink()
    program.header.mkdir()
    return "later"


def folder_is_another(program: Program) -> str:
    program.folder.rename(program.folder.with_name("before"))
    program.folder.mkdir()
    program.header.write_text('#define VALUE "2"\n')
    return "2"


def optional_header_added(program: Program) -> str:
    (program.folder / "extra.h").touch()
    return "1, and extra"


EDITS = (
    header_edited,
    header_edited_and_its_time_set_back,
    header_replaced_by_a_rename,
    header_added_earlier,
    header_removed,
    header_is_now_a_link,
    header_is_now_a_folder,
    folder_is_another,
    optional_header_added,
)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
@pytest.mark.parametrize("door", DOORS)
def test_an_edit_is_seen_by_every_process(
    door: str, edit: Callable[[Program], str], program: Program
) -> None:
    later = program.folder.parent / "later"
    later.mkdir()
    (later / "value.h").write_text('#define VALUE "later"\n')

    def answers() -> list[str]:
        both = [program.first, program.first, program.second, program.second]
        return [answer_of(program.ask(process, door, ASKING, EDITED)) for process in both]

    assert answers() == ["1"] * 4
    expected = edit(program)
    assert answers() == [expected] * 4


@pytest.mark.parametrize("door", DOORS)
def test_an_optional_header_that_goes_is_missed(door: str, program: Program) -> None:
    (program.folder / "extra.h").touch()

    def answer(process: Process) -> str:
        return answer_of(program.ask(process, door, ASKING, EDITED))

    assert [answer(program.first), answer(program.second)] == ["1, and extra"] * 2
    (program.folder / "extra.h").unlink()
    assert [answer(program.first), answer(program.second)] == ["1"] * 2


@pytest.mark.parametrize("door", DOORS)
def test_an_edited_options_file_is_read_again(door: str, program: Program) -> None:
    options = ("--options-file={folder}/options.txt",)

    def answers() -> list[str]:
        both = (program.first, program.first, program.second)
        return [answer_of(program.ask(process, door, KERNEL, options)) for process in both]

    for value in ("1", "2", "1"):
        program.options_file.write_text(f'-DVALUE=\\"{value}\\"')
        assert answers() == [value] * 3


@pytest.mark.parametrize("door", DOORS)
def test_an_edited_source_is_another(door: str, program: Program) -> None:
    for value in ("1", "2", "1"):
        source = f'#define VALUE "{value}"' + KERNEL
        for process in (program.first, program.second):
            assert answer_of(program.ask(process, door, source)) == value


@pytest.mark.parametrize("door", DOORS)
def test_a_relative_directory_is_one_of_the_working_directory(door: str, program: Program) -> None:
    earlier = program.folder.parent / "earlier"
    (earlier / "value.h").write_text('#define VALUE "earlier"\n')
    for folder, value in itertools.islice(
        itertools.cycle([(program.folder, "1"), (earlier, "earlier")]), 4
    ):
        for process in (program.first, program.second):
            process.run(f"os.chdir({str(folder)!r})")
            code = program.ask(process, door, KERNELS["own header"], ("-I.",))
            assert answer_of(code) == value


@pytest.mark.parametrize("options", ["-I{root}/link/../include", "-I link/../include"])
@pytest.mark.parametrize("door", DOORS)
def test_above_a_link_is_above_its_target(door: str, options: str, program: Program) -> None:
    target = program.folder.parent / "elsewhere" / "target"
    target.mkdir(parents=True)
    (target.parent / "include").mkdir()
    (target.parent / "include" / "value.h").write_text('#define VALUE "elsewhere"\n')
    (program.folder.parent / "link").symlink_to(target)
    given = options if door == "cell" else (options,)

    for process in (program.first, program.second):
        code = program.ask(process, door, KERNELS["own header"], given)
        assert answer_of(code) == "elsewhere"


# --- who asked first -----------------------------------------------------------------------------

NEEDS_A_FLAG = 'extern "C" __global__ void k(long* p) { p[0] = (__int128)p[1] * p[2] >> 64; }'


# The name that CuPy's function gives the program; all else of the two requests is the same too.
OF_CUPY = {"name": "k.cu"}
MAY_ADD_FLAGS = ["compile", "compile_many"]


@pytest.mark.parametrize("first", MAY_ADD_FLAGS)
def test_code_with_a_flag_that_was_added_is_none_for_cupy(first: str, program: Program) -> None:
    for _ in range(2):
        assert program.ask(program.first, first, NEEDS_A_FLAG, **OF_CUPY)
        for process in (program.first, program.second):
            with pytest.raises(AskedError):
                program.ask(process, "install", NEEDS_A_FLAG)


@pytest.mark.parametrize("then", MAY_ADD_FLAGS)
def test_what_cupy_refused_is_compiled_by_those_who_may_add_a_flag(
    then: str, program: Program
) -> None:
    for _ in range(2):
        with pytest.raises(AskedError, match="CompileE"):
            program.ask(program.first, "install", NEEDS_A_FLAG)
        assert program.ask(program.first, then, NEEDS_A_FLAG, **OF_CUPY)


@pytest.mark.parametrize("door", [door for door in DOORS if "headers" in TAKES[door]])
def test_headers_given_as_texts_are_what_was_given(door: str, program: Program) -> None:
    """Also where somebody edits whatever files they were written to."""
    name = f"{door}{program.folder.parent.name}.h"
    headers = {name: '#define VALUE "given"\n'}
    for number in range(3):
        source = f'#include "{name}"{KERNEL}__device__ int n = {number};'
        assert answer_of(program.ask(program.first, door, source, headers=headers)) == "given"
        for path in program.scratch.rglob(name):
            path.write_text('#define VALUE "other"\n')


# --- bundles and records -------------------------------------------------------------------------

SHIPPED = """
import rtcompile
request = rtcompile.CompileRequest({source!r}, {options!r})
"""
RECORDED = """
from tests import doors
doors.pretend_device()
for name in {names!r}:
    doors.door(name)({source!r}, {options!r})
"""
SHIPPED_DOORS = [door for door in DOORS if door not in ("install", "cell")]


def command(*arguments: object, cwd: Path, **environ: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rtcompile", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(cwd)]), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def check_found_and_edits_seen(program: Program, process: Process, doors: list[str]) -> None:
    """Ask in a process that may not compile: before an edit, after it, and after it is undone."""
    plain = program.options("compile", OPTIONS)
    expected = program.first.ask("compile", KERNELS["own header"], plain)

    def found(door: str, spelling: str) -> bytes | None:
        options, more = SPELLINGS[spelling]
        with suppress(AskedError):  # what is not found may not be compiled
            return program.ask(process, door, KERNELS["own header"], options, **more)
        return None

    spelled = [
        (door, spelling)
        for door, spelling in MATRIX
        if door in doors and SPELLINGS[spelling][0] in (OPTIONS, list(OPTIONS), " ".join(OPTIONS))
        if spelling not in ("name_expressions", "jitify=True")  # these ask for another code
    ]
    assert {each: found(*each) == expected for each in spelled} == dict.fromkeys(spelled, True)
    before = program.header.read_text()
    program.header.write_text('#define VALUE "2"\n')
    assert {each: found(*each) for each in spelled} == dict.fromkeys(spelled)
    program.header.write_text(before)
    assert {each: found(*each) == expected for each in spelled} == dict.fromkeys(spelled, True)


def test_a_bundle_answers_every_door_and_spelling(program: Program, tmp_path: Path) -> None:
    options = program.options("compile", OPTIONS)
    source = program.salt + KERNELS["own header"]
    (tmp_path / "shipped.py").write_text(SHIPPED.format(source=source, options=options))
    bundle = tmp_path / "shipped.rtcb"
    command("bundle", "shipped", "-o", bundle, "--arch", "sm_80", cwd=tmp_path)

    environ = {"RTCOMPILE_BUNDLES": str(bundle), "RTCOMPILE_CACHE_DIR": str(tmp_path / "empty")}
    with Process(**environ, RTCOMPILE_JIT="0") as process:
        check_found_and_edits_seen(program, process, SHIPPED_DOORS)


@pytest.mark.parametrize("kept", ["cache", "bundle"])
def test_what_was_recorded_is_found_by_every_door_that_asked(
    kept: str, program: Program, tmp_path: Path
) -> None:
    options = program.options("compile", OPTIONS)
    source = program.salt + KERNELS["own header"]
    names = ["compile", "RawKernel", "RawModule", "install"]
    script = RECORDED.format(names=names, source=source, options=options)
    (tmp_path / "program.py").write_text(script)
    record, cache = tmp_path / "kernels.json", tmp_path / "another"
    command("run", "--record", record, "program.py", cwd=tmp_path)
    environ = {"RTCOMPILE_CACHE_DIR": str(cache)}
    if kept == "cache":
        command("warm", record, cwd=tmp_path, **environ)
    else:
        environ["RTCOMPILE_BUNDLES"] = str(tmp_path / "kernels.rtcb")
        command("bundle", record, "-o", environ["RTCOMPILE_BUNDLES"], cwd=tmp_path)

    with Process(**environ, RTCOMPILE_JIT="0") as process:
        check_found_and_edits_seen(program, process, names)


# --- how far it is -------------------------------------------------------------------------------

# The most functions of ours.
GATES = {"a hit from disk": 120, "again": 40}


def test_a_compile_passes_few_functions(program: Program, tmp_path: Path) -> None:
    environ = {"RTCOMPILE_CACHE_DIR": str(tmp_path / "cache")}
    ask = ("compile", KERNELS["plain"], ("-DTILE=16",))
    with Process(cupy=False, **environ) as process:
        process.ask(*ask, arch="sm_80")
    passed = {}
    with Process(cupy=False, **environ) as process:
        for what in GATES:
            passed[what], _, _ = process.count(*ask, arch="sm_80")

    assert {what: count for what, count in passed.items() if count > GATES[what]} == {}

"""The road of a hit: an answer is given only while everything that it depended on is as it was."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import rtcompile
from rtcompile.building import pipeline
from rtcompile.cache import answers, kept_answers, surroundings, words
from rtcompile.cache.store import Store
from rtcompile.core.request import CompileRequest
from rtcompile.errors import ToolkitNotFound
from rtcompile.everywhere import recording, warming
from rtcompile.lookup.fileset import FileSet
from rtcompile.settings import Settings
from tests.answering import CAPABILITY, CODE, WITH_HEADER, build, found

pytestmark = pytest.mark.usefixtures("asked")


def test_the_same_words_get_the_same_code_with_its_story():
    words = build(CODE % 1)

    answer = found(words)

    built = rtcompile.compile(CODE % 1, arch="sm_80")
    assert answer.code == built.code
    assert (answer.names, answer.depends_on_files) == ((), False)
    code = answer.object_code()
    assert (code.code, code.build.hit, code.build.backend) == (built.code, "disk", "nvrtc")


def test_what_led_to_the_code_is_kept_with_it_where_a_build_in_between_read_another_header(
    tmp_path,
):
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "value.h").write_text(f"#define VALUE {version}\n")
    time.sleep(0.02)  # out of the file clock's tick
    current = tmp_path / "current"
    codes: dict[str, set[bytes]] = {"1": set(), "2": set()}
    for version in ("1", "2", "1", "2"):
        current.unlink(missing_ok=True)
        current.symlink_to(tmp_path / version)
        words = (WITH_HEADER, f"-I{current}")
        answer = found(words)
        codes[version].add(answer.code if answer is not None else b"")
        build(*words)
        codes[version].add(found(words).code)
    assert codes["1"] & codes["2"] <= {b""}
    assert all(len(found - {b""}) == 1 for found in codes.values())


def test_lowered_names_and_headers_are_in_the_answer(value_header):
    code = '#include "value.h"\ntemplate <class T> __global__ void f(T* x) { *x = VALUE; }'
    request = CompileRequest(code, [f"-I{value_header.parent}"], name_expressions=["f<float>"])
    pipeline.build(request, Settings.from_environ(), ("words",))

    answer = found(("words",))

    assert answer.names == (("f<float>", "_Z1fIfEvPT_"),)
    assert [h.path for h in answer.object_code().build.headers] == [str(value_header)]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda header: header.write_text("#define VALUE 2\n"), id="an edited header"),
        pytest.param(lambda header: header.unlink(), id="a header that is gone"),
        pytest.param(
            lambda header: (header.parents[1] / "first" / "value.h").write_text(""),
            id="a header that comes first now",
        ),
    ],
)
def test_a_change_in_what_was_read_leads_back_to_the_full_road(value_header, change):
    words = build(WITH_HEADER, f"-I{value_header.parents[1]}/first", f"-I{value_header.parent}")
    assert found(words) is not None

    change(value_header)

    assert found(words) is None


def test_a_change_in_the_toolchain_leads_back_to_the_full_road(tmp_path):
    part = tmp_path / "part of a toolkit"
    part.write_text("one")
    code = rtcompile.compile(CODE % 1, arch="sm_80")
    store = Store.open(Settings.from_environ())
    kept_answers.keep(("words",), CAPABILITY, code, FileSet(), [str(part)], [], "", store.publish)
    assert found(("words",)) is not None

    part.write_text("another")

    assert found(("words",)) is None


def test_what_the_toolkit_has_may_be_a_second_old_and_nothing_else(tmp_path, monkeypatch):
    folders = [tmp_path / name for name in ("toolkit", "own")]
    code = rtcompile.compile(CODE % 1, arch="sm_80")
    publish = Store.open(Settings.from_environ()).publish
    for folder in folders:
        folder.mkdir()
        read = FileSet(absent=(str(folder / "new.h"),))
        kept_answers.keep(
            (folder.name,), CAPABILITY, code, read, [], [str(folders[0])], "", publish
        )
    ask = partial(answers.find, capability=CAPABILITY, settled=True)
    monkeypatch.setattr(answers, "_SETTLED_SECONDS", 60)
    assert all(ask((folder.name,)) for folder in folders)

    for folder in folders:
        (folder / "new.h").touch()

    assert [ask((folder.name,)) is None for folder in folders] == [False, True]
    assert answers.find(("toolkit",), CAPABILITY) is None
    monkeypatch.setattr(answers, "_SETTLED_SECONDS", 0)
    assert ask(("toolkit",)) is None


def test_answers_of_another_toolchain_stay_none_after_one_is_kept_for_this_one(tmp_path):
    part = tmp_path / "part of a toolkit"
    part.write_text("one")
    code = rtcompile.compile(CODE % 1, arch="sm_80")
    publish = Store.open(Settings.from_environ()).publish
    for word in ("first", "second"):
        kept_answers.keep((word,), CAPABILITY, code, FileSet(), [str(part)], [], "", publish)

    part.write_text("another")
    answers._environment = None
    kept_answers.keep(("first",), CAPABILITY, code, FileSet(), [str(part)], [], "", publish)

    assert found(("first",)) is not None
    assert found(("second",)) is None


def test_no_answer_is_kept_where_the_toolchain_was_replaced_during_the_build(monkeypatch):
    from rtcompile.building import miss
    from rtcompile.toolkit import remembered

    compile_once = miss.compile_once

    def compile_and_replace(*given, **more):
        code = compile_once(*given, **more)
        for here, known in remembered._in_this_process.items():
            stamps = dict.fromkeys(known.stamps, (1, 1))
            remembered._in_this_process[here] = known._replace(stamps=stamps)
        return code

    monkeypatch.setattr(miss, "compile_once", compile_and_replace)

    assert found(build(CODE % 1)) is None


@pytest.mark.parametrize("searched", ["sys.path", "PATH", "LD_LIBRARY_PATH"])
def test_a_search_in_the_working_directory_is_another_question_elsewhere(
    tmp_path, monkeypatch, searched
):
    if searched == "sys.path":
        monkeypatch.setattr(sys, "path", ["", *sys.path])
    else:
        monkeypatch.setenv(searched, f"/usr/bin:{os.environ.get(searched, '')}:")
    words = build(CODE % 1)
    assert answers.find(words, CAPABILITY) is not None

    (tmp_path / "nvidia").mkdir()
    monkeypatch.chdir(tmp_path)

    assert answers.find(words, CAPABILITY) is None


def test_a_folder_of_packages_that_appears_is_another_environment(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    words = build(CODE % 1)
    assert answers.find(words, CAPABILITY) is not None

    (tmp_path / "nvidia").mkdir()
    here = answers.environment()
    here.checked = here.looked = float("-inf")  # a second later

    assert answers.find(words, CAPABILITY) is None
    assert found(words) is None


def test_nothing_is_kept_where_a_folder_of_packages_came_after_the_question(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    answers.find(("words",), CAPABILITY)
    (tmp_path / "nvidia").mkdir()
    words = build(CODE % 1)
    (tmp_path / "nvidia").rmdir()

    assert found(words) is None


@pytest.mark.parametrize(
    "name", [n for n in surroundings.ENVIRONMENT if n != "RTCOMPILE_CACHE_DIR"]
)
def test_another_environment_is_another_question(monkeypatch, name):
    words = build(CODE % 1)

    monkeypatch.setenv(name, "another")

    assert answers.find(words, CAPABILITY) is None


@pytest.mark.parametrize(("name", "value"), [("RTCOMPILE_JIT", "0"), ("RTCOMPILE_JOBS", "3")])
def test_what_changes_no_result_is_part_of_no_question(monkeypatch, name, value):
    words = build(CODE % 1)

    monkeypatch.setenv(name, value)

    assert found(words) is not None


def test_the_folder_of_a_script_is_part_of_no_question(tmp_path, monkeypatch):
    words = build(CODE % 1)

    monkeypatch.syspath_prepend(tmp_path)

    assert found(words) is not None


def test_no_use_is_noted_where_nothing_may_be_written(cache, monkeypatch):
    words = build(CODE % 1)
    monkeypatch.setenv("RTCOMPILE_JIT", "0")
    for file in (cache / "answers").iterdir():
        os.utime(file, (0, 0))

    assert found(words) is not None

    assert {file.stat().st_mtime for file in (cache / "answers").iterdir()} == {0}


def test_another_device_another_folder_of_packages_and_other_words_are_other_questions(monkeypatch):
    words = build(CODE % 1)

    assert answers.find(words, (9, 0)) is None
    assert answers.find((*words, ""), CAPABILITY) is None
    monkeypatch.setattr(sys, "path", [*sys.path, "/elsewhere/site-packages"])
    assert answers.find(words, CAPABILITY) is None


def test_every_variable_that_is_read_anywhere_is_part_of_the_question():
    package = Path(answers.__file__).parents[1]
    read = {
        name
        for file in package.rglob("*.py")
        for name in re.findall(
            r'"((?:RTCOMPILE|CUPY|CUDA|NVCC|CUTLASS|CONDA)_[A-Z_]+)"', file.read_text()
        )
    }
    no_variables = {
        "RTCOMPILE_RUN",
        "CUDA_CACHE_DISABLE",
        "CUDA_VERSION",
        "CUDA_ENVIRONMENT",
        "CUTLASS_ENVIRONMENT",
    }
    assert read - no_variables <= set(surroundings.ENVIRONMENT)


@pytest.mark.parametrize("damage", [b"", b"\0" * 500, b"truncated"])
def test_a_damaged_answer_is_none(cache, damage):
    words = build(CODE % 1)
    for file in (cache / "answers").iterdir():
        data = file.read_bytes()
        file.write_bytes(data[: len(data) // 2] if damage == b"truncated" else damage)

    assert found(words) is None


def test_an_answer_under_another_name_is_none(cache):
    one, two = build(CODE % 1), build(CODE % 2)
    files = {file.name: file.read_bytes() for file in (cache / "answers").iterdir()}
    assert len(files) == 3  # the environment's, and two answers
    for name in files:
        for other, data in files.items():
            if other != name:
                (cache / "answers" / name).write_bytes(data)
                assert not (
                    found(one) and found(one).code != rtcompile.compile(CODE % 1, arch="sm_80").code
                )
                assert not (
                    found(two) and found(two).code != rtcompile.compile(CODE % 2, arch="sm_80").code
                )
        (cache / "answers" / name).write_bytes(files[name])


def test_a_record_of_a_module_is_warmed_for_its_devices(tmp_path, monkeypatch):
    said = words.of_module(CODE % 1, "kernel.cu", "", ("-DN=1",), ())
    recorder = recording.Recorder(str(tmp_path / "kernels.json"))
    recorder.start()
    request = CompileRequest(CODE % 1, options=("-DN=1",))
    pipeline.build(request, Settings.from_environ(), said)
    record = recorder.finish()
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "another cache"))

    warming.warm(record, archs=["sm_90a", "sm_100"], progress=False)

    assert answers.find(said, CAPABILITY) is None
    hopper = rtcompile.compile(CODE % 1, options=("-DN=1",), arch="sm_90a")
    assert answers.find(said, (9, 0)).code == hopper.code
    # For such a device this compiler would build for sm_100a.
    assert answers.find(said, (10, 0)) is None


def test_what_is_different_in_every_build_has_no_answer():
    words = build('extern "C" __global__ void k(const char** x) { *x = __TIME__; }')

    assert found(words) is None


def test_nothing_is_written_where_compiling_is_forbidden(cache, monkeypatch):
    words = build(CODE % 1)
    for file in (cache / "answers").iterdir():
        file.unlink()
    monkeypatch.setenv("RTCOMPILE_JIT", "0")

    build(*words)

    assert not list((cache / "answers").iterdir())


def test_listeners_see_every_build(monkeypatch):
    words = build(CODE % 1)
    monkeypatch.setattr("rtcompile.watching.logs.listeners", [print])

    assert answers.find(words, CAPABILITY) is None


def test_a_hit_loads_few_modules_and_no_dataclass():
    code = (
        "import cupy, sys; before = set(sys.modules); import rtcompile.kernels;"
        "print(len([m for m in set(sys.modules) - before]), 'rtcompile.core.request' in sys.modules)"
    )
    pytest.importorskip("cupy")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, heavy = done.stdout.split()
    assert int(count) <= 18
    assert heavy == "False"


@pytest.mark.parametrize("chosen", ["options", "NVCC_APPEND_FLAGS"])
def test_what_a_compiler_of_the_users_choice_preprocessed_goes_the_full_road(
    chosen, tmp_path, monkeypatch
):
    # Neither an edit of that compiler nor a relative directory in a variable shows in the words.
    from rtcompile import toolkit

    if toolkit.current().nvcc is None or toolkit.current().host_compiler is None:
        pytest.skip("nvcc and a host compiler are needed")
    wrapper = tmp_path / "g++"
    wrapper.write_text('#!/bin/sh\nexec /usr/bin/g++ "$@"\n')
    wrapper.chmod(0o755)
    code = "#include <vector>\n" + CODE % 1
    assert found(build(code)) is not None
    if chosen == "options":
        words = build(code, "-ccbin", str(wrapper))
    else:
        monkeypatch.setenv("NVCC_APPEND_FLAGS", "-Irelative")
        words = build(code)

    assert found(words) is None


@pytest.mark.parametrize("name", ["RTCOMPILE_CUTLASS_PATH", "CUDA_HOME"])
def test_a_relative_folder_in_a_variable_leads_to_the_full_road(tmp_path, monkeypatch, name):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, str(tmp_path / "here"))
    with suppress(ToolkitNotFound):
        assert found(build(CODE % 1))
    monkeypatch.setenv(name, "here")
    with suppress(ToolkitNotFound):
        assert found(build(CODE % 1)) is None


def test_a_read_only_answer_that_was_not_used_for_hours_is_found(cache, monkeypatch):
    words = build(CODE % 1)
    answer = max((cache / "answers").iterdir(), key=lambda path: path.stat().st_size)
    os.utime(answer, (1, 1))

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", read_only)
    assert found(words)

"""Tests of the environment in look-ups: variables and toolchain files that matter, and those that do not."""

import importlib.machinery
import os
import re
import sys
import types
from pathlib import Path

import pytest

import rtcompile
from rtcompile import toolkit
from rtcompile.errors import InvalidRequest, UnsupportedArch
from rtcompile.lookup import bundles, environment
from rtcompile.lookup import find as device
from rtcompile.lookup import find as lookup
from rtcompile.request.request import CompileRequest
from tests.lookups import CAPABILITY, CODE, build, found, look

pytestmark = pytest.mark.usefixtures("absent_device")

compute_capability = device.compute_capability  # the fixture replaces it


@pytest.mark.parametrize(("seconds", "looks"), [(0.0, 0), (0.9, 0), (1.0, 1)])
def test_a_toolchains_files_are_checked_once_a_second(tmp_path, monkeypatch, seconds, looks):
    part, looked, now = str(tmp_path / "part"), [], [1000.0]
    monkeypatch.setattr(environment, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    here = environment.current()
    here.note([*environment.packed({part: (-1, -1, -1)}, "libnvrtc.so"), b"", b""])
    assert here.signature()
    stat = environment.signature
    monkeypatch.setattr(environment, "signature", lambda path: looked.append(path) or stat(path))

    now[0] += seconds
    (tmp_path / "part").touch()

    assert bool(here.signature()) is (not looks)
    assert looked.count(part.encode()) == looks


@pytest.mark.needs_compiler
def test_a_build_during_which_the_toolchain_was_replaced_is_not_kept(monkeypatch):
    from rtcompile.build import miss

    run = miss.Miss.run

    def compile_and_replace(build):
        code = run(build)
        for module in (environment, toolkit):
            monkeypatch.setattr(module, "signature", lambda path: (1, 1, 1))
        environment.current()._checked = float("-inf")  # a second later
        return code

    monkeypatch.setattr(miss.Miss, "run", compile_and_replace)

    assert found(build(CODE % 1)) is None


@pytest.mark.needs_compiler
@pytest.mark.parametrize("is_there", [True, False])
def test_a_build_is_not_kept_if_nvrtc_was_replaced_less_than_a_second_ago(is_there, monkeypatch):
    build(CODE % 1)  # finds the toolchain
    from rtcompile.build import miss

    run = miss.Miss.run

    def compile_and_replace(build):
        code = run(build)
        library = build.plan.toolchain.require_nvrtc().path
        stat = os.stat

        def other(path, **options):
            if path != library:
                return stat(path, **options)
            if not is_there:
                raise FileNotFoundError(path)
            return types.SimpleNamespace(st_size=1, st_mtime_ns=1, st_ino=1)

        patch.setattr(os, "stat", other)
        return code

    with monkeypatch.context() as patch:
        patch.setattr(miss.Miss, "run", compile_and_replace)
        request = build(CODE % 2)

    assert found(request) is None


def test_an_invalid_variable_prevents_reading_the_cache(monkeypatch):
    monkeypatch.setenv("RTCOMPILE_TIMEOUT", "soon")
    here = environment.current()
    monkeypatch.setattr(type(here.folder), "read", None)
    assert here.signature() == ""


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A fake of CuPy's runtime, without functions."""
    runtime = types.SimpleNamespace(CUDARuntimeError=OSError)
    cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(device, "_known", {})
    return runtime


def test_cupys_runtime_is_queried_once_per_device(runtime):
    current, queried = [0], []
    attributes = {(0, 75): 8, (0, 76): 6, (1, 75): 9, (1, 76): 0}

    def attribute(which: int, ordinal: int) -> int:
        queried.append(ordinal)
        return attributes[ordinal, which]

    runtime.getDevice, runtime.deviceGetAttribute = lambda: current[0], attribute
    for current[0], capability in ((0, (8, 6)), (1, (9, 0)), (0, (8, 6))):
        assert compute_capability() == capability
    assert queried == [0, 0, 1, 1]


def test_an_error_of_cupys_runtime_is_named(runtime):
    def broken():
        raise OSError("cudaErrorNoDevice")

    runtime.getDevice = broken
    with pytest.raises(UnsupportedArch, match=r"no CUDA device to compile for \(cudaErrorNoDev"):
        compute_capability()


@pytest.mark.needs_compiler
def test_a_build_is_not_kept_if_a_folder_of_packages_appeared_after_the_look_up(
    tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    look(CompileRequest(CODE % 1))
    (tmp_path / "nvidia").mkdir()
    environment.current()._checked = float("-inf")  # a second later
    request = build(CODE % 1)
    (tmp_path / "nvidia").rmdir()

    assert found(request) is None


@pytest.mark.needs_compiler
def test_another_environment_is_another_query(monkeypatch):
    request, found_in = build(CODE % 1), []
    for name in environment.TOOLCHAIN_VARIABLES:
        with monkeypatch.context() as another:
            another.setenv(name, "another")
            if look(request) is not None:
                found_in.append(name)

    assert found_in == []
    assert look(request) is not None


@pytest.mark.needs_compiler
def test_only_a_setting_that_changes_results_is_part_of_the_query(monkeypatch):
    results = {"CUPY_COMPILE_WITH_PTX": "1", "CUPY_CUDA_COMPILE_WITH_DEBUG": "1"}
    results |= {"RTCOMPILE_FALLBACK": "never"}
    others = {"RTCOMPILE_JIT": "0", "RTCOMPILE_JOBS": "3", "RTCOMPILE_TIMEOUT": "60"}
    others |= {"RTCOMPILE_PCH": "0", "RTCOMPILE_LOG": "warning"}
    request, found_with = build(CODE % 1), {}
    for name, value in {**results, **others}.items():
        with monkeypatch.context() as another:
            another.setenv(name, value)
            found_with[name] = found(request) is not None

    assert found_with == {**dict.fromkeys(results, False), **dict.fromkeys(others, True)}


@pytest.mark.needs_compiler
def test_an_invalid_variable_is_an_error_even_for_a_hit(monkeypatch):
    request = build(CODE % 1)
    for name in ("RTCOMPILE_TIMEOUT", "RTCOMPILE_JIT"):
        with monkeypatch.context() as another:
            another.setenv(name, "soon")
            with pytest.raises(InvalidRequest, match=name):
                found(request)


def test_a_home_in_a_variable_is_the_same_folder_everywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_PATH", "~/cuda")
    (tmp_path / "other").mkdir()
    keys = set()
    for folder in (tmp_path, tmp_path / "other"):
        monkeypatch.chdir(folder)
        environment.forget()
        keys.add(environment.current().key)
        assert environment.expanded(os.environ)["CUDA_PATH"] == str(tmp_path / "cuda")
    assert len(keys) == 1


@pytest.mark.needs_compiler
def test_the_folder_of_a_script_is_not_part_of_the_query(tmp_path, monkeypatch):
    request = build(CODE % 1)

    monkeypatch.syspath_prepend(tmp_path)

    assert found(request) is not None


@pytest.mark.needs_compiler
@pytest.mark.parametrize("entry", [Path("/packages"), b"/packages", None], ids=str)
def test_entries_of_the_search_path_that_are_not_text_are_ignored(monkeypatch, entry):
    request = build(CODE % 1)
    key = environment.current().key
    monkeypatch.setattr(sys, "path", [*sys.path, entry])

    assert environment.current().key == key
    assert found(request)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert bundles.cuda_major() in (12, 13, None)


@pytest.mark.needs_compiler
def test_a_module_that_another_thread_is_importing_is_not_called_yet(monkeypatch):
    monkeypatch.setattr("rtcompile.lookup.driver.capability_of_current", lambda: CAPABILITY)
    request = build(CODE % 1)
    for name in ("rtcompile.lookup.bundles", "cupy"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__spec__._initializing = True
        monkeypatch.setitem(sys.modules, name, module)

    assert found(request)
    assert compute_capability() == CAPABILITY
    assert bundles.cuda_major() in (12, 13, None)


def test_every_variable_that_is_read_anywhere_is_in_the_table():
    package = Path(lookup.__file__).parents[1]
    read = {
        name
        for file in package.rglob("*.py")
        for name in re.findall(
            r'"((?:RTCOMPILE|CUPY|CUDA|NVCC|CUTLASS|CONDA)_[A-Z_]+)"', file.read_text()
        )
    }
    no_variables = """RTCOMPILE_RUN RTCOMPILE_TEST_ CUDA_CACHE_DISABLE CUDA_VISIBLE_DEVICES CUDA_VERSION
    CUDA_ENVIRONMENT CUTLASS_ENVIRONMENT CUDA_ERROR_ CUDA_ERROR_STUB_LIBRARY"""
    assert read - {*no_variables.split()} <= set(environment.VARIABLES)


@pytest.mark.needs_compiler
@pytest.mark.needs_nvcc
def test_builds_with_the_users_host_compiler_are_planned_each_time(tmp_path, monkeypatch):
    # The options show no edit of that compiler, and no relative directory in a variable.
    wrapper = tmp_path / "g++"
    wrapper.write_text('#!/bin/sh\nexec /usr/bin/g++ "$@"\n')
    wrapper.chmod(0o755)
    code = "#include <vector>\n" + CODE % 1
    assert found(build(code)) is not None
    assert found(build(code, "-ccbin", str(wrapper))) is None

    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-Irelative")
    assert found(build(code)) is None


@pytest.mark.needs_compiler
def test_a_relative_cache_depends_on_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", "cache")
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        assert rtcompile.compile(CODE % 1, arch="sm_80").build.hit is None
        assert (tmp_path / folder / "cache" / "index").is_dir()

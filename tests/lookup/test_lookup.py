"""A look-up finds code without planning only while everything that the code depends on is as it was."""

from __future__ import annotations

import importlib.machinery
import os
import re
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

import rtcompile
from rtcompile.build import pipeline, planned
from rtcompile.bundles import index as bundles
from rtcompile.errors import InvalidRequest
from rtcompile.extras.record import recording, warming
from rtcompile.files import fileset
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import SearchDir
from rtcompile.lookup import environment, query
from rtcompile.lookup import find as lookup
from rtcompile.lookup import query as device
from rtcompile.lookup.query import Found, Memory, query_of
from rtcompile.request.object_code import ObjectCode, files_of
from rtcompile.request.request import CompileRequest
from rtcompile.request.values import Arch
from rtcompile.store.folder import Folder
from tests.lookups import CAPABILITY, CODE, WITH_HEADER, build, found, look

pytestmark = pytest.mark.usefixtures("asked")

compute_capability = device.compute_capability  # which the fixture replaces


@pytest.mark.needs_compiler
def test_the_same_request_gets_the_same_code_and_how_it_was_built():
    request = build(CODE % 1)

    code = found(request)

    built = rtcompile.compile(CODE % 1, arch="sm_80")
    assert (code.code, code.build.hit, code.build.backend) == (built.code, "disk", "nvrtc")
    assert (dict(code.lowered_names), files_of(code.build).is_empty) == ({}, True)
    assert look(request).build.hit == "memory"


@pytest.mark.needs_compiler
def test_an_index_entry_points_at_the_object_and_holds_no_copy_of_it(cache):
    request = build(CODE % 1)
    code = found(request).code
    assert not any(code in file.read_bytes() for file in (cache / "index").iterdir())

    for file in (cache / "objects").iterdir():
        file.unlink()

    assert found(request) is None


@pytest.mark.needs_compiler
def test_each_way_to_write_options_has_one_entry(cache):
    for options in (("-DN=1",), ["-DN=1"], "-DN=1"):
        rtcompile.compile(CODE % 1, options=options, arch="sm_80")
    assert len(list((cache / "index").iterdir())) == 1


@pytest.mark.needs_compiler
def test_where_a_build_in_between_read_another_header_each_gets_its_own(tmp_path):
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "value.h").write_text(f"#define VALUE {version}\n")
    time.sleep(0.02)  # out of the file clock's tick
    current = tmp_path / "current"
    codes: dict[str, set[bytes]] = {"1": set(), "2": set()}
    for version in ("1", "2", "1", "2"):
        current.unlink(missing_ok=True)
        current.symlink_to(tmp_path / version)
        request = CompileRequest(WITH_HEADER, options=(f"-I{current}",))
        code = found(request)
        codes[version].add(code.code if code is not None else b"")
        build(WITH_HEADER, f"-I{current}")
        codes[version].add(found(request).code)
    assert codes["1"] & codes["2"] <= {b""}
    assert all(len(found - {b""}) == 1 for found in codes.values())


@pytest.mark.needs_compiler
def test_lowered_names_and_headers_are_found(value_header):
    code = '#include "value.h"\ntemplate <class T> __global__ void f(T* x) { *x = VALUE; }'
    request = build(code, f"-I{value_header.parent}", name_expressions=["f<float>"])

    again = found(request)

    assert again.lowered_names == {"f<float>": "_Z1fIfEvPT_"}
    assert [h.path for h in again.build.headers] == [str(value_header)]


@pytest.mark.needs_compiler
def test_notes_about_options_are_found_too():
    request = build(CODE % 1, "-std=gnu++17")

    assert any("gnu" in note for note in found(request).build.notes)


@pytest.mark.needs_compiler
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
def test_a_change_in_what_was_read_is_noticed(value_header, change):
    request = build(WITH_HEADER, f"-I{value_header.parents[1]}/first", f"-I{value_header.parent}")
    assert found(request) is not None

    change(value_header)

    assert found(request) is None


NOTHING = FileSet()


def kept(request: CompileRequest, read: FileSet = NOTHING, provided: tuple[str, ...] = ()) -> None:
    """Build a request, and say that it read other files."""
    from rtcompile.store.store import Store

    settings = environment.current().settings
    code = pipeline.build(request, settings)
    store = Store.open(settings)
    query = query_of(request, settings)
    plan = planned.plan_of(query)
    key = store.entry_of(plan.key_inputs, code).object_key
    search = tuple(SearchDir("", path) for path in provided)
    query.plan = plan._replace(toolchain=plan.toolchain._replace(search=search))
    lookup.keep(query, Found(code, read, key), lookup.LEVELS)


@pytest.mark.needs_compiler
def test_a_change_in_the_toolchain_is_noticed(tmp_path):
    part = tmp_path / "part of a toolkit"
    part.write_text("one")
    request = build(CODE % 1)
    here = environment.current()
    stamps = {str(part): environment.signature(str(part))}
    here.note(environment.packed(stamps, ""))
    for file in (tmp_path / "cache/index").iterdir():
        file.unlink()  # of the toolchain that was found
    kept(request)
    assert look(request) is not None

    part.write_text("another")
    here._checked = float("-inf")  # a second later

    assert look(request) is None


@pytest.mark.needs_compiler
def test_what_another_toolchain_made_is_not_found_in_memory_either(tmp_path):
    part = tmp_path / "part of a toolkit"
    part.write_text("one")
    request = build(CODE % 1)
    here = environment.current()
    for file in (tmp_path / "cache/index").iterdir():
        file.unlink()
    here.note(environment.packed({str(part): environment.signature(str(part))}, ""))
    kept(request)
    part.write_text("another")

    here.note(environment.packed({str(part): environment.signature(str(part))}, ""))

    for file in (tmp_path / "cache/index").iterdir():
        file.unlink()
    assert look(request) is None


@pytest.mark.needs_compiler
def test_a_forked_child_finds_code_and_counts_its_own_hits_alone(cache):
    program = """if True:
        import os, sys, rtcompile
        find = lambda: rtcompile.compile("__global__ void k() {}", arch="sm_80").build.hit
        find()
        hits = [find() for _ in range(3)]
        from rtcompile.lookup import environment
        with environment.current().memory._guard:
            child = os.fork()  # as while another thread looks something up
        if not child:
            assert find() == "disk"
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

    assert Folder(str(cache)).journal().hits == 3 + 1


def test_no_descriptor_of_the_cache_stays_open(cache):
    program = """if True:
        import os, rtcompile
        for source in ("__global__ void k() {}", "__global__ void k() {}", "#include <nowhere>"):
            try:
                rtcompile.compile(source, arch="sm_80")
            except rtcompile.CompileError:
                pass
        links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        print(*(os.readlink(link) for link in links if os.path.lexists(link)))
    """
    said = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert str(cache) not in said.stdout


def test_children_of_multiprocessing_count_their_hits(cache):
    """They end without calling what `atexit` was given."""
    program = """if True:
        import multiprocessing, rtcompile
        find = lambda: rtcompile.compile("__global__ void k() {}", arch="sm_80").build.hit
        find(), find()
        for _ in range(2):
            child = multiprocessing.get_context("fork").Process(target=find)
            child.start()
            child.join()
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

    assert Folder(str(cache)).journal().hits == 1 + 2


@pytest.mark.needs_compiler
def test_what_the_toolkit_has_may_be_a_second_old_and_nothing_else(tmp_path, monkeypatch):
    folders = [tmp_path / name for name in ("toolkit", "own")]
    queries = []
    for folder in folders:
        folder.mkdir()
        request = CompileRequest(CODE % 1, name=f"{folder.name}.cu")
        kept(request, FileSet(absent=(str(folder / "new.h"),)), (str(folders[0]),))
        query = query_of(request, environment.current().settings)
        query.recent = True
        queries.append(query)
    monkeypatch.setattr(fileset, "_RECENT_SECONDS", 60)
    assert all(map(lookup.find, queries))

    for folder in folders:
        (folder / "new.h").touch()

    assert [lookup.find(query) is None for query in queries] == [False, True]
    monkeypatch.setattr(fileset, "_RECENT_SECONDS", 0)
    assert lookup.find(queries[0]) is None


@pytest.mark.needs_compiler
def test_nothing_is_kept_where_the_toolchain_was_replaced_during_the_build(monkeypatch):
    from rtcompile.build import miss
    from rtcompile.toolkit import remembered

    compile_once = miss.compile_once

    def compile_and_replace(*given, **more):
        code = compile_once(*given, **more)
        for here, known in remembered._in_this_process.items():
            stamps = dict.fromkeys(known.signatures, (1, 1))
            remembered._in_this_process[here] = known._replace(signatures=stamps)
        return code

    monkeypatch.setattr(miss, "compile_once", compile_and_replace)

    assert found(build(CODE % 1)) is None


@pytest.mark.needs_compiler
@pytest.mark.parametrize("searched", ["sys.path", "PATH", "LD_LIBRARY_PATH"])
def test_a_search_in_the_working_directory_is_another_one_elsewhere(
    tmp_path, monkeypatch, searched
):
    if searched == "sys.path":
        monkeypatch.setattr(sys, "path", ["", *sys.path])
    else:
        monkeypatch.setenv(searched, f"/usr/bin:{os.environ.get(searched, '')}:")
    request = build(CODE % 1)
    assert look(request) is not None

    (tmp_path / "nvidia").mkdir()
    monkeypatch.chdir(tmp_path)

    assert look(request) is None


@pytest.mark.needs_compiler
def test_a_folder_of_packages_that_appears_is_another_environment(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    request = build(CODE % 1)
    assert look(request) is not None

    (tmp_path / "nvidia").mkdir()
    environment.current()._checked = float("-inf")  # a second later

    assert look(request) is None
    assert found(request) is None


@pytest.mark.needs_compiler
def test_nothing_is_kept_where_a_folder_of_packages_came_after_the_look_up(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    look(CompileRequest(CODE % 1))
    (tmp_path / "nvidia").mkdir()
    request = build(CODE % 1)
    (tmp_path / "nvidia").rmdir()

    assert found(request) is None


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    "name",
    [name for name, counts in environment.VARIABLES.items() if counts == "toolchain"],
)
def test_another_environment_is_another_query(monkeypatch, name):
    request = build(CODE % 1)

    monkeypatch.setenv(name, "another")

    assert look(request) is None


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUPY_COMPILE_WITH_PTX", "1"),
        ("CUPY_CUDA_COMPILE_WITH_DEBUG", "1"),
        ("RTCOMPILE_FALLBACK", "never"),
    ],
)
def test_a_setting_that_changes_results_is_part_of_the_query(monkeypatch, name, value):
    request = build(CODE % 1)

    monkeypatch.setenv(name, value)

    assert found(request) is None


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RTCOMPILE_JIT", "0"),
        ("RTCOMPILE_JOBS", "3"),
        ("RTCOMPILE_TIMEOUT", "60"),
        ("RTCOMPILE_PCH", "0"),
        ("RTCOMPILE_LOG", "warning"),
    ],
)
def test_what_changes_no_result_is_part_of_no_query(monkeypatch, name, value):
    request = build(CODE % 1)

    monkeypatch.setenv(name, value)

    assert found(request) is not None


@pytest.mark.needs_compiler
@pytest.mark.parametrize("name", ["RTCOMPILE_TIMEOUT", "RTCOMPILE_JIT"])
def test_a_variable_that_cannot_be_understood_is_an_error_of_a_hit_too(monkeypatch, name):
    request = build(CODE % 1)

    monkeypatch.setenv(name, "soon")

    with pytest.raises(InvalidRequest, match=name):
        found(request)


def test_a_home_in_a_variable_is_the_same_folder_everywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_PATH", "~/cuda")
    (tmp_path / "elsewhere").mkdir()
    keys = set()
    for folder in (tmp_path, tmp_path / "elsewhere"):
        monkeypatch.chdir(folder)
        environment.forget()
        keys.add(environment.current().key)
        assert environment.expanded(os.environ)["CUDA_PATH"] == str(tmp_path / "cuda")
    assert len(keys) == 1


@pytest.mark.needs_compiler
def test_the_folder_of_a_script_is_part_of_no_query(tmp_path, monkeypatch):
    request = build(CODE % 1)

    monkeypatch.syspath_prepend(tmp_path)

    assert found(request) is not None


@pytest.mark.needs_compiler
@pytest.mark.parametrize("entry", [Path("/packages"), b"/packages", None], ids=str)
def test_what_is_no_text_in_the_search_path_is_ignored_as_imports_do(monkeypatch, entry):
    request = build(CODE % 1)
    key = environment.current().key
    monkeypatch.setattr(sys, "path", [*sys.path, entry])

    assert environment.current().key == key
    assert found(request)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert bundles.cuda_major() in (12, 13, None)


@pytest.mark.needs_compiler
def test_a_module_that_another_thread_is_importing_is_not_asked_yet(monkeypatch):
    request = build(CODE % 1)
    for name in ("rtcompile.bundles", "cupy"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__spec__._initializing = True
        monkeypatch.setitem(sys.modules, name, module)

    assert found(request)
    assert compute_capability() == CAPABILITY
    assert bundles.cuda_major() in (12, 13, None)


@pytest.mark.needs_compiler
def test_no_use_is_noted_where_nothing_may_be_written(cache, monkeypatch):
    request = build(CODE % 1)
    monkeypatch.setenv("RTCOMPILE_JIT", "0")
    for file in (cache / "index").iterdir():
        os.utime(file, (0, 0))

    assert found(request) is not None

    assert {file.stat().st_mtime for file in (cache / "index").iterdir()} == {0}


@pytest.mark.needs_compiler
def test_another_device_another_folder_of_packages_and_another_request_are_other_queries(
    monkeypatch,
):
    request = build(CODE % 1)

    assert look(request, capability=(9, 0)) is None
    assert look(request.replace(options=("-DN",))) is None
    monkeypatch.setattr(sys, "path", [*sys.path, "/elsewhere/site-packages"])
    assert look(request) is None


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"name": "other.cu"}, id="name"),
        pytest.param({"backend": "nvrtc"}, id="backend"),
        pytest.param({"target": "ptx"}, id="target"),
        pytest.param({"headers": {"a.h": ""}}, id="headers"),
        pytest.param({"name_expressions": ("k",)}, id="name expressions"),
        pytest.param({"source": CODE % 2}, id="source"),
        pytest.param({"arch": "sm_90"}, id="arch"),
    ],
)
def test_each_field_of_a_request_is_part_of_the_query(change):
    request = build(CODE % 1)

    assert found(request.replace(**change)) is None


@pytest.mark.needs_compiler
def test_who_asks_first_does_not_decide_for_those_who_want_no_option_added():
    source = 'extern "C" __global__ void k(float* x) { __int128 a = 1; *x = (float)a; }'
    request = build(source)  # --device-int128 is added
    strict = request.replace(allow_fixups=False)
    settings = environment.current().settings

    assert look(request) is not None
    assert look(strict) is None
    for _ in range(2):
        with pytest.raises(rtcompile.CompileError):
            pipeline.build(strict, settings)
    assert rtcompile.compile(source).build.hit == "memory"


def test_every_variable_that_is_read_anywhere_is_in_the_table():
    package = Path(lookup.__file__).parents[1]
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
    assert read - no_variables <= set(environment.VARIABLES)


@pytest.mark.needs_compiler
@pytest.mark.parametrize("damage", [b"", b"\0" * 500, b"truncated"])
def test_a_damaged_entry_is_none(cache, damage):
    request = build(CODE % 1)
    for file in (cache / "index").iterdir():
        data = file.read_bytes()
        file.write_bytes(data[: len(data) // 2] if damage == b"truncated" else damage)

    assert found(request) is None


@pytest.mark.needs_compiler
def test_an_entry_under_another_name_is_none(cache):
    one, two = build(CODE % 1), build(CODE % 2)
    files = {file.name: file.read_bytes() for file in (cache / "index").iterdir()}
    assert len(files) == 2
    for name in files:
        for other, data in files.items():
            if other != name:
                (cache / "index" / name).write_bytes(data)
                assert not (
                    found(one) and found(one).code != rtcompile.compile(CODE % 1, arch="sm_80").code
                )
                assert not (
                    found(two) and found(two).code != rtcompile.compile(CODE % 2, arch="sm_80").code
                )
        (cache / "index" / name).write_bytes(files[name])


@pytest.mark.needs_compiler
def test_a_record_of_a_module_is_warmed_for_its_devices(tmp_path, monkeypatch):
    recorder = recording.Recorder(str(tmp_path / "kernels.json"))
    recorder.start()
    request = build(CODE % 1, "-DN=1")
    record = recorder.finish()
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "another cache"))

    warming.warm(record, archs=["sm_90a", "sm_100"], progress=False)

    assert look(request) is None
    hopper = rtcompile.compile(CODE % 1, options=("-DN=1",), arch="sm_90a")
    assert look(request, capability=(9, 0)).code == hopper.code
    # For such a device this compiler would build for sm_100a.
    assert look(request, capability=(10, 0)) is None


@pytest.mark.needs_compiler
def test_what_is_different_in_every_build_is_not_found():
    request = build('extern "C" __global__ void k(const char** x) { *x = __TIME__; }')

    assert found(request) is None


@pytest.mark.needs_compiler
def test_nothing_is_written_where_compiling_is_forbidden(cache, monkeypatch):
    request = build(CODE % 1)
    for file in (cache / "index").iterdir():
        file.unlink()
    monkeypatch.setenv("RTCOMPILE_JIT", "0")

    build(request.source)

    assert not list((cache / "index").iterdir())


@pytest.mark.needs_compiler
def test_listeners_see_every_build_and_every_hit(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "rtcompile.lookup.find.listeners", [lambda r, code: seen.append(code.build.hit)]
    )
    for _ in range(3):
        build(CODE % 1)
    environment.forget()
    build(CODE % 1)

    assert seen == [None, "memory", "memory", "disk"]


@pytest.mark.takes_seconds
@pytest.mark.parametrize(
    ("statement", "most"),
    [("import rtcompile.frontends.raw_module", 40), ("import rtcompile.api", 32)],
)
def test_a_hit_loads_few_modules(statement, most):
    pytest.importorskip("cupy")
    code = (
        f"import {'cupy, ' * ('raw_module' in statement)}sys; before = set(sys.modules); {statement};"
        "print(*sorted(m for m in set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert len([name for name in loaded if name.startswith("rtcompile")]) <= most
    heavy = {
        "typing",
        "inspect",
        "dataclasses",
        "re",
        "json",
        "diskcache",
        "functools",
        "contextlib",
    }
    if "modules" not in statement:
        assert not loaded & heavy


@pytest.mark.needs_compiler
@pytest.mark.needs_nvcc
@pytest.mark.parametrize("chosen", ["options", "NVCC_APPEND_FLAGS"])
def test_what_a_compiler_of_the_users_choice_preprocessed_is_planned_each_time(
    chosen, tmp_path, monkeypatch
):
    # Neither an edit of that compiler nor a relative directory in a variable shows in the words.
    wrapper = tmp_path / "g++"
    wrapper.write_text('#!/bin/sh\nexec /usr/bin/g++ "$@"\n')
    wrapper.chmod(0o755)
    code = "#include <vector>\n" + CODE % 1
    assert found(build(code)) is not None
    if chosen == "options":
        request = build(code, "-ccbin", str(wrapper))
    else:
        monkeypatch.setenv("NVCC_APPEND_FLAGS", "-Irelative")
        request = build(code)

    assert found(request) is None


@pytest.mark.needs_compiler
def test_a_relative_cache_is_another_one_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", "cache")
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        assert rtcompile.compile(CODE % 1, arch="sm_80").build.hit is None
        assert (tmp_path / folder / "cache" / "index").is_dir()


@pytest.mark.parametrize("name", ["RTCOMPILE_CUTLASS_PATH", "CUDA_HOME"])
def test_a_relative_folder_in_a_variable_is_another_one_elsewhere(tmp_path, monkeypatch, name):
    for folder in ("one", "two"):
        (tmp_path / folder / "here").mkdir(parents=True)
    monkeypatch.setenv(name, "here")
    keys = set()
    for folder in ("one", "two"):
        monkeypatch.chdir(tmp_path / folder)
        keys.add(environment.current().key)
    assert len(keys) == 2


@pytest.mark.needs_compiler
def test_a_read_only_entry_that_was_not_used_for_hours_is_found(cache, monkeypatch):
    request = build(CODE % 1)
    entry = max((cache / "index").iterdir(), key=lambda path: path.stat().st_size)
    os.utime(entry, (1, 1))

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", read_only)
    assert found(request)


@pytest.mark.takes_seconds
def test_what_is_remembered_of_large_sources_is_limited_too():
    kept = Memory()
    found = Found(ObjectCode(b"", "cubin", Arch(8, 0)), FileSet())

    for number in range(5):
        kept.keep((str(number) * (query._MAX_BYTES // 3), ("-DN=1",)), found)

    assert kept.find(("0" * (query._MAX_BYTES // 3), ("-DN=1",))) is None
    assert kept.find(("4" * (query._MAX_BYTES // 3), ("-DN=1",))) is found

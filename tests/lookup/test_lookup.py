"""A look-up finds code without planning only while all its dependencies are unchanged."""

import os
import sys

import pytest

import rtcompile
from rtcompile.build import pipeline
from rtcompile.extras.record import recording
from rtcompile.files import fileset
from rtcompile.files.fileset import FileSet
from rtcompile.lookup import environment
from rtcompile.lookup import find as lookup
from rtcompile.lookup.find import query_of
from rtcompile.request.object_code import Found, ObjectCode, Record
from rtcompile.request.request import CompileRequest
from rtcompile.request.values import Arch
from rtcompile.settings import Settings
from rtcompile.store import folder as caches
from tests.lookups import CODE, build, found, kept, look
from tests.programs import recorded

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("absent_device")]


def test_the_same_request_gets_the_same_code_and_how_it_was_built():
    request = build(CODE % 1)

    code = found(request)

    built = rtcompile.compile(CODE % 1, arch="sm_80")
    assert (code.code, code.build.hit, code.build.backend) == (built.code, "disk", "nvrtc")
    assert (dict(code.lowered_names), code.build.files.is_empty) == ({}, True)
    assert look(request).build.hit == "memory"


def test_an_index_entry_names_the_object_and_contains_no_copy(cache):
    request = build(CODE % 1)
    code = found(request).code
    assert not any(code in file.read_bytes() for file in (cache / "index").iterdir())

    for file in (cache / "objects").iterdir():
        file.unlink()

    assert found(request) is None


def test_each_way_to_write_options_has_one_entry(cache):
    for options in (("-DN=1",), ["-DN=1"], "-DN=1"):
        rtcompile.compile(CODE % 1, options=options, arch="sm_80")
    assert len(list((cache / "index").iterdir())) == 1


def test_lowered_names_and_headers_are_found(value_header):
    code = '#include "value.h"\ntemplate <class T> __global__ void f(T* x) { *x = VALUE; }'
    request = build(code, f"-I{value_header.parent}", name_expressions=["f<float>"])

    again = found(request)

    assert again.lowered_names == {"f<float>": "_Z1fIfEvPT_"}
    assert [h.path for h in again.build.headers] == [str(value_header)]


def test_only_the_toolkits_headers_may_be_a_second_old(tmp_path, monkeypatch):
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
    assert all(pipeline.search(query, "nothing") for query in queries)

    for folder in folders:
        (folder / "new.h").touch()

    assert [pipeline.search(query, "nothing") is None for query in queries] == [False, True]
    monkeypatch.setattr(fileset, "_RECENT_SECONDS", 0)
    assert pipeline.search(queries[0], "nothing") is None


def test_each_field_of_a_request_the_device_and_the_folders_of_packages_are_in_the_query(
    monkeypatch,
):
    changes = {"name": "other.cu", "backend": "nvrtc", "target": "ptx", "headers": {"a.h": ""}}
    changes |= {"name_expressions": ("k",), "source": CODE % 2, "arch": "sm_90"}
    changes |= {"allow_fixups": False, "options": ("-DN",)}
    request = build(CODE % 1)
    fields = {name: found(request.replace(**{name: value})) for name, value in changes.items()}

    assert fields == dict.fromkeys(changes)
    assert found(request) is not None
    assert look(request, capability=(9, 0)) is None
    monkeypatch.setattr(sys, "path", [*sys.path, "/other/site-packages"])
    assert look(request) is None


def test_a_record_of_a_module_is_warmed_for_its_devices(tmp_path, monkeypatch):
    request = CompileRequest(CODE % 1, options=("-DN=1",))
    record = recorded(tmp_path / "kernels.json", lambda: build(CODE % 1, "-DN=1"))
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "another cache"))

    recording.warm(record, archs=["sm_90a", "sm_100"], progress=False)

    assert look(request) is None
    hopper = rtcompile.compile(CODE % 1, options=("-DN=1",), arch="sm_90a")
    assert look(request, capability=(9, 0)).code == hopper.code
    # For such a device this compiler would build for sm_100a.
    assert look(request, capability=(10, 0)) is None


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


def test_a_read_only_entry_that_was_not_used_for_hours_is_found(cache, monkeypatch):
    request = build(CODE % 1)
    entry = max((cache / "index").iterdir(), key=lambda path: path.stat().st_size)
    os.utime(entry, (1, 1))

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", read_only)
    assert found(request)


@pytest.mark.takes_seconds
def test_memory_for_large_sources_is_limited():
    found = Found(ObjectCode(b"", "cubin", Arch(8, 0)), Record(FileSet()))
    sources = [str(number) * (caches.MAX_BYTES // 3) for number in range(5)]
    queries = [query_of(CompileRequest(source), Settings.from_environ()) for source in sources]

    for query in queries:
        lookup.keep_in_memory(query, found)

    kept = [query.environment.memory.find(query.identity) for query in queries]
    assert (kept[0], kept[-1]) == (None, found)

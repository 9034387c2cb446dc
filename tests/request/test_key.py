"""Tests of keys: an input changes the key if and only if it changes the result."""

import re
from typing import Any

import pytest

from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import Header, SearchDir
from rtcompile.request import key
from rtcompile.request.key import KeyInputs, digest, field, path_bound
from rtcompile.request.values import Arch
from tests.key_inputs import make_key_inputs, make_object
from tests.tables import from_table

HERE = (SearchDir("user0", "/home/a/inc"), SearchDir("cudart", "/venv/a/include"))
THERE = (SearchDir("user0", "/home/b/inc"), SearchDir("cudart", "/venv/b/include"))
NESTED = (SearchDir("user0", "/home/a"), SearchDir("cudart", "/home/a/include"))

CONTENT = [
    pytest.param({"source": "__global__ void k() {} "}, id="source"),
    pytest.param({"name": "other.cu"}, id="program's base name"),
    pytest.param({"options": (("std", "c++20"), ("fmad", "true"))}, id="option's value"),
    pytest.param({"options": (("std", "c++17"),)}, id="option left out"),
    pytest.param({"options": (("D", "A"), ("D", "B"))}, id="macros"),
    pytest.param({"arch": Arch(9, 0)}, id="arch suffix"),
    pytest.param({"arch": Arch(8, 0)}, id="arch"),
    pytest.param({"target": "ptx"}, id="target"),
    pytest.param({"name_expressions": ("f<int>",)}, id="name expressions"),
    pytest.param({"search": HERE[::-1]}, id="order of search directories"),
    pytest.param({"search": HERE[:1]}, id="fewer search directories"),
    pytest.param({"links": ("cubin 1234",)}, id="link inputs"),
    pytest.param({"paths_matter": True}, id="line info"),
    pytest.param({"pre_includes": ("prelude.h",)}, id="pre-included header"),
    pytest.param({"search": NESTED}, id="one search directory inside another"),
]
REQUESTED = [
    pytest.param({"backend": "nvrtc"}, id="the requested compiler"),
    pytest.param({"allow_fixups": False}, id="whether an option may be added"),
]
PATHS = [
    pytest.param({"search": THERE}, id="where the search directories are"),
    pytest.param({"name": "/home/a/project/kernel.cu"}, id="the program's directory"),
    pytest.param({"name": "/kernel.cu"}, id="the program's directory is the root"),
]


def changed(change):
    base = {"search": HERE, "name_expressions": ("f", "g")}
    return make_key_inputs(**base), make_key_inputs(**{**base, **change})


@pytest.mark.parametrize("change", [*CONTENT, *REQUESTED, *PATHS])
def test_the_lookup_key_has_all_that_is_known_before_a_build(change):
    one, other = changed(change)
    assert one.lookup_key != other.lookup_key


@pytest.mark.parametrize("change", CONTENT)
def test_the_portable_and_object_keys_have_every_content(change):
    one, other = changed(change)
    assert one.portable_key != other.portable_key
    assert object_key(one) != object_key(other)


@pytest.mark.parametrize("change", REQUESTED)
def test_the_object_key_has_the_compiler_used_and_not_the_one_requested(change):
    one, other = changed(change)
    assert one.portable_key != other.portable_key
    assert object_key(one) == object_key(other)


@pytest.mark.parametrize("change", PATHS)
def test_the_portable_and_object_keys_have_no_path(change):
    one, other = changed(change)
    assert one.portable_key == other.portable_key
    assert object_key(one) == object_key(other)
    assert object_key(one, path_bound=True) != object_key(other, path_bound=True)
    given = FileSet(), "nvrtc"
    bound, unbound = (
        one.object_key(given[0], backend=given[1], path_bound=b) for b in (True, False)
    )
    assert one.object_key(given[0], backend=given[1]) == unbound != bound


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"name_expressions": ("g", "f", "f")}, id="order of name expressions"),
        pytest.param({"compilers": {"nvrtc": "13.0.88"}}, id="compilers here: likewise"),
    ],
)
def test_the_lookup_key_leaves_out_what_does_not_matter(change):
    one, other = changed(change)
    assert one.lookup_key == other.lookup_key


def object_key(
    inputs: KeyInputs, backend: str = "nvrtc", path_bound: bool = False, **changes: Any
) -> str:
    fields: dict[str, Any] = {
        "path": "/home/a/inc/x.h",
        "label": "user0",
        "relative": "x.h",
        "digest": "d1",
        "size": 1,
        "mtime_ns": 1,
        "ctime_ns": 1,
    }
    include_results = changes.pop("include_results", ())
    dependencies = FileSet(
        headers=(Header(**{**fields, **changes}),), include_results=include_results
    )
    return inputs.object_key(dependencies, backend=backend, path_bound=path_bound)


@from_table
def test_which_code_depends_on_paths(inputs, made, own_path, expected):
    given = make_key_inputs(search=(SearchDir("user0", "/home/a/inc"),), **inputs)
    dependencies = FileSet(own_path=own_path)
    assert path_bound(given, make_object(**made), dependencies) is expected
    if own_path == ("",):  # the host compiler's headers are equal on one machine
        assert not path_bound(given, make_object(**made), dependencies, same_system=True)


@from_table
def test_the_object_key_is_of_contents(change, matters):
    inputs = make_key_inputs()
    assert (object_key(inputs) != object_key(inputs, **change)) is matters


def test_keys_differ_by_kind_by_the_compilers_build_and_by_the_version_of_rtcompile(monkeypatch):
    inputs = make_key_inputs(compilers={"nvrtc": "12.9.86 CL-1"})
    other = make_key_inputs(compilers={"nvrtc": "12.9.86 CL-2"})
    keys = [inputs.lookup_key, inputs.portable_key, object_key(inputs), object_key(other)]
    monkeypatch.setattr(key, "__version__", "999")
    assert len({*keys, make_key_inputs(compilers=inputs.compilers).lookup_key}) == 5


BOTH = {"nvrtc": "12.9", "nvcc": "12.8"}
ALONE = {"nvrtc": "12.9"}


@from_table
def test_an_object_serves_requests_for_its_compiler(here, backend, built_by, compiler, serves):
    inputs = make_key_inputs(backend=backend, compilers=here)
    assert inputs.serves(built_by, compiler) is serves


def test_the_key_of_linked_code_contains_the_linkers_build():
    one, other = (make_key_inputs(linker=build) for build in ("nvJitLink a", "nvJitLink b"))
    assert one.lookup_key == other.lookup_key
    assert object_key(one) == object_key(other)
    assert object_key(one.linked("nvrtc")) != object_key(other.linked("nvrtc"))
    compiler = one.linked("nvrtc").compilers["nvrtc"]
    assert one.serves("nvrtc", compiler)
    assert not other.serves("nvrtc", compiler)


@from_table
def test_fields_cannot_run_into_each_other(one, other):
    assert digest(field(*f) for f in one) != digest(field(*f) for f in other)


def header(path: str) -> Header:
    return Header(path, "user0", "x.h", "d1", 1, 1, 1)


@from_table
def test_a_build_is_portable_if_all_its_files_are_found_by_the_search(files, name, expected):
    inputs = make_key_inputs(search=HERE, name=name)
    assert key.is_portable(inputs, make_object(), FileSet(**files)) is expected


@from_table
def test_a_clock_is_a_reason_against_caching_and_a_path_against_travelling(change, reason, travels):
    inputs = make_key_inputs(**change)
    found = key.reason_against(inputs)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)
    assert key.may_travel(inputs) is travels


@pytest.mark.parametrize("below", ["/home/a/inc/", "/venv/a/include/", "/elsewhere/"])
@pytest.mark.parametrize("what", ["name", "pre_includes"])
def test_a_place_below_a_search_directory_is_content(below, what):
    def made(path: str) -> str:
        change: dict[str, Any] = {what: path if what == "name" else (path,)}
        return make_key_inputs(search=HERE, **change).portable_key

    assert (made(f"{below}k.cu") == made(f"{below}p/k.cu")) == (below == "/elsewhere/")
    assert made(f"{below}k.cu") != made(f"{below}other.cu")
    assert made("/elsewhere/k.cu") == made("/nowhere/k.cu")


def test_a_summary_names_all_in_which_requests_may_differ():
    inputs = make_key_inputs(
        name="/home/a/k.cu",
        options=(("D", "A"), ("D", "B=1"), ("std", "c++17")),
        name_expressions=("g", "f", "f"),
        links=("cubin 12", "ptx 34"),
        search=HERE,
    )
    assert inputs.summary() == {
        "source": inputs.source_digest[:16],
        "program": "k.cu",
        "arch": "sm_90a",
        "target": "cubin",
        "requested compiler": "auto",
        "name expressions": "f, g",
        "link": "cubin 12, ptx 34",
        "header directories": "user0, cudart",
        "option D": "A B=1",
        "option std": "c++17",
    }


def test_key_inputs_are_values_and_a_key_is_a_file_name():
    inputs = make_key_inputs()
    assert re.fullmatch("[0-9a-f]{64}", make_key_inputs(source="ü\udcff").lookup_key)
    assert inputs == make_key_inputs()
    with pytest.raises(AttributeError):
        inputs.source = ""  # type: ignore[misc]

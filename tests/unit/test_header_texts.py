"""Headers given as texts: found first, part of the key by content, never leaving their folder."""

from __future__ import annotations

import os
import pickle

import pytest

import rtcompile
from rtcompile import CompileRequest, InvalidRequest
from rtcompile.building import pipeline
from rtcompile.cache import inventory, texts
from rtcompile.cache.folder import Folder
from rtcompile.settings import Settings

SOURCE = """
#include "tile.cuh"
extern "C" __global__ void k(int* out) { *out = SIDE; }
"""


def _compile(text: str, source: str = SOURCE, name: str = "tile.cuh", **more: object):
    return rtcompile.compile(source, arch="sm_80", headers={name: text}, fallback="never", **more)


def test_a_text_is_found_and_its_edit_is_another_kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path))
    first = _compile("#define SIDE 3\n")
    assert first.build.hit is None
    assert _compile("#define SIDE 3\n").build.hit is not None
    other = _compile("#define SIDE 4\n")
    assert other.build.hit is None
    assert other.code != first.code
    assert _compile("#define SIDE 3\n").code == first.code


def test_another_place_has_the_same_key(tmp_path, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "one"))
    first = _compile("#define SIDE 3\n")
    (tmp_path / "two").mkdir()
    for kind in ("objects", "portable"):
        (tmp_path / "one" / kind).rename(tmp_path / "two" / kind)
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "two"))
    again = _compile("#define SIDE 3\n")
    assert (again.build.hit, again.code) == ("disk", first.code)


def test_a_text_wins_over_the_toolkits_header(tmp_path, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path))
    source = SOURCE.replace('"tile.cuh"', "<cuda_fp16.h>")
    assert _compile("#define SIDE 5\n", source, "cuda_fp16.h").code


def test_a_name_may_have_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path))
    headers = {"lib/a.cuh": '#include "b.cuh"\n', "lib/b.cuh": "#define SIDE 7\n"}
    source = SOURCE.replace("tile", "lib/a")
    assert rtcompile.compile(source, arch="sm_80", headers=headers).code


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/etc/x", "", "a//b", "a\nb", 'a"b', "x/" * 600, ".", "a\0b", 3]
)
def test_a_name_that_leaves_its_folder_is_refused(name):
    with pytest.raises(InvalidRequest, match="headers"):
        CompileRequest(SOURCE, headers={name: ""})


@pytest.mark.parametrize(
    "headers",
    [
        "tile.cuh",
        [("a", "b")],
        (None,),
        ("ab",),
        None,
        {"a": b""},
        {"a": "", "a/b": ""},
        {"a": "\0"},
    ],
)
def test_what_is_no_mapping_of_names_to_texts_is_refused(headers):
    with pytest.raises(InvalidRequest, match="headers"):
        CompileRequest(SOURCE, headers=headers)


def test_a_request_with_texts_can_be_pickled_hashed_and_replaced():
    request = CompileRequest(SOURCE, headers={"b": "1", "a": "2"})
    assert request.headers == (("a", "2"), ("b", "1"))
    assert pickle.loads(pickle.dumps(request)) == request
    assert request.replace(arch="sm_80").headers == request.headers
    assert len({request, request.replace(headers=dict(request.headers))}) == 1


def test_a_file_that_was_edited_in_the_cache_is_never_compiled(tmp_path):
    given = (("a.cuh", "right"),)
    folder = texts.folder(given, str(tmp_path))
    with open(os.path.join(folder, "a.cuh"), "w") as file:
        file.write("wrong")
    texts._compared.clear()  # as another process finds it
    assert texts.folder(given, str(tmp_path)) == folder
    with open(os.path.join(folder, "a.cuh")) as file:
        assert file.read() == "right"
    assert os.listdir(os.path.dirname(folder)) == [os.path.basename(folder)]


def test_a_cache_that_cannot_be_written_is_replaced_by_the_processs_own_folder(tmp_path):
    (tmp_path / "cache").write_text("a file")
    folder = texts.folder((("a.cuh", "x"),), str(tmp_path / "cache"))
    assert not folder.startswith(str(tmp_path))
    assert os.listdir(folder) == ["a.cuh"]


def test_clear_removes_the_folders_that_no_build_reads(tmp_path):
    old, new = (texts.folder((("a.cuh", text),), str(tmp_path)) for text in "xy")
    os.utime(old, (0, 0))
    inventory.empty(Folder(str(tmp_path)))
    assert (os.path.isdir(old), os.path.isdir(new)) == (False, True)
    assert texts.folder((("a.cuh", "x"),), str(tmp_path)) == old
    assert os.listdir(old)


def test_a_batch_takes_requests_with_texts(tmp_path, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path))
    requests = [
        CompileRequest(SOURCE, arch="sm_80", headers={"tile.cuh": f"#define SIDE {side}\n"})
        for side in (1, 2)
    ]
    one, two = rtcompile.compile_many(requests)
    assert one.code != two.code


def test_the_texts_are_a_folder_that_any_compiler_searches():
    request = CompileRequest(SOURCE, arch="sm_80", headers={"tile.cuh": ""}, backend="nvcc")
    placed = pipeline.with_headers(request, Settings.from_environ())
    assert placed.headers == ()
    assert os.listdir(placed.options[0][2:]) == ["tile.cuh"]


def test_a_module_and_a_kernel_take_texts(tmp_path, monkeypatch):
    pytest.importorskip("cupy")
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path))
    headers = {"tile.cuh": "#define SIDE 9\n"}
    module = rtcompile.RawModule(code=SOURCE, arch="sm_80", headers=headers)
    kernel = rtcompile.RawKernel(SOURCE, "k", arch="sm_80", headers=headers)
    assert module.object_code.code == kernel.object_code.code
    again = pickle.loads(pickle.dumps(module))
    assert again.object_code.build.hit is not None


def test_a_librarys_texts_are_its_modules():
    library = rtcompile.KernelLibrary("rtcompile", headers={"tile.cuh": "#define SIDE 1\n"})
    assert pickle.loads(pickle.dumps(library)).headers == (("tile.cuh", "#define SIDE 1\n"),)
    with pytest.raises(InvalidRequest, match="headers"):
        rtcompile.KernelLibrary("rtcompile", headers={"../x": ""})


def test_a_ptx_file_is_linked_with_its_options(tmp_path, monkeypatch):
    pytest.importorskip("cupy")
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path))
    source = 'extern "C" __global__ void many(float* x) { ' + " ".join(
        f"float a{i} = x[{i}];" for i in range(60)
    )
    source += " __syncthreads(); " + " ".join(f"x[{i}] = a{i} * x[99 - {i}];" for i in range(60))
    ptx = rtcompile.compile(source + "}", arch="sm_80", target="ptx")
    (tmp_path / "many.ptx").write_bytes(ptx.code)
    path = tmp_path / "many.ptx"
    limited = rtcompile.RawModule(path=path, options=("-maxrregcount=24",), arch="sm_80")
    assert limited.report().kernels[0].registers <= 24
    # Nothing here means anything to a linker: the driver loads the file, as with CuPy.
    assert rtcompile.RawModule(path=path, options=("-std=c++17",)).object_code is None


def test_an_option_for_a_ptx_file_that_is_none_is_refused(tmp_path):
    pytest.importorskip("cupy")
    path = tmp_path / "k.ptx"
    path.write_bytes(rtcompile.compile("__global__ void k() {}", arch="sm_80", target="ptx").code)
    module = rtcompile.RawModule(path=path, options=("-lineinfo", "--maxregcount=24"), arch="sm_80")
    with pytest.raises(InvalidRequest, match=r"'--maxregcount=24' is no option .*--maxrregcount, "):
        module.report()

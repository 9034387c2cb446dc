"""Tests of headers passed as texts: they are found first, the key covers their contents, names stay in their folder."""

import pickle

import pytest

import rtcompile
from rtcompile import CompileRequest, InvalidRequest
from rtcompile.files import headers as memory_headers

pytestmark = pytest.mark.needs_compiler

SOURCE = """
#include "tile.cuh"
extern "C" __global__ void k(int* out) { *out = SIDE; }
"""


def _compile(text: str, source: str = SOURCE, name: str = "tile.cuh", **more: object):
    given = {"backend": "nvrtc", **more}
    return rtcompile.compile(source, arch="sm_80", headers={name: text}, **given)


def test_include_dirs_are_folders_of_the_options(tmp_path):
    (folder := tmp_path / "with blank").mkdir()
    (folder / "tile.cuh").write_text("#define SIDE 3\n")
    given = {"source": SOURCE, "arch": "sm_80"}
    first = rtcompile.compile(**given, include_dirs=[folder])
    again = rtcompile.compile(**given, options=[f"-I{folder}"])

    request = CompileRequest(**given, include_dirs=(str(folder),))
    assert (first.build.hit, again.build.hit) == (None, "memory")
    assert request == CompileRequest(**given, options=[f"-I{folder}"])
    assert request.replace(include_dirs="/more").options == (f"-I{folder}", "-I/more")
    (folder / "tile.cuh").write_text("#define SIDE 4\n")
    assert rtcompile.compile(**given, include_dirs=[folder]).build.hit is None


def test_a_folder_must_be_a_path():
    with pytest.raises(InvalidRequest, match=r"include_dirs\[1\] must be a path, not int 3"):
        CompileRequest("", include_dirs=["/a", 3])


def _hit(headers: dict[str, str], source: str = SOURCE, **more: object) -> str | None:
    return rtcompile.compile(source, arch="sm_80", headers=headers, **more).build.hit


@pytest.mark.parametrize("backend", ["nvrtc", pytest.param("nvcc", marks=pytest.mark.needs_nvcc)])
@pytest.mark.parametrize(
    "changed",
    [{"other.cuh": "2"}, {}, {"other.cuh": "1", "third.cuh": ""}, {"tile.cuh": "#define SIDE 4\n"}],
)
def test_all_texts_count(changed, backend):
    tile = {"tile.cuh": "#define SIDE 3\n"}
    before = {**tile, "other.cuh": "1"}
    assert _hit(before, backend=backend) is None
    assert _hit({**tile, **changed}, backend=backend) is None
    assert _hit(before, backend=backend) == "memory"


def test_a_text_with_a_clock_is_compiled_each_time():
    tile = {"tile.cuh": "#define SIDE __TIME__[0]\n"}
    assert [_hit(tile), _hit(tile)] == [None, None]


def test_another_folder_has_the_same_key(tmp_path, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "one"))
    first = _compile("#define SIDE 3\n")
    (tmp_path / "two").mkdir()
    for kind in ("objects", "records"):
        (tmp_path / "one" / kind).rename(tmp_path / "two" / kind)
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "two"))
    again = _compile("#define SIDE 3\n")
    assert (again.build.hit, again.code) == ("disk", first.code)


def test_a_text_precedes_the_toolkits_header():
    source = SOURCE.replace('"tile.cuh"', "<cuda_fp16.h>")
    assert _compile("#define SIDE 5\n", source, "cuda_fp16.h").code


def test_a_name_may_have_folders():
    headers = {"lib/a.cuh": '#include "b.cuh"\n', "lib/b.cuh": "#define SIDE 7\n"}
    source = SOURCE.replace("tile", "lib/a")
    assert rtcompile.compile(source, arch="sm_80", headers=headers).code


def test_a_request_with_texts_can_be_pickled_hashed_and_replaced():
    request = CompileRequest(SOURCE, headers={"b": "1", "a": "2"})
    assert request.headers == (("a", "2"), ("b", "1"))
    assert pickle.loads(pickle.dumps(request)) == request
    assert request.replace(arch="sm_80").headers == request.headers
    assert len({request, request.replace(headers=dict(request.headers))}) == 1


@pytest.mark.parametrize("backend", ["nvrtc", pytest.param("nvcc", marks=pytest.mark.needs_nvcc)])
def test_header_texts_leave_no_files(tmp_path, monkeypatch, backend):
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "cache"))
    source = (
        '#include "tile.cuh"\nextern "C" __global__ void k(const char** out) { *out = __FILE__ ; }'
    )
    code = _compile("#define SIDE 3\n", backend=backend)
    left = [path for path in (tmp_path / "cache").rglob("*") if "tile" in path.name]
    assert not left
    assert _compile("#define SIDE 3\n", backend=backend).code == code.code
    with pytest.raises(rtcompile.CompileError) as raised:
        _compile("#define SIDE 3\n#error wrong\n", source, backend=backend)
    folder = memory_headers.folder((("tile.cuh", "#define SIDE 3\n#error wrong\n"),))
    assert f"{folder}/tile.cuh" in str(raised.value)


def test_a_text_has_the_same_path_in_every_process(tmp_path, monkeypatch):
    text = "__device__ const char* here() { return __FILE__; }\n"
    source = '#include "tile.cuh"\n extern "C" __global__ void k(const char** p) { *p = here(); }'
    made = []
    for name in ("one", "two"):
        monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / name))
        made.append(_compile(text, source).code)
    assert made[0] == made[1]
    folder = memory_headers.folder((("tile.cuh", text),)).lstrip("/")
    assert f'"{folder}/tile.cuh'.encode() in made[0].replace(b"\0", b'"')


def test_a_librarys_texts_are_available_to_its_modules():
    library = rtcompile.KernelLibrary("rtcompile", headers={"tile.cuh": "#define SIDE 1\n"})
    assert pickle.loads(pickle.dumps(library)).headers == (("tile.cuh", "#define SIDE 1\n"),)
    with pytest.raises(InvalidRequest, match="headers"):
        rtcompile.KernelLibrary("rtcompile", headers={"../x": ""})


def test_a_ptx_file_is_linked_with_its_options(tmp_path):
    pytest.importorskip("cupy")
    source = 'extern "C" __global__ void many(float* x) { ' + " ".join(
        f"float a{i} = x[{i}];" for i in range(60)
    )
    source += " __syncthreads(); " + " ".join(f"x[{i}] = a{i} * x[99 - {i}];" for i in range(60))
    ptx = rtcompile.compile(source + "}", arch="sm_80", target="ptx")
    (tmp_path / "many.ptx").write_bytes(ptx.code)
    path = tmp_path / "many.ptx"
    limit = ("-maxrregcount=24",)
    limited = rtcompile.RawModule(code="// many.ptx", link=[path], options=limit, arch="sm_80")
    assert limited.report().kernels[0].registers <= 24
    # The driver loads a file, as with CuPy.
    assert rtcompile.RawModule(path=path, options=limit).object_code is None

"""Tests of whole builds with a real NVRTC and without a GPU."""

import io
import os
import tempfile
import time
from pathlib import Path

import pytest

import rtcompile
from rtcompile import cubin
from rtcompile.store import store
from tests.processes import forget_caches
from tests.tables import from_table
from tests.toolkits import needs_host_compiler

pytestmark = pytest.mark.needs_compiler

PLAIN = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] *= 2; }'
WMMA = Path(__file__).with_name("wmma.cu").read_text()
TEMPLATE = "template <class T, int N> __global__ void scale(T* x) { x[threadIdx.x] *= N; }"


def compile(source=PLAIN, *, arch="sm_80", **arguments):
    return rtcompile.compile(source, arch=arch, **arguments)


def files_below(folder) -> set[str]:
    return {str(path) for path in Path(folder).rglob("*") if path.is_file()}


# --- the architecture --------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a", "sm_120a"])
def test_code_is_for_the_requested_architecture(arch):
    assert str(cubin.Elf(compile(WMMA, arch=arch).code).arch()) == arch


def test_without_a_device_the_error_says_to_pass_arch():
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is a device")
    with pytest.raises(rtcompile.UnsupportedArch, match="pass arch="):
        compile(arch=None)


# --- headers -----------------------------------------------------------------------------------


def test_the_users_directories_come_first(tmp_path):
    (tmp_path / "mma.h").write_text("#define MINE 1\n")
    source = '#include <mma.h>\n#if !MINE\n#error theirs\n#endif\nextern "C" __global__ void k() {}'
    assert compile(source, options=(f"-I {tmp_path}",)).build.headers[0].label == "user0"


# --- the cache ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [("-lineinfo",), ("-G",), ()], ids=str)
def test_line_info_names_an_existing_file_with_the_source_and_cupys_variable_keeps_all(
    monkeypatch, options
):
    monkeypatch.setenv("CUPY_CACHE_SAVE_CUDA_SOURCE", str(int(not options)))
    code = compile(options=options, name=f"{'m' * 190}.cu")
    (kept,) = Path(os.environ["RTCOMPILE_CACHE_DIR"], "sources").iterdir()
    assert kept.read_text() == PLAIN
    assert kept.name.endswith("mm.cu")
    assert len(kept.name) == 143  # the longest name in an eCryptfs
    assert (kept.name.encode() in code.code) == bool(options)


def test_a_build_whose_headers_are_not_known_is_not_cached(monkeypatch):
    from rtcompile.compilers import nvrtc

    real = nvrtc.compile

    def untold(*args, **kwargs):
        return real(*args, **kwargs)._replace(trace=None, files=None)

    monkeypatch.setattr(nvrtc, "compile", untold)
    for _ in range(2):
        assert compile().build.hit is None


def test_code_that_would_trap_causes_a_warning_and_a_log_line():
    source = """
    #include <cute/arch/mma_sm90_gmma.hpp>
    extern "C" __global__ void k() { cute::warpgroup_arrive(); }
    """
    with pytest.warns(rtcompile.RtcompileWarning, match="sm_90a"):
        code = compile(source, arch="sm_90")
    assert "contains traps" in code.build.log
    compile(source, arch="sm_90a")


def test_jit_can_be_forbidden(monkeypatch):
    compile()
    monkeypatch.setenv("RTCOMPILE_JIT", "0")
    forget_caches()
    assert compile().build.hit == "disk"
    with pytest.raises(rtcompile.JitDisabled, match="sm_90a is not in the cache"):
        compile(arch="sm_90a")


def test_a_cache_that_could_not_be_written_is_used_once_it_can(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_RETRY_SECONDS", 0.5)
    disk = tmp_path / "disk"
    disk.write_text("")
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(disk / "cache"))
    forget_caches()
    with pytest.warns(UserWarning, match="builds are kept in memory until it can"):
        compile()
    compile(arch="sm_86")  # no second warning
    disk.unlink()
    time.sleep(0.5)
    compile(arch="sm_89")
    assert len(files_below(disk / "cache/objects")) == 1


# --- what goes wrong ---------------------------------------------------------------------------


@from_table
def test_invalid_input_is_a_clear_error_and_leaves_no_files(
    source, arguments, error, message, tmp_path, monkeypatch
):
    temporary = tmp_path / "tmp"
    temporary.mkdir(mode=0o700)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    compile()  # so that the cache's own folders are there
    cache = os.environ["RTCOMPILE_CACHE_DIR"]
    before = files_below(cache)
    with pytest.raises(error, match=message) as caught:
        compile(source, **arguments)
    assert isinstance(caught.value, rtcompile.RtcompileError)
    assert not {path for path in files_below(cache) - before if "/objects/" in path}
    # The workers' folder exists as long as this process has workers.
    assert not {name for name in os.listdir(temporary) if "-workers-" not in name}


def test_an_error_points_at_the_users_line_and_keeps_the_log():
    with pytest.raises(rtcompile.CompileError) as caught:
        compile("\n\n__device__ int x = y;", name="mine.cu")
    error = caught.value
    first = error.diagnostics[0]
    assert (first.file, first.line, first.severity) == ("mine.cu", 3, "error")
    assert "__device__ int x = y;" in str(error)
    assert 'identifier "y" is undefined' in error.log
    assert error.backend == "nvrtc"
    assert "--std=c++17" in error.options


@pytest.mark.slow
def test_a_source_of_fifty_megabytes_compiles():
    source = "// " + "x" * 50_000_000 + "\n" + PLAIN
    assert compile(source).code == compile("//\n" + PLAIN, name="kernel.cu").code


def test_the_log_goes_to_the_stream_also_on_a_hit():
    source = 'extern "C" __global__ void k() { int unused; }'
    for _ in range(2):
        stream = io.StringIO()
        compile(source, log_stream=stream)
        assert "unused" in stream.getvalue()


# --- headers that shadow NVCC's, and folders that are others for another process ---------------


@pytest.mark.some(1)
@pytest.mark.parametrize("name", ["cuda_fp16.h", "vector"], ids=["a CUDA header", "a std header"])
@needs_host_compiler
def test_a_header_that_shadows_one_of_nvccs_is_noticed(tmp_path, name):
    source = f"#include <{name}>\n#ifndef MINE\n#define MINE 10\n#endif\n"
    source += 'extern "C" __global__ void k(int* out) { *out = MINE; }'
    arguments = {"options": (f"-I{tmp_path}",), "arch": "sm_80", "backend": "nvcc", "target": "ptx"}
    first = rtcompile.compile(source, **arguments)
    assert rtcompile.compile(source, **arguments).build.hit
    (tmp_path / name).write_text("#define MINE 20\n")
    second = rtcompile.compile(source, **arguments)
    assert second.build.hit is None
    assert second.code != first.code


@from_table
def test_folders_that_differ_between_processes_are_searched_each_time(tmp_path, folder):
    (tmp_path / "link").symlink_to("step")
    (tmp_path / "step").symlink_to("/proc/self")
    own = tmp_path / "own"
    own.mkdir()
    source = "#include <value.h>\n__device__ int value = VALUE;"
    own_option = f"-I{own}"
    options = [f"-I{folder.format(own=own, here=tmp_path)}", own_option]
    codes = []
    for value in (1, 1, 2):
        (own / "value.h").write_text(f"#define VALUE {value}")
        codes.append(rtcompile.compile(source, options=options, arch="sm_80"))
    assert [code.build.hit for code in codes] == [None, None, None]
    assert codes[0].code == codes[1].code != codes[2].code

    codes = [rtcompile.compile(source, options=[own_option], arch="sm_80") for _ in range(2)]
    assert [code.build.hit for code in codes] == [None, "memory"]


@needs_host_compiler
@pytest.mark.filterwarnings("ignore:not cached")  # for a build that takes a second
def test_nvcc_searches_such_a_folder_each_time_too(tmp_path):
    (tmp_path / "value.h").write_text("#define VALUE 1")
    source = "#include <value.h>\n__device__ int value = VALUE;"
    options = [f"-I/proc/self/root{tmp_path}"]
    for _ in range(2):
        code = rtcompile.compile(source, options=options, arch="sm_80", backend="nvcc")
        assert code.build.hit is None

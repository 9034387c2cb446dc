"""Tests of NVRTC in a worker: it returns code, names, log and headers, and its crashes end only the worker."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rtcompile import cubin, toolkit
from rtcompile.compilers import nvrtc
from rtcompile.errors import ToolkitNotFound
from rtcompile.request.units import Compiled, CompileFailure, Limits, TranslationUnit
from rtcompile.request.values import Arch
from rtcompile.toolkit.model import Library
from rtcompile.workers import libraries as worker_side
from tests.jobs import ENDLESS, Pool
from tests.processes import python

pytestmark = pytest.mark.needs_compiler

NO_LIMITS = Limits()
KERNEL = 'extern "C" __global__ void k() {}'


@pytest.fixture
def library() -> Library:
    return toolkit.current().require_nvrtc()


@pytest.fixture
def library13(cuda13_prefix: Path) -> Library:
    folder = next(cuda13_prefix.glob("**/libnvrtc.so.13")).parent
    builtins = next(folder.glob("libnvrtc-builtins.so.13.*"))
    return Library(str(folder / "libnvrtc.so.13"), "13.0", (str(builtins),))


def build(
    library: Library,
    source: str,
    *flags: str,
    expressions: tuple[str, ...] = (),
    limits: Limits = NO_LIMITS,
) -> Compiled | CompileFailure:
    arch, flags = Arch(9, 0), ("-arch=sm_90", *flags)
    unit = TranslationUnit(source, "kernel.cu", flags, expressions, "cubin", arch)
    return nvrtc.compile(unit, library, limits=limits)


def compiled(*arguments: Any, **fields: Any) -> Compiled:
    outcome = build(*arguments, **fields)
    assert isinstance(outcome, Compiled), outcome
    return outcome


def failure(*arguments: Any, **fields: Any) -> CompileFailure:
    outcome = build(*arguments, **fields)
    assert isinstance(outcome, CompileFailure), outcome
    return outcome


def test_a_kernel_becomes_a_cubin(library):
    outcome = compiled(library, KERNEL)
    assert cubin.kernel_symbols(outcome.code) == ["k"]
    assert outcome.kind == "cubin"
    phases = {"queue", "front end", "optimizer", "ptxas", "compile"}
    assert set(outcome.milliseconds) == phases
    assert outcome.milliseconds["front end"] > 0


def test_name_expressions_are_lowered(library):
    source = "template <class T> __global__ void f(T* p) { *p = 1; } __constant__ int c;"
    outcome = compiled(library, source, expressions=("f<float>", "&c"))
    assert outcome.lowered_names == {"f<float>": "_Z1fIfEvPT_", "&c": "c"}


def test_the_headers_that_were_read_are_listed(library, tmp_path):
    (tmp_path / "outer.h").write_text('#define NAME "inner.h"\n#include NAME\n#include "inner.h"\n')
    (tmp_path / "inner.h").write_text("#pragma once\n")
    outcome = compiled(library, f'#include "outer.h"\n{KERNEL}', f"-I{tmp_path}")
    assert outcome.trace == (str(tmp_path / "outer.h"), str(tmp_path / "inner.h"))


def test_a_mistake_is_an_error_with_the_compilers_log(library):
    outcome = failure(library, "__global__ void k() { mistake; }")
    assert outcome.kind == "error"
    assert outcome.log.startswith('kernel.cu(1): error: identifier "mistake" is undefined')
    assert "-arch=sm_90" in outcome.command


def test_headers_in_the_working_directory_are_not_found(library, tmp_path, monkeypatch):
    (tmp_path / "beside.h").write_text("#error not this one\n")
    monkeypatch.chdir(tmp_path)
    assert "cannot open source file" in failure(library, '#include "beside.h"').log


def test_two_processes_with_other_folders_produce_the_same_bytes(library, tmp_path, monkeypatch):
    source = "template <int N> static __device__ int t[N]; template <int N> __global__ void f(int* p) { *p = t<N>[*p]; }"
    codes = set()
    for folder in (tmp_path / "one", tmp_path / "another"):
        folder.mkdir()
        (folder / "f.h").write_text(source)
        own = Pool(1)
        monkeypatch.setattr(nvrtc.pool, "run", own.run)
        flag = f"-I{folder}"
        codes.add(compiled(library, '#include "f.h"\n', flag, expressions=("f<3>",)).code)
        own.close()
    assert len(codes) == 1


def test_a_success_without_code_is_reported_as_a_failure(library13):
    # NVRTC 13 without an architecture: WMMA compiles to PTX only.
    include = Path(library13.path).parents[1] / "include"
    source = """
        #include <mma.h>
        extern "C" __global__ void k(half* p) {
            nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, half, nvcuda::wmma::row_major> a;
            nvcuda::wmma::load_matrix_sync(a, p, 16);
        }
    """
    unit = TranslationUnit(source, "kernel.cu", (f"-I{include}",), (), "cubin", Arch(7, 5))
    outcome = nvrtc.compile(unit, library13, limits=Limits())
    assert isinstance(outcome, CompileFailure)
    assert outcome.log == "NVRTC reported success but made no cubin.\n"


def test_a_library_that_cannot_be_loaded_is_an_error_with_the_reason(tmp_path):
    path = tmp_path / "libnvrtc.so.12"
    path.write_bytes(b"no ELF")
    with pytest.raises(ToolkitNotFound, match=r"invalid ELF header|file too short"):
        compiled(Library(str(path), "12.9"), KERNEL)


@pytest.mark.parametrize(
    ("log", "stderr", "trace", "compiles"),
    [
        pytest.param("", b"", None, 1, id="an option without effect"),
        pytest.param(
            "unrecognized option --trace_includes found", b"", None, 2, id="no such option"
        ),
        pytest.param(
            "", b"__nv_nvrtc_builtin_header.h\n", b"__nv_nvrtc_builtin_header.h\n", 1, id="a trace"
        ),
    ],
)
def test_a_missing_header_trace_is_noticed(monkeypatch, log, stderr, trace, compiles):
    # The option is undocumented, so a build without it is the fallback.
    given: list[Any] = []
    monkeypatch.setattr(worker_side, "_compile", lambda *job: given.append(job) or {"log": log})
    monkeypatch.setattr(worker_side.system, "stderr_text", lambda: stderr)
    assert worker_side._observed({"unobserved": True}, [])["trace"] == trace
    assert len(given) == compiles


def test_the_callers_process_loads_no_compiler():
    # In another process, since other tests load NVRTC into this one.
    script = """
        from rtcompile import toolkit
        from rtcompile.compilers import nvrtc
        from rtcompile.request.units import Limits, TranslationUnit
        from rtcompile.request.values import Arch
        unit = TranslationUnit("", "k.cu", (), (), "ptx", Arch(8, 0))
        nvrtc.observe(unit, toolkit.current().require_nvrtc(), Limits())
        assert "nvrtc" not in open("/proc/self/maps").read()
    """
    root = Path(__file__).parents[2]
    python(script, cwd=root, check=True)


# --- inputs that break compilers; this process survives all of them --------------------------------


def test_a_compiler_that_segfaults_is_a_crash(library):
    source = "template <class T> struct B { friend bool operator==() = default; };"
    outcome = failure(library, source, "-std=c++20")
    assert (outcome.kind, outcome.signal) == ("crash", 11)
    assert compiled(library, KERNEL)


def test_a_compiler_that_hangs_is_killed_at_its_time_limit(library):
    outcome = failure(library, ENDLESS, limits=Limits(timeout=0.5))
    assert outcome.kind == "timeout"
    assert "0.5 s" in outcome.log


def test_a_compiler_that_uses_much_memory_is_killed_at_its_limit(library):
    laughs = "".join(f"#define A{i + 1} {f'A{i} ' * 10}\n" for i in range(12))
    limits = Limits(timeout=60, memory=60 << 20)
    outcome = failure(library, f"#define A0 ha\n{laughs}A12", limits=limits)
    assert outcome.kind == "memory"
    assert str(60 << 20) in outcome.log


def test_a_source_cannot_read_the_callers_environment(library, monkeypatch):
    monkeypatch.setenv("A_PASSWORD", "hunter2")
    outcome = failure(library, '#include "/proc/self/environ"')
    assert "CUDA_CACHE_DISABLE" in outcome.log
    assert "hunter2" not in outcome.log


# --- the driver --------------------------------------------------------------------------------

DRIVER = """
#include <stdio.h>
__attribute__((constructor)) static void loaded(void) { fclose(fopen(LOADED, "w")); }
"""


def run_beside_a_driver(folder: Path, script: str) -> bool:
    """Run a script with a fake libcuda.so.1; return whether anything loaded it."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no C compiler for a fake driver")
    (folder / "driver.c").write_text(DRIVER)
    driver, loaded = str(folder / "libcuda.so.1"), folder / "loaded"
    gcc = ["gcc", "-shared", "-fPIC", f'-DLOADED="{loaded}"', "-o", driver, folder / "driver.c"]
    subprocess.run(gcc, check=True)
    environ = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = python(script, env=environ, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    return loaded.exists()


@pytest.mark.parametrize("fixture", ["library", "library13"])
def test_a_worker_does_not_load_the_driver(fixture, request, tmp_path):
    given: Library = request.getfixturevalue(fixture)
    paths = os.pathsep.join((*given.preload, given.path))
    assert run_beside_a_driver(
        tmp_path,
        f"""
        from rtcompile.workers import libraries as nvrtc
        nvrtc.load({paths!r})
        nvrtc._always.clear()
        nvrtc._compile({{"source": b"", "name": b"k.cu"}}, [])
        """,
    ), "if this NVRTC no longer queries the driver, --no-cache is not needed"
    (tmp_path / "loaded").unlink()
    assert not run_beside_a_driver(
        tmp_path,
        f"""
        import time
        from tests.compilers.test_nvrtc import *
        library = Library({given.path!r}, {given.version!r}, {given.preload!r})
        compiled(library, KERNEL)
        compiled(library, KERNEL, "--no-cache")  # the user may pass it too
        time.sleep(0.3)  # idle, so that the zygote compiles by itself
        compiled(library, KERNEL)
        """,
    )

"""Tests of `rtcompile.install("cuda.core")`: its programs get rtcompile's code, cache and headers."""

import io
from collections.abc import Iterator
from typing import Any

import pytest

import rtcompile

core = pytest.importorskip("cuda.core", reason="cuda-core is not installed")

from tests.cuda_core.test_program_cache import PLAIN, SOURCE, digest, options  # noqa: E402

pytestmark = pytest.mark.needs_compiler


@pytest.fixture
def installed() -> Iterator[None]:
    theirs = core.Program
    with rtcompile.install("cuda.core") as installation:
        assert installation.active
        yield
    assert core.Program is core._program.Program is theirs


def compiled(source: str, given: Any, target: str = "cubin", names: Any = (), **more: Any) -> Any:
    return core.Program(source, "c++", given).compile(target, names, **more)


def test_its_programs_are_found_again_until_a_header_changes(installed, tmp_path):
    (tmp_path / "factor.h").write_text("#define FACTOR 3.0f\n")
    names = ("scale<int>", b"scale<double>")
    codes = [compiled(SOURCE, options(tmp_path), names=names) for _ in range(2)]
    (tmp_path / "factor.h").write_text("#define FACTOR 5.0f\n")
    codes.append(compiled(SOURCE, options(tmp_path), names=names))

    assert digest(codes[0]) == digest(codes[1]) != digest(codes[2])
    assert rtcompile.cache.info().misses == 2
    assert codes[1].symbol_mapping == {
        "scale<int>": b"_Z5scaleIiEvPT_",
        b"scale<double>": b"_Z5scaleIdEvPT_",
    }


def test_a_rejected_source_raises_cuda_cores_error_with_its_log(installed):
    log = io.StringIO()
    with pytest.raises(Exception, match="NVRTC_ERROR_COMPILATION") as error:
        compiled("__global__ void k() { y = 3; }", options(), logs=log)
    assert not isinstance(error.value, rtcompile.RtcompileError)


@pytest.mark.parametrize("target", ["ptx", "ltoir"])
def test_options_may_be_a_mapping_and_targets_are_theirs(installed, target):
    code = compiled(PLAIN, {"arch": "sm_90", "name": "mine"}, target)
    assert (code.code_type, code.name) == (target, "mine")
    assert rtcompile.cache.info().misses == 1


def test_a_cache_that_the_caller_gives_is_used_instead(installed):
    cache = core.utils.InMemoryProgramCache()
    first = compiled(PLAIN, options(), cache=cache)
    assert len(cache) == 1
    assert digest(first) == digest(compiled(PLAIN, options(), cache=cache))
    assert rtcompile.cache.info().misses == 0


def test_other_languages_and_isinstance_are_cuda_cores(installed):
    ptx = rtcompile.compile(PLAIN, arch="sm_90", target="ptx").code.decode()
    program = core.Program(ptx, "ptx", options())
    assert isinstance(program, core.Program)
    assert program.compile("cubin").code[:4] == b"\x7fELF"


def test_installing_twice_restores_once(installed):
    ours = core.Program
    with rtcompile.install("cuda.core"):
        pass
    assert core.Program is ours


def test_an_unknown_version_is_refused_with_its_number(monkeypatch):
    monkeypatch.setattr(core, "__version__", "2.0.1")
    theirs = core.Program
    with pytest.warns(rtcompile.RtcompileWarning, match=r"cuda\.core 2\.0\.1 is not known"):
        installation = rtcompile.install("cuda.core")
    assert not installation.active
    assert core.Program is theirs


def test_an_unknown_library_is_an_error():
    with pytest.raises(rtcompile.InvalidRequest, match="library"):
        rtcompile.install("torch2")

"""Tests of `ProgramCache`: it keeps programs of cuda.core in rtcompile's cache, with headers' contents in the key."""

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest

import rtcompile
from rtcompile import CompileError, InvalidRequest

core = pytest.importorskip("cuda.core", reason="cuda-core is not installed")

from rtcompile.extras.cuda_core import ProgramCache  # noqa: E402
from tests.processes import python  # noqa: E402

SOURCE = """#include "factor.h"
template <class T> __global__ void scale(T* x) { *x = FACTOR / *x; }
extern "C" __global__ void own(float* x) { *x = FACTOR / *x; }"""
PLAIN = 'extern "C" __global__ void k(float* x) { *x = 1.0f / *x; }'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "factor.h").write_text("#define FACTOR 3.0f\n")
    return tmp_path


def options(folder: Path | None = None, **more: Any) -> Any:
    return core.ProgramOptions(arch="sm_90", include_path=folder and str(folder), **more)


def digest(code: Any) -> tuple[int, str]:
    """Return what two codes are compared by, whose repr a failing test can show."""
    return len(code.code), hashlib.sha256(code.code).hexdigest()


def compiled(folder: Path, names: tuple[Any, ...] = (), target: str = "cubin", **more: Any) -> Any:
    return ProgramCache().compile(SOURCE, "c++", options(folder, **more), target, names)


@pytest.mark.needs_compiler
def test_a_program_is_found_again_until_a_header_changes(folder):
    cache = rtcompile.cache.info
    builds = [digest(compiled(folder)), digest(compiled(folder))]
    misses = cache().misses
    (folder / "factor.h").write_text("#define FACTOR 5.0f\n")
    builds.append(digest(compiled(folder)))

    assert (misses, cache().misses) == (1, 2)
    assert builds[0] == builds[1] != builds[2]


MORE = ({}, {"ftz": True}, {"use_fast_math": True}, {"std": "c++20"}, {"define_macro": "N"})


@pytest.mark.needs_compiler
def test_the_code_is_what_cuda_core_compiles(folder):
    # cuda.core compiles with the NVRTC that is loaded, which is another version after some tests.
    program = """if True:
        import sys; from pathlib import Path; from tests.cuda_core.test_program_cache import *
        for more in MORE:
            given = options(Path(sys.argv[1]), **more)
            print(more, digest(core.Program(SOURCE, 'c++', given).compile('cubin')))
    """
    ours = [f"{more} {digest(compiled(folder, **more))}" for more in MORE]
    assert python(program, folder, check=True).stdout.splitlines() == ours


@pytest.mark.needs_compiler
@pytest.mark.parametrize("target", ["cubin", "ptx", "ltoir"])
def test_name_expressions_are_found_as_they_were_given(folder, target):
    names = "scale<int>", b"scale<int>", b"scale<double>"
    for _ in range(2):
        code = compiled(folder, names, target, name="my program")
        assert (code.code_type, code.name) == (target, "my program")
        assert code.symbol_mapping == {
            "scale<int>": b"_Z5scaleIiEvPT_",
            b"scale<int>": b"_Z5scaleIiEvPT_",
            b"scale<double>": b"_Z5scaleIdEvPT_",
        }


@pytest.mark.needs_compiler
def test_errors_and_logs_are_the_compilers(folder):
    logs = io.StringIO()
    cache = ProgramCache()
    cache.compile("__global__ void k() { int unused; }", "C++", options(), "cubin", logs=logs)

    assert "unused" in logs.getvalue()
    with pytest.raises(CompileError, match='identifier "y" is undefined'):
        cache.compile("__global__ void k() { y = 3; }", "c++", options(), "cubin")


@pytest.mark.needs_compiler
def test_cuda_cores_program_accepts_it_as_a_cache(monkeypatch):
    first = digest(core.Program(PLAIN, "c++", options()).compile("cubin", cache=ProgramCache()))
    monkeypatch.setattr(core._program, "_program_compile_uncached", None)

    again = digest(core.Program(PLAIN, "c++", options()).compile("cubin", cache=ProgramCache()))

    assert again == first


@pytest.mark.needs_compiler
def test_ptx_is_linked_by_cuda_core_and_kept():
    ptx = rtcompile.compile(PLAIN, arch="sm_90", target="ptx").code.decode()
    codes = [ProgramCache().compile(ptx, "PTX", options(), "cubin") for _ in range(2)]
    first, again = map(digest, codes)

    assert first == again
    assert (len(ProgramCache()), codes[0].code[:4]) == (1, b"\x7fELF")


@pytest.mark.parametrize(
    ("code_type", "given", "error", "message"),
    [
        ("c++", {"time": "t.csv"}, ValueError, "side effect"),
        ("fortran", {}, RuntimeError, "fortran"),
        ("c++", None, InvalidRequest, "must be a ProgramOptions, not dict"),
    ],
)
def test_a_program_that_cannot_be_kept_is_rejected(code_type, given, error, message):
    with pytest.raises(error, match=message):
        ProgramCache().compile(PLAIN, code_type, {} if given is None else options(**given), "cubin")


def test_its_programs_are_in_the_cache_but_are_not_builds():
    cache = ProgramCache()
    before = rtcompile.cache.info()
    cache["key"] = bytes(5000)
    assert cache[b"key"] == bytes(5000)

    after = rtcompile.cache.info()
    assert after.size - before.size > 5000
    assert (after.entries, after.hits) == (before.entries, before.hits + 1)
    rtcompile.cache.clear()
    assert (len(cache), cache.get("key")) == (0, None)


def test_a_damaged_program_is_a_miss_and_removed_by_verify():
    from rtcompile.settings import Settings
    from rtcompile.store.store import Store

    cache = ProgramCache()
    cache["key"] = b"code"
    [path] = Path(rtcompile.cache.info().directory, "programs").iterdir()
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b"code", b"evil"))

    assert cache.get("key") is None
    assert Store.open(Settings.from_environ()).verify() == [str(path)]
    assert len(cache) == 0


def test_a_file_under_another_programs_key_is_not_used(tmp_path):
    """A file that was renamed, or copied from another cache, is not the code of its name's program."""
    cache = ProgramCache()
    cache["a"], cache["b"] = b"of a", b"of b"
    first, second = sorted(Path(rtcompile.cache.info().directory, "programs").iterdir())
    first.replace(second)

    assert {cache.get("a"), cache.get("b")} == {None}


def test_reading_counts_as_use_at_once(monkeypatch):
    monkeypatch.setenv("RTCOMPILE_CACHE_SIZE", "5000")
    cache = ProgramCache()
    cache["a"], cache["b"] = bytes(2000), bytes(2000)
    assert cache["a"]
    cache["c"] = bytes(2000)

    assert [cache.get(key) is None for key in ("a", "b", "c")] == [False, True, False]


@pytest.mark.needs_compiler
def test_symbols_have_the_type_of_those_of_cuda_cores_own_program(folder):
    own = core.Program(SOURCE, "c++", options(folder)).compile("cubin", ["scale<int>"])

    assert compiled(folder, ("scale<int>",)).symbol_mapping == own.symbol_mapping

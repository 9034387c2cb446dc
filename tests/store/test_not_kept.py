"""A build that cannot be cached says why: in its notes, in the log, in `cache.why` and, if it took long, in a warning."""

import warnings
from pathlib import Path

import pytest

import rtcompile
from rtcompile.build import miss
from tests.processes import forget_process

pytestmark = pytest.mark.needs_compiler

KERNEL = "__global__ void k(int* x) { *x = VALUE; }"
CLOCK = "__TIME__ is different in every build"


@pytest.fixture
def clock(tmp_path: Path) -> dict[str, object]:
    """The arguments of a build whose header contains the time of the build."""
    (tmp_path / "clock.h").write_text("#define VALUE (__TIME__[0])\n")
    source = f"#include <clock.h>\n{KERNEL}"
    return {"source": source, "options": (f"-I{tmp_path}",), "arch": "sm_80"}


def test_a_note_the_log_and_another_process_say_why_a_build_is_not_kept(clock, monkeypatch, capfd):
    monkeypatch.setenv("RTCOMPILE_LOG", "info")
    assert rtcompile.compile(**clock).build.notes == (f"not cached: {CLOCK}",)
    assert f"not cached: {CLOCK}" in capfd.readouterr().err
    forget_process()

    given = {"request": clock.pop("source"), **clock}
    assert rtcompile.cache.why(**given) == f"never cached: {CLOCK}"


def test_a_long_build_that_is_not_kept_warns_once(clock, monkeypatch):
    monkeypatch.setattr(miss, "_NOTICED", 0.0)
    miss._warned.clear()

    with pytest.warns(rtcompile.RtcompileWarning, match="compiled again by every process"):
        rtcompile.compile(**clock)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rtcompile.compile(**clock)


def test_a_build_is_kept_once_its_reason_is_gone(clock, tmp_path):
    rtcompile.compile(**clock)
    (tmp_path / "clock.h").write_text("#define VALUE 1\n")
    assert rtcompile.compile(**clock).build.notes == ()
    forget_process()

    assert rtcompile.compile(**clock).build.hit == "disk"


@pytest.mark.needs_nvcc
def test_headers_of_any_number_and_length_are_kept_with_nvcc(tmp_path):
    for number in range(500):
        filler = "// a comment of a long header\n" * 400
        (tmp_path / f"h{number}.h").write_text(f"{filler}#define V{number} 1\n")
    includes = "".join(f"#include <h{number}.h>\n" for number in range(500))
    source = f"{includes}__global__ void k(int* x) {{ *x = V499; }}"
    arguments = {"options": (f"-I{tmp_path}",), "arch": "sm_80", "backend": "nvcc"}
    assert rtcompile.compile(source, **arguments).build.notes == ()
    forget_process()

    assert rtcompile.compile(source, **arguments).build.hit == "disk"


def test_a_cleared_cache_has_no_code_in_memory_either():
    code = {"source": KERNEL, "options": ("-DVALUE=1",), "arch": "sm_80"}
    rtcompile.compile(**code)
    rtcompile.cache.clear()
    assert rtcompile.compile(**code).build.hit is None

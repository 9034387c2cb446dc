"""Tests of profiles: their times add up, and they fail like builds."""

import io
from pathlib import Path
from typing import Any

import pytest

from rtcompile import CompileError, CompileRequest, InvalidRequest
from rtcompile.cli import main
from rtcompile.compilers import nvrtc
from rtcompile.extras.devtools import Profile
from rtcompile.request.units import CompileFailure
from rtcompile.settings import Settings

pytestmark = pytest.mark.needs_compiler


HEADER = """#pragma once
template <int N> struct S { static const int v = S<N - 1>::v + 1; };
template <> struct S<0> { static const int v = 0; };
static_assert(S<190>::v == 190, "");
"""
SOURCE = """
#include "sum.cuh"
template <class T> __global__ void k(T* out) { *out = S<190>::v; }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sum.cuh").write_text(HEADER)
    (tmp_path / "k.cu").write_text(SOURCE)
    return tmp_path


def _profile(folder: Path, source: str = SOURCE, **more: object) -> Profile:
    given: dict[str, object] = {"options": (f"-I{folder}",), "name_expressions": ["k<float>"]}
    request = CompileRequest(source, arch="sm_80", **{**given, **more})
    return Profile.of(request, Settings.from_environ())


def test_the_phases_add_up_and_templates_are_counted_by_name(folder):
    found = _profile(folder)
    assert sum(cost for _, cost in found.phases) == pytest.approx(found.milliseconds, rel=0.05)
    front_end = dict(found.phases)["front end"]
    assert 0 < sum(template.own for template in found.templates) < front_end
    template = next(each for each in found.templates if each.name == "S")
    assert (template.instances >= 190, template.own > 0) == (True, True)
    assert "S<" in template.slowest


def test_without_the_trace_the_phases_remain(folder, monkeypatch):
    found = _profile(folder)
    observe = nvrtc.observe

    def crashing(*given: Any, **more: Any) -> Any:
        died = CompileFailure("crash", "killed", (), "nvrtc")
        return died if more.get("traced") else observe(*given, **more)

    monkeypatch.setattr(nvrtc, "observe", crashing)
    untraced = _profile(folder)
    assert untraced.templates == ()
    assert {name for name, _ in untraced.phases} == {name for name, _ in found.phases}


def test_in_a_narrow_terminal_names_keep_their_ends(folder):
    long = "a_template_with_a_long_name_and_an_end"
    (folder / "sum.cuh").write_text(
        HEADER.replace("S<", f"{long}<").replace("struct S ", f"struct {long} ")
    )
    text = _profile(folder, SOURCE.replace("S<", f"{long}<")).text(width=60)
    assert max(map(len, text.splitlines()[1:])) <= 60
    assert any("…" in line and line.endswith("_and_an_end") for line in text.splitlines())


def test_a_source_that_does_not_compile_shows_its_error(folder):
    source = "__global__ void k() { undeclared_name(); }"
    with pytest.raises(CompileError, match="undeclared_name"):
        _profile(folder, source, name_expressions=[])


def test_a_source_that_needs_an_added_flag_has_a_profile(folder):
    source = "__global__ void k(__int128 x, __int128* out) { *out = x; }"
    assert dict(_profile(folder, source, name_expressions=[]).phases)["front end"] > 0


@pytest.mark.needs_nvcc
def test_a_build_by_nvcc_has_no_profile_and_the_error_gives_a_way(folder):
    with pytest.raises(InvalidRequest, match=r"built by NVCC.*nvcc --fdevice-time-trace"):
        _profile(folder, backend="nvcc")


def test_the_command_prints_all_figures(folder, run_json):
    arguments = ["profile", str(folder / "k.cu"), "--arch", "sm_80", "-n", "k<int>"]
    code, printed = run_json(*arguments)
    (fields,) = printed["profiles"]
    assert code == 0
    assert fields["phases"]["front end"] > 0
    assert fields["templates"][0]["own"] > 0


def test_a_module_has_a_profile(folder):
    rtcompile = pytest.importorskip("rtcompile.frontends.raw_module", exc_type=ImportError)
    options = (f"-I{folder}",)
    module = rtcompile.RawModule(
        code=SOURCE, options=options, name_expressions=["k<int>"], arch="sm_80"
    )
    assert module.profile().templates
    with pytest.raises(InvalidRequest, match="compiled already"):
        rtcompile.RawModule(path="x.cubin").profile()


def test_without_jit_nothing_is_profiled(monkeypatch, capsys):
    monkeypatch.setenv("RTCOMPILE_JIT", "0")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"__global__ void k() {}")))
    assert main(["profile", "-", "--arch", "sm_80"]) == 1
    assert "RTCOMPILE_JIT=0 forbids" in capsys.readouterr().err

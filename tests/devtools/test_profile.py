"""Tests of profiles: they name slow headers, their times add up, and they fail like builds."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from rtcompile import CompileError, CompileRequest, InvalidRequest
from rtcompile.build.measured import measure
from rtcompile.cli import main
from rtcompile.compilers import nvrtc
from rtcompile.extras.devtools.profile import HeaderCost, Profile, frames_of_events
from rtcompile.request.units import CompileFailure
from rtcompile.settings import Settings
from rtcompile.workers.nvrtc import ENDS

pytestmark = pytest.mark.needs_compiler


def slow_header(classes: int) -> str:
    return "#pragma once\n" + "".join(
        f"template <int N> struct S{i} {{ static const int v = S{i}<N - 1>::v + 1; }};\n"
        f"template <> struct S{i}<0> {{ static const int v = 0; }};\n"
        f'static_assert(S{i}<190>::v == 190, "");\n'
        for i in range(classes)
    )


SLOW = slow_header(6)
SOURCE = """
#include "outer.cuh"
#include "quick.cuh"
template <class T> __global__ void k(T* out) { *out = quick() + sum; }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Headers: outer includes slow and then has its own text, quick includes nothing."""
    (tmp_path / "slow.cuh").write_text(SLOW)
    (tmp_path / "outer.cuh").write_text(
        '#include "slow.cuh"\nconstexpr int sum = S0<190>::v;\n' + "// text\n" * 500
    )
    (tmp_path / "quick.cuh").write_text("inline __device__ int quick() { return 1; }\n")
    (tmp_path / "k.cu").write_text(SOURCE + "// a long source\n" * 500)
    return tmp_path


@pytest.fixture
def quickly(folder: Path) -> None:
    """Make the slow header six times faster, for tests that compare no times."""
    (folder / "slow.cuh").write_text(slow_header(1))


def _profile(folder: Path, source: str = SOURCE, **more: object) -> Profile:
    given: dict[str, object] = {"options": (f"-I{folder}",), "name_expressions": ["k<float>"]}
    request = CompileRequest(source, arch="sm_80", **{**given, **more})
    return Profile.of(measure(request, Settings.from_environ()))


def _least(folder: Path, source: str = SOURCE) -> dict[str, HeaderCost]:
    """Return each header's minimum of three profiles, since other processes may disturb any one."""
    found: dict[str, HeaderCost] = {}
    for header in (header for _ in range(3) for header in _profile(folder, source).headers):
        name = Path(header.path).name
        so_far = found.get(name, header)
        found[name] = header._replace(
            own=min(header.own, so_far.own), total=min(header.total, so_far.total)
        )
    return found


def test_a_slow_header_is_named_first_and_takes_nothing_where_it_is_not_read_again(folder):
    again = folder / "again.cuh"
    again.write_text('#include "slow.cuh"\n' + slow_header(2).replace("S", "R"))  # its own is slow
    (folder / "once.cuh").write_text("#pragma once\n")
    source = '#include "once.cuh"\n#include "again.cuh"\n#include "once.cuh"\n' + SOURCE
    (folder / "slow.cuh").write_text('#pragma once\n#include "once.cuh"\n' + SLOW)
    headers = _least(folder, source)
    own = {header.own: header for header in headers.values() if header.path.startswith(str(folder))}
    assert own[max(own)].name == "slow.cuh  (user0)"
    assert headers["outer.cuh"].own < headers["slow.cuh"].own / 2  # it only includes it
    assert headers["once.cuh"].times == 3
    assert headers["once.cuh"].total < headers["slow.cuh"].own / 2
    assert headers["slow.cuh"].own > headers["again.cuh"].total / 10
    assert headers["again.cuh"].own > headers["again.cuh"].total / 10


def test_the_sums_are_the_whole(folder):
    found = _profile(folder)
    assert [header.own for header in found.headers] == sorted(
        (header.own for header in found.headers), reverse=True
    )
    headers = {Path(header.path).name: header for header in found.headers}
    assert headers["outer.cuh"].total >= headers["slow.cuh"].total
    assert sum(cost for _, cost in found.phases) == pytest.approx(found.milliseconds, rel=0.05)
    front_end = dict(found.phases)["front end"]
    own = sum(header.own for header in found.headers)
    assert own + found.source + found.finish == pytest.approx(front_end, rel=0.05)
    assert found.source >= 0


@pytest.mark.usefixtures("quickly")
def test_work_after_the_last_line_is_not_attributed_to_the_source(folder):
    (folder / "quick.cuh").write_text(
        "inline __device__ int quick() { return 1; }\n"
        + "".join(f"inline __device__ int f{n}(int x) {{ return x + {n}; }}\n" for n in range(2000))
    )
    found = _profile(folder)
    (end,) = [e for e in found.events if e["name"] == "Wrapping up translation unit"]
    before = found.source + found.finish
    assert found.finish == pytest.approx(min(end["dur"] / 1e3, before), abs=0.1)
    assert found.finish > 0
    assert f"after the last line: {found.finish:.1f} ms" in str(found)


@pytest.mark.usefixtures("quickly")
def test_the_templates_are_counted_by_name(folder):
    templates = {template.name: template for template in _profile(folder).templates}
    assert templates["S0"].instances >= 190
    assert templates["S0"].own > 0
    assert "S0<" in templates["S0"].slowest


@pytest.mark.usefixtures("quickly")
def test_the_times_exclude_the_trace_itself(folder, monkeypatch):
    found = _profile(folder)
    (front_end,) = [event for event in found.events if event["name"] == "CUDA C++ Front-End"]
    assert front_end["dur"] / 1e3 == pytest.approx(dict(found.phases)["front end"], rel=0.01)
    observe = nvrtc.observe

    def crashing(function: str, *given: Any, **more: Any) -> Any:
        died = CompileFailure("crash", "killed", (), "nvrtc"), 0.0
        return died if function == "time_unit" else observe(function, *given, **more)

    monkeypatch.setattr(nvrtc, "observe", crashing)
    untraced = _profile(folder)
    assert untraced.templates == ()
    assert {name for name, _ in untraced.phases} == {name for name, _ in found.phases}
    assert untraced.headers


@pytest.mark.usefixtures("quickly")
def test_in_a_narrow_terminal_names_keep_their_ends(folder):
    deep = folder / "a_folder_with_a_long_name" / "and_another_one_in_it"
    deep.mkdir(parents=True)
    (deep / "slow.cuh").write_text(slow_header(1))
    (folder / "outer.cuh").write_text(f'#include "{deep.relative_to(folder)}/slow.cuh"\n')
    text = _profile(folder, SOURCE.replace("+ sum", "")).text(width=60)
    lines = text[: text.index("own ms", text.index("own ms") + 1)].splitlines()
    assert max(map(len, lines)) <= 60
    assert any("…" in line and line.endswith("slow.cuh  (user0)") for line in lines)


def test_without_headers_all_time_is_the_sources(folder):
    found = _profile(folder, 'extern "C" __global__ void f() {}', name_expressions=[])
    assert [header.path for header in found.headers if header.path.startswith("/")] == []


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


@pytest.mark.usefixtures("quickly")
def test_headers_that_cannot_be_marked_are_reported_as_not_timed(folder):
    (folder / "quick.cuh").write_text("inline __device__ int quick() { return 1; }\n/* \\\n*/ //\\")
    found = _profile(folder)
    assert found.headers or found.note


@pytest.mark.usefixtures("quickly")
def test_the_trace_contains_the_measured_times(folder, tmp_path, capsys):
    trace = tmp_path / "p.json"
    arguments = ["profile", str(folder / "k.cu"), "--arch", "sm_80", "-n", "k<int>", "--json"]
    assert main([*arguments, "--trace", str(trace)]) == 0
    (fields,) = json.loads(capsys.readouterr().out)["profiles"]
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"build", "front end"} <= {event["name"] for event in events}
    slow, outer = (
        next(e for e in events if e["name"].endswith(name)) for name in ("slow.cuh", "outer.cuh")
    )
    rounding = 0.2  # microseconds: a time and a duration are rounded to 0.1 each
    assert outer["ts"] <= slow["ts"] + rounding
    assert slow["ts"] + slow["dur"] <= outer["ts"] + outer["dur"] + rounding
    assert fields["headers"][0]["own"] > 0


@pytest.mark.parametrize(
    "arguments", [["--trace", "p.txt"], ["--arch", "sm_80,sm_90", "--trace", "p.json"]]
)
def test_files_that_cannot_be_written_are_rejected_before_anything_is_compiled(folder, arguments):
    assert main(["profile", str(folder / "k.cu"), "--arch", "sm_80", *arguments]) == 2


@pytest.mark.usefixtures("quickly")
def test_a_profile_is_saved_only_as_json(folder):
    found = _profile(folder)
    with pytest.raises(InvalidRequest, match=r"\.json, not"):
        found.save(folder / "p.html")
    with pytest.raises(InvalidRequest, match="cannot be written"):
        found.save(folder / "no" / "p.json")


@pytest.mark.usefixtures("quickly")
def test_header_texts_are_timed_like_files(folder):
    texts = {path.name: path.read_text() for path in folder.glob("*.cuh")}
    found = _profile(folder, options=(), headers=texts)
    assert found.note == ""
    names = {Path(header.path).name for header in found.headers}
    assert {"outer.cuh", "slow.cuh", "quick.cuh"} <= names
    assert found.headers[0].own > 0


@pytest.mark.usefixtures("quickly")
def test_a_module_has_a_profile(folder):
    rtcompile = pytest.importorskip("rtcompile.frontends.raw_module", exc_type=ImportError)
    options = (f"-I{folder}",)
    module = rtcompile.RawModule(
        code=SOURCE, options=options, name_expressions=["k<int>"], arch="sm_80"
    )
    assert module.profile().headers
    with pytest.raises(InvalidRequest, match="compiled already"):
        rtcompile.RawModule(path="x.cubin").profile()


def test_without_jit_nothing_is_profiled(monkeypatch, capsys):
    monkeypatch.setenv("RTCOMPILE_JIT", "0")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"__global__ void k() {}")))
    assert main(["profile", "-", "--arch", "sm_80"]) == 1
    assert "RTCOMPILE_JIT=0 forbids" in capsys.readouterr().err


def test_frames_close_where_their_marks_are():
    lines = [
        (1, b"/inc/a.h"),
        (2, b" /inc/b.h"),
        (5, b"  %s1" % ENDS),
        (6, b" %s0" % ENDS),
        (7, b"/inc/b.h"),  # not read again: it has no mark
        (9, b"__nv_nvrtc_builtin_header.h"),
    ]
    opened = [(float(at), line + b"\n") for at, line in lines]
    root = frames_of_events({"begin": 0.0, "end": 10.0, "opened": opened}, 10.0)
    a, again, x = root.included
    (b,) = a.included
    assert [(f.path[-3:], f.begin, f.end) for f in (a, b, again, x)] == [
        ("a.h", 1, 6),
        ("b.h", 2, 5),
        ("b.h", 7, 7),
        ("r.h", 9, 10),
    ]
    assert (root.own_seconds, a.own_seconds) == (4, 2)

"""Tests of `rtcompile watch`: it prints the changes of an edit, and continues after a failing one."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rtcompile.cli import inspecting, main
from rtcompile.cli.edited import Files

pytestmark = pytest.mark.needs_compiler

PLAIN = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] *= 2; }\n'
SHARED = """extern "C" __global__ void k(float* x) {
  __shared__ float s[256];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[255 - threadIdx.x];
}
"""


@pytest.fixture
def watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Watch a file through edits; each follows after the previous build was noticed."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "k.cu"

    def watch(first: str, *edits: Callable[[Path], object], more: tuple[str, ...] = ()) -> Any:
        file.write_text(first)
        waiting: Iterator[Callable[[Path], object]] = iter(edits)
        clock = SimpleNamespace(perf_counter=lambda: 0.0, strftime=lambda form: "12:00:00")
        monkeypatch.setattr(inspecting, "time", clock)
        edits_meanwhile = SimpleNamespace(
            time_ns=time.time_ns, sleep=lambda seconds: next(waiting)(file)
        )
        monkeypatch.setattr("rtcompile.cli.edited.time", edits_meanwhile)
        command = ["watch", "k.cu", "--arch", "sm_80", "--edits", str(len(edits)), *more]
        code = main(command)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return watch


def writing(text: str) -> Callable[[Path], object]:
    return lambda file: file.write_text(text)


def test_an_edit_shows_the_resources_before_and_after(watched):
    code, out, _ = watched(PLAIN, writing(SHARED))
    assert code == 0
    assert "0 -> 1024" in out
    assert out.count("built in") == 2


def test_an_edit_that_changes_no_figure_is_reported(watched):
    assert "no kernel takes more or less" in watched(PLAIN, writing("// a comment\n" + PLAIN))[1]


def test_added_and_removed_kernels_are_named(watched):
    _, out, _ = watched(PLAIN, writing(PLAIN.replace("k(", "other(")), writing("int x;"))
    assert "gone" in out
    assert "other" in out


def test_a_failing_edit_shows_its_error_and_watching_continues(watched):
    code, out, err = watched(PLAIN, writing("no C++"), writing(SHARED))
    assert code == 0
    assert "error" in err
    assert "0 -> 1024" in out
    assert watched(PLAIN, writing("no C++"))[0] == 1


@pytest.mark.parametrize(
    ("replace", "message"),
    [(lambda file: None, "No such file or directory"), (os.mkfifo, "not a regular file")],
    ids=["nothing", "a pipe"],
)
def test_a_file_that_vanishes_is_reported_until_it_reappears(watched, replace, message):
    def gone(file: Path) -> None:
        file.unlink()
        replace(file)

    def text(file: Path) -> None:
        file.unlink(missing_ok=True)
        file.write_text(SHARED)

    code, out, err = watched(PLAIN, gone, text)
    assert code == 0
    assert f"k.cu: {message}" in err
    assert "0 -> 1024" in out


def test_a_header_that_the_error_names_is_watched_too(watched, tmp_path):
    header = tmp_path / "h.h"
    header.write_text("#error not yet\n")
    code, out, err = watched('#include "h.h"\n' + PLAIN, lambda file: header.write_text("\n"))
    assert code == 0
    assert "not yet" in err
    assert "built in" in out


def test_with_json_each_build_is_one_line(watched):
    _, out, _ = watched(PLAIN, writing("no C++"), writing(SHARED), more=("--json",))
    first, failed, last = (json.loads(line) for line in out.splitlines())
    assert (first["ok"], failed["ok"], last["changed"]) == (True, False, ["k"])
    assert failed["error"]["kind"] == "CompileError"
    assert last["kernels"][0]["instructions"] > first["kernels"][0]["instructions"] > 4


@pytest.mark.parametrize("more", [("--edits", "-1"), ("--arch", "sm_80,sm_90")])
def test_arguments_that_cannot_be_watched_are_rejected(tmp_path, more):
    file = tmp_path / "k.cu"
    file.write_text(PLAIN)
    assert main(["watch", str(file), "--arch", "sm_80", *more]) == 2
    assert main(["watch", "-"]) == 2


# --- the files ---------------------------------------------------------------------------------------


def test_an_edit_during_the_build_counts_as_one_after_it(tmp_path):
    source, header, old = (tmp_path / name for name in ("k.cu", "new.h", "old.h"))
    for path in (source, old):
        path.write_text("")
    threading.Event().wait(0.02)  # the kernel's file clock ticks every few milliseconds
    files = Files(str(source))
    files.begin()
    files.note([str(source), str(old)])
    assert not files.changed()
    files.begin()
    source.write_text("edited")
    files.note([str(source)])
    assert files.changed()
    files.begin()
    header.write_text("made during the build")
    files.note([str(source), str(header)])
    assert files.changed()
    files.begin()
    files.note([str(source), str(header)])
    assert not files.changed()


def test_a_file_from_the_future_is_built_once(tmp_path):
    file = tmp_path / "k.cu"
    file.write_text("")
    os.utime(file, (4e9, 4e9))
    files = Files(str(file))
    files.begin()
    files.note([str(file)])
    assert not files.changed()

"""Trials of NVCC: no shell interprets an option, and every change of a build's inputs is noticed."""

import contextlib
import random
import re
from pathlib import Path

import pytest

import rtcompile
from tests.processes import forget_caches
from tests.trials.record import tally, times

pytestmark = pytest.mark.needs_nvcc

TEXTS = (
    ";{};", "`{}`", "$({})", "|{}", "&{}&", "\n{}\n", "${{x:-$({})}}", "<({})", "\\;{}", "'$({})'",
    '"$({})"', '";{};"', "\\\\$({})", "\\`{}`", '\\";{};\\"', "a,b;{}", "$(\n{}\n)", "x\\\n;{}", "\t{}",
)  # fmt: skip
OPTIONS = (
    "-D{}", "-DX={}", '-DX="{}"', "-U{}", "-I{}", "-I/x{}", "-isystem{}", "-idirafter={}", "-include={}",
    "-Xptxas={}", "-Xcompiler={}", "-Xcompiler=-I{}", "-Xcompiler=-DX={}", "-Xcudafe={}", "-Xcicc={}",
    "--frandom-seed={}", "-ccbin={}", "--diag-suppress={}", "--default-stream={}", "-x{}", "--{}=1",
)  # fmt: skip


def test_no_option_reaches_a_shell(tmp_path):
    chance = random.Random(7)
    planted = tmp_path / "planted"
    with tally("option with a shell's characters, given to nvcc") as trial:
        for _ in range(times(12, 1000)):
            given = [chance.choice(TEXTS).format(f"touch {planted}") for _ in range(2)]
            options = [
                chance.choice(OPTIONS).format(text) for text in given[: chance.choice((1, 1, 2))]
            ]
            how = {"arch": "sm_80", "options": options, "backend": "nvcc"}
            with trial():
                with contextlib.suppress(rtcompile.RtcompileError):
                    rtcompile.compile("__global__ void k() {}", **how)
                assert not planted.exists(), options
                planted.unlink(missing_ok=True)


class Project:
    """A source whose value depends on every file and variable, and the expected value."""

    HEADERS = ("beside", "first", "second", "last")

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.monkeypatch = monkeypatch
        self.numbers = {"wrapper": 1, "file": 1, "appended": 1, "second": 1}
        for name in self.HEADERS:
            (root / name).mkdir()
        monkeypatch.setenv("NVCC_CCBIN", str(root / "g++"))
        for name in self.numbers:
            self.write(name)

    def change(self, chance: random.Random) -> str:
        """Change one input, or restore it; return its name."""
        name = chance.choice(("wrapper", "file", "appended", *self.HEADERS))
        gone = name in self.here() and len(self.here()) > 1 and chance.random() < 0.5
        if gone:
            del self.numbers[name]
            (self.root / name / "value.h").unlink()
            return name
        self.numbers[name] = chance.randint(1, 4)
        self.write(name)
        return name

    def here(self) -> list[str]:
        return [name for name in self.HEADERS if name in self.numbers]

    def write(self, name: str) -> None:
        number = self.numbers[name]
        if name == "wrapper":
            script = f'#!/bin/sh\nexec /usr/bin/g++ -DBY_WRAPPER={number} "$@"\n'
            (self.root / "g++").write_text(script)
            (self.root / "g++").chmod(0o755)
        elif name == "file":
            (self.root / "options.txt").write_text(f"-DBY_FILE={number}\n")
        elif name == "appended":
            flags = f"-DBY_VARIABLE={number} -I {self.root}/second"
            self.monkeypatch.setenv("NVCC_APPEND_FLAGS", flags)
        else:
            (self.root / name / "value.h").write_text(f"#define VALUE {number}\n")

    def expected(self) -> int:
        n = self.numbers
        return n[self.here()[0]] + 10 * n["wrapper"] + 100 * n["file"] + 1000 * n["appended"]

    def built(self) -> tuple[int, str | None]:
        source = """#include "value.h"
        extern "C" __global__ void k(int* out) {
          *out = VALUE + 10 * BY_WRAPPER + 100 * BY_FILE + 1000 * BY_VARIABLE; }"""
        given = f"-I{self.root}/first", f"--options-file={self.root}/options.txt"
        code = rtcompile.compile(
            source,
            arch="sm_80",
            target="ptx",
            backend="nvcc",
            name=str(self.root / "beside/host.cu"),
            options=(*given, f"-idirafter={self.root}/last"),
        )
        (stored,) = re.findall(rb"mov\.[bu]32\s+%r\d+, (\d+);", code.code)
        return int(stored), code.build.hit


def test_every_change_of_what_an_nvcc_build_reads_is_noticed(tmp_path, monkeypatch):
    chance = random.Random(11)
    project = Project(tmp_path, monkeypatch)
    assert project.built() == (project.expected(), None)
    hits = 0
    kind = "change of a header, wrapper, options file or variable behind an NVCC build"
    with tally(kind) as trial:
        for _ in range(times(5, 120)):
            changed = project.change(chance)
            if chance.random() < 0.3:
                forget_caches()
            with trial():
                value, hit = project.built()
                hits += hit is not None
                assert value == project.expected(), changed
                assert project.built() == (value, "memory"), changed
    assert hits, "what was built before is not found again"

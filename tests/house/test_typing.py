"""What the README writes type-checks, for those who check their own code against ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AS_DOCUMENTED = """
import pathlib
from collections.abc import Iterator
import pytest

import rtcompile
from rtcompile import Arch, CompileRequest, ObjectCode, RawKernel, RawModule

names = ["scale<float>", "scale<double>"]
code: ObjectCode = rtcompile.compile(
    "", arch="sm_90a", options=["-O3"], name_expressions=names, trace=pathlib.Path("trace.json")
)
request = CompileRequest("", options=["-DN=1"], arch="sm_90", name_expressions=names, link=[code])
options: tuple[str, ...] = request.options
arch: Arch | None = request.arch
codes: list[ObjectCode] = rtcompile.compile_many(
    [request.replace(options=[f"-DN={n}"]) for n in range(4)], timeout=60, memory_limit="2G"
)
module = RawModule(code="", options=["-std=c++20"], name_expressions=names, arch=Arch(9, 0, "a"))
loaded = RawModule(path=pathlib.Path("k.cubin"))
kernel: RawKernel = RawKernel("", "k", options=["-O3"])
one: ObjectCode = rtcompile.compile("", options="-G", name_expressions=(n for n in names))
"""
WRONG = """
import rtcompile
rtcompile.compile("", options=[1])
rtcompile.compile("", arch=90)
rtcompile.CompileRequest(b"")
rtcompile.anything
"""


@pytest.mark.takes_seconds
def test_mypy_takes_what_is_documented_and_finds_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(AS_DOCUMENTED)
    (tmp_path / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary"),
            *("--follow-imports=silent", "--config-file", str(ROOT / "pyproject.toml")),
            *("--cache-dir", str(ROOT / ".mypy_cache"), "right.py", "wrong.py"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    said = [line.partition(": error: ")[0] for line in done.stdout.splitlines() if "error" in line]
    assert said == ["wrong.py:3", "wrong.py:4", "wrong.py:5", "wrong.py:6"], (
        done.stdout + done.stderr
    )

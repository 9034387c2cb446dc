"""The programs of the documentation pass a strict type checker."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ran

ROOT = Path(__file__).parents[2]
AS_DOCUMENTED = """
import pathlib
from collections.abc import Iterator
import pytest

import rtcompile
from rtcompile import Arch, CompileRequest, ObjectCode, RawKernel, RawModule

names = ["scale<float>", "scale<double>"]
code: ObjectCode = rtcompile.compile(
    "", arch="sm_90a", options=["-O3"], name_expressions=names
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
milliseconds: float = kernel.build.milliseconds + module.build.milliseconds
registers: list[int] = [one.registers for one in code.report().kernels]
entries: int = rtcompile.cache.info().entries
hints: list[str] = [found.hint for found in rtcompile.explain("CUDA_ERROR_UNKNOWN")]
fine: bool = all(check.status == "ok" for check in rtcompile.doctor(probes=False))
one: ObjectCode = rtcompile.compile("", options="-G", name_expressions=(n for n in names))
"""
WRONG = """
import rtcompile
rtcompile.compile("", options=[1])
rtcompile.compile("", arch=90)
rtcompile.CompileRequest(b"")
rtcompile.anything
rtcompile.compile("", backend="gcc")
rtcompile.compile("", target="exe")
rtcompile.RawModule(code="", fallback="maybe")
"""


def programs() -> dict[str, str]:
    """Return the Python of the documentation that imports rtcompile, by page and number."""
    found = {}
    for page in sorted((ROOT / "docs").glob("**/*.md")):
        blocks = re.findall(r"(?ms)^```python[^\n]*\n(.*?)^```", page.read_text())
        for number, block in enumerate(blocks):
            if re.search(r"^(?:import|from) rtcompile", block, re.MULTILINE):
                found[f"{page.stem.replace('-', '_')}_{number}.py"] = block
    return found


@pytest.mark.takes_seconds
def test_the_programs_of_the_documentation_are_typed_strictly(tmp_path):
    given = programs()
    for name, text in given.items():
        (tmp_path / name).write_text(text)
    done = mypy(tmp_path, *given)
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    # Some blocks continue the block above them.
    fragments = {line.partition(":")[0] for line in lines if line.endswith("[name-defined]")}
    lines = [line for line in lines if not line.endswith("[import-untyped]")]
    assert [line for line in lines if line.partition(":")[0] not in fragments] == []
    assert len(given) - len(fragments) >= 12


def mypy(folder: Path, *files: str) -> Any:
    words = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary"]
    words += ["--follow-imports=silent", "--config-file", ROOT / "pyproject.toml"]
    return ran(*words, "--cache-dir", ROOT / ".mypy_cache", *files, cwd=folder)


@pytest.mark.takes_seconds
def test_mypy_accepts_documented_uses_and_finds_wrong_ones(tmp_path):
    (tmp_path / "right.py").write_text(AS_DOCUMENTED)
    (tmp_path / "wrong.py").write_text(WRONG)
    done = mypy(tmp_path, "right.py", "wrong.py")
    errors = re.findall(r"(?m)^(.*?): error: ", done.stdout)
    assert errors == [f"wrong.py:{line}" for line in range(3, 10)], done.stdout + done.stderr

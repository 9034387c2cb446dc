"""A second process finds the builds of the first, with CUDA 13's wheels installed as by users and no other toolkit."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ten_builds import KINDS

ROOT = Path(__file__).parents[2]

# One build of each way to make one, found and kept in its own way.
QUICK = ["plain", "WMMA", "NVCC", "LTO link", "name expressions", "PTX", "headers="]
# The wheels of CUTLASS are not in the folder of CUDA 13's.
OTHERS = [name for name in KINDS if name not in (*QUICK, "CuTe")]

pytestmark = [pytest.mark.needs_compiler, pytest.mark.needs_nvcc]


def copied(source: Path, target: Path) -> None:
    """Copy a folder. A link would change the times of its files, which other tests' builds may be reading."""
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source, target, ignore=skipped, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, cuda13_prefix: Path
) -> Callable[[Sequence[str]], dict[str, Any]]:
    """Run `ten_builds` with arguments in a virtual environment of rtcompile and CUDA 13's wheels."""
    prefix = tmp_path_factory.mktemp("user") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    [site] = prefix.glob("lib/python*/site-packages")
    copied(cuda13_prefix, site)
    copied(ROOT / "rtcompile", site / "rtcompile")
    copied(ROOT / "include_shims", site / "rtcompile/include_shims")
    environ = {"PATH": f"{prefix}/bin:/usr/bin:/bin", "HOME": str(prefix)}
    environ["RTCOMPILE_CACHE_DIR"] = str(prefix / "cache")

    def run(arguments: Sequence[str], script: str = "benchmarks/ten_builds.py") -> dict[str, Any]:
        command = [prefix / "bin/python", "-W", "error", ROOT / script, "0", *arguments]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=prefix)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))

    return run


@pytest.mark.parametrize(
    "names",
    [pytest.param(QUICK, id="quick"), pytest.param(OTHERS, id="others", marks=pytest.mark.slow)],
)
def test_a_second_process_finds_each_kind_of_build_and_starts_no_compiler(run, names):
    first = run(names)
    second = run(["--again", *names])

    assert {name: of.get("text") for name, of in first["builds"].items() if "text" in of} == {}
    assert {name: of["hit"] for name, of in second.items()} == dict.fromkeys(names, "disk")
    assert {name: of["started"] for name, of in second.items()} == dict.fromkeys(names, "")


CHECKOUTS = """
import json, os, sys
import rtcompile

hits = {}
for given in ({"backend": "nvcc"}, {"backend": "nvrtc"}):
    for folder in ("one", "two"):
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/n.h", "w") as file:
            file.write("#define N 4\\n")
        code = rtcompile.compile(
            '#include "n.h"\\n__global__ void k(int* x) { *x = N; }',
            arch="sm_80",
            include_dirs=[os.path.abspath(folder)],
            **given,
        )
        hits.setdefault(given["backend"], []).append(code.build.hit)
print(json.dumps(hits))
"""


def test_a_second_checkout_finds_the_builds_of_the_first(run, tmp_path):
    script = tmp_path / "checkouts.py"
    script.write_text(CHECKOUTS)
    assert run([], str(script)) == {"nvcc": [None, "disk"], "nvrtc": [None, "disk"]}

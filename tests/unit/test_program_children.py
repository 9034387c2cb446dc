"""Python processes that a program under `rtcompile run` starts are part of the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rtcompile.everywhere import recording
from rtcompile.everywhere.started import sitecustomize
from tests.programs import STAND_IN, TEMPLATE, run

pytest.importorskip("cupy")

CHILD = f"{STAND_IN}\ndef work():\n    compile({TEMPLATE!r})\n"
BY_MULTIPROCESSING = """
import multiprocessing, child
if __name__ == "__main__":
    process = multiprocessing.get_context("{way}").Process(target=child.work)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""
BY_SUBPROCESS = """
import subprocess, sys
raise SystemExit(subprocess.run([sys.executable, {flags}, "child.py"]).returncode)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "child.py").write_text(f"{CHILD}\nif __name__ == '__main__':\n    work()\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started_by(text: str, folder: Path) -> str:
    (folder / "program.py").write_text(text)
    return str(folder / "program.py")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(BY_MULTIPROCESSING.format(way="spawn"), id="spawn"),
        pytest.param(BY_MULTIPROCESSING.format(way="forkserver"), id="forkserver"),
        pytest.param(BY_SUBPROCESS.format(flags="'-B'"), id="subprocess"),
    ],
)
def test_what_a_started_process_asks_for_is_recorded_counted_and_checked(folder, text):
    script, record = started_by(text, folder), folder / "kernels.json"

    missing = run("run", "--check", script, cache=folder / "empty")
    recorded = run("run", "--record", str(record), script, cache=folder / "cache")
    checked = run("run", "--check", "--record", str(record), script, cache=folder / "cache")

    assert missing.returncode == 1, missing.stderr
    assert "missing builds of the program: 1" in missing.stderr
    assert recorded.returncode == 0, recorded.stderr
    assert "1 kernel: 0 from the cache, 1 built" in recorded.stderr
    assert [build["source"] for build in recording.read(str(record)).builds] == [TEMPLATE]
    assert checked.returncode == 0, checked.stderr
    assert "1 kernel: 1 from the cache" in checked.stderr


def test_a_process_that_is_told_to_take_no_part_runs_as_it_would_have(folder):
    script = started_by(BY_SUBPROCESS.format(flags="'-E'"), folder)

    done = run("run", script, cache=folder / "cache")

    # It asks CuPy itself, which fails without a device in its own way or compiles.
    assert "0 kernels" in done.stderr


def test_a_cupy_that_is_not_known_there_fails_the_check(folder):
    (folder / "child.py").write_text(
        "import sys, types\n"
        "version = types.ModuleType('cupy._version'); version.__version__ = '15.0.0'\n"
        "sys.modules['cupy._version'] = version\nimport cupy.cuda.compiler\n"
    )
    script = started_by(BY_SUBPROCESS.format(flags="'-B'"), folder)

    done = run("run", "--check", "--json", script, cache=folder / "cache")

    told = json.loads(done.stderr.splitlines()[-1])
    assert done.returncode == 1
    assert "this is CuPy 15.0.0" in told["problems"][0]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The variables of a process that a run starts."""
    folder = os.path.dirname(sitecustomize.__file__)
    said = json.dumps({"requests": str(tmp_path / "requests"), "record": ""})
    return {**os.environ, "PYTHONPATH": folder, "RTCOMPILE_RUN": said}


def python(code: str, environ: dict[str, str], *flags: str) -> str:
    done = subprocess.run(
        [sys.executable, *flags, "-c", code],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def test_the_sitecustomize_of_the_environment_is_imported_all_the_same(tmp_path, environ):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("print('own')")
    environ["PYTHONPATH"] += f"{os.pathsep}{tmp_path}/own"

    told = python("import sys; print(sys.modules['sitecustomize'].__file__, *sys.path)", environ)

    own, told = told.split("\n", 1)
    assert (own, told.split()[0]) == ("own", f"{tmp_path}/own/sitecustomize.py")
    assert os.path.dirname(sitecustomize.__file__) not in told.split()


def test_a_process_without_cupy_imports_nothing_of_ours(environ):
    told = python("import sys; print([m for m in sys.modules if 'rtcompile' in m])", environ)

    assert told == "[]\n"


@pytest.mark.parametrize("said", ["", "no JSON", "[]", "{}"])
def test_a_process_that_is_no_part_of_a_run_counts_nothing(environ, said):
    environ["RTCOMPILE_RUN"] = said

    python(
        "import rtcompile.building.pipeline, rtcompile.watching.logs as l; assert not l.counters",
        environ,
    )


def test_a_python_that_has_no_rtcompile_runs_as_it_would_have(environ):
    code = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name == "rtcompile":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Without())
import cupy.cuda.compiler
print("imported")
"""
    assert python(code, environ) == "imported\n"

"""Tests of how a program and its children end under `rtcompile run`, which they are part of."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rtcompile.extras.record import recording
from rtcompile.extras.record.program import Tally
from rtcompile.extras.record.started import sitecustomize
from tests.jobs import eventually
from tests.processes import ran
from tests.programs import CODE, STAND_IN, TEMPLATE, other_cupy, program, run
from tests.tables import from_table

pytest.importorskip("cupy")

pytestmark = pytest.mark.needs_compiler

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
        pytest.param(BY_MULTIPROCESSING.format(way="spawn"), id="spawn", marks=pytest.mark.slow),
        pytest.param(
            BY_MULTIPROCESSING.format(way="forkserver"), id="forkserver", marks=pytest.mark.slow
        ),
        pytest.param(BY_SUBPROCESS.format(flags="'-B'"), id="subprocess"),
    ],
)
def test_requests_of_a_started_process_are_recorded_counted_and_checked(folder, text):
    script, record = started_by(text, folder), folder / "kernels.json"

    recorded = run("run", "--record", str(record), script, cache=folder / "cache")
    checked = run("run", "--check", script, cache=folder / "cache")

    assert recorded.returncode == 0, recorded.stderr
    assert "1 kernel: 0 from the cache, 1 built" in recorded.stderr
    assert [build.request.source for build in recording.read(str(record)).builds] == [TEMPLATE]
    assert checked.returncode == 0, checked.stderr
    assert "1 kernel: 1 from the cache" in checked.stderr


@pytest.mark.some(1)
@pytest.mark.parametrize("where", ["relative", "/dev/null/folder"])
def test_a_private_temporary_folder_loses_no_count(folder, where):
    (folder / "relative").mkdir()
    script = started_by(
        "import os, subprocess, sys\nos.mkdir('other')\nos.chdir('other')\n"
        "subprocess.run([sys.executable, '../child.py'], check=True)\n",
        folder,
    )

    done = run("run", script, cache=folder / "cache", TMPDIR=where)

    assert "1 kernel: 0 from the cache, 1 built" in done.stderr


@pytest.mark.some(1)
@pytest.mark.parametrize(
    "begin",
    [
        pytest.param("import atexit; atexit.register(start().wait)", id="at exit"),
        pytest.param("start()", id="a daemon"),
        pytest.param("os.execv(sys.executable, WORDS)", id="by exec"),
    ],
)
def test_requests_after_the_summary_leave_no_file(folder, begin):
    (folder / "late.py").write_text(
        f"{CHILD}\nimport os, time\n"
        "end = time.monotonic() + 30\n"
        "while os.getppid() == int(sys.argv[1]) and time.monotonic() < end: time.sleep(0.01)\n"
        "work()\nopen('done', 'w').close()\n".replace("sys.argv", "__import__('sys').argv")
    )
    script = started_by(
        "import os, subprocess, sys\n"
        f"waits_for = os.getpid() if {begin == 'start()'} else 0\n"
        "WORDS = [sys.executable, 'late.py', str(waits_for)]\n"
        "def start(): return subprocess.Popen(WORDS, start_new_session=True)\n" + begin,
        folder,
    )

    run("run", script, cache=folder / "cache", TMPDIR=str(folder))

    assert eventually((folder / "done").exists)
    assert not list(folder.glob("rtcompile-run-*"))


def test_the_file_of_a_run_that_was_killed_is_removed_a_day_later(folder):
    nobody = 2**22  # larger than any process id
    named = (f"{nobody}-0", f"{nobody}-1", f"{os.getpid()}-0")
    old, young, running = (folder / f"rtcompile-run-{each}" for each in named)
    for path in (old, young, running):
        path.write_text("")
    for path in (old, running):
        os.utime(path, (0, 0))
    script = started_by("", folder)

    run("run", script, cache=folder / "cache", TMPDIR=str(folder))

    assert [path.exists() for path in (old, young, running)] == [False, True, True]


def test_a_truncated_log_is_reported(tmp_path):
    log = tmp_path / "log"
    log.write_text('["missing", "half a li\n["missing", "whole"]\n')

    tally = Tally.read(str(log))

    assert tally.missing == ["whole"]
    assert "is full" in tally.problems[0]


def test_a_process_that_is_not_part_of_a_run_is_unaffected(folder):
    script = started_by(BY_SUBPROCESS.format(flags="'-E'"), folder)

    done = run("run", script, cache=folder / "cache")

    # It uses CuPy itself, which fails without a device, or compiles.
    assert "0 kernels" in done.stderr


def test_an_unknown_cupy_in_a_child_fails_the_check(folder):
    other_cupy(folder)
    (folder / "child.py").write_text("import cupy.cuda.compiler\n")
    script = started_by(BY_SUBPROCESS.format(flags="'-B'"), folder)

    done = run("run", "--check", "--json", script, cache=folder / "cache")

    printed = json.loads(done.stderr.splitlines()[-1])
    assert done.returncode == 1
    assert "CuPy 15.0.0 has no" in printed["problems"][0]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return the variables of a process that a run starts."""
    folder = os.path.dirname(sitecustomize.__file__)
    (tmp_path / "log").touch()
    run = {"log": str(tmp_path / "log"), "process": "0 0"}
    text = json.dumps(run)
    return {**os.environ, "PYTHONPATH": folder, "RTCOMPILE_RUN": text}


def python(code: str, environ: dict[str, str], *flags: str) -> str:
    done = ran(sys.executable, *flags, "-c", code, env=environ, check=True)
    assert done.stderr == ""
    return str(done.stdout)


def test_the_environments_own_sitecustomize_is_imported(tmp_path, environ):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("print('own')")
    environ["PYTHONPATH"] += f"{os.pathsep}{tmp_path}/own"

    printed = python("import sys; print(sys.modules['sitecustomize'].__file__, *sys.path)", environ)

    own, printed = printed.split("\n", 1)
    assert (own, printed.split()[0]) == ("own", f"{tmp_path}/own/sitecustomize.py")
    assert os.path.dirname(sitecustomize.__file__) not in printed.split()


@pytest.mark.some(2)
@pytest.mark.parametrize("text", [f"{os.pathsep}/x", f"/y{os.pathsep}{os.pathsep}/x", "/y", ""])
def test_the_search_path_of_a_started_process_is_unchanged(folder, text):
    script = started_by(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import sys; print(sys.path)'], check=True)\n",
        folder,
    )
    plain = ran(sys.executable, script, environ={"PYTHONPATH": text}, check=True)

    assert run("run", script, cache=folder, PYTHONPATH=text).stdout == plain.stdout


def test_a_process_without_cupy_imports_nothing_of_rtcompile(environ):
    code = "import sys; print([m for m in sys.modules if 'rtcompile' in m])"
    assert python(code, environ) == "[]\n"


@pytest.mark.some(3)
@pytest.mark.parametrize("text", ["", "no JSON", "[]", "{}", "[{}]", "[1]", "1"])
def test_a_process_outside_a_run_counts_nothing(environ, text):
    environ["RTCOMPILE_RUN"] = text

    python(
        "import rtcompile.build.pipeline, rtcompile.lookup.find as l; assert not l.listeners",
        environ,
    )


def test_a_python_without_rtcompile_is_unaffected(environ):
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


# --- how programs, their children and streams end ----------------------------------------------


@pytest.mark.some(3)
@from_table
def test_a_program_is_recorded_however_it_ends(tmp_path, ending, status):
    text = f"compile({CODE!r})\n{ending}\n"
    script = tmp_path / "program.py"
    script.write_text(STAND_IN + text)
    record = tmp_path / "kernels.json"

    done = run("run", "--record", str(record), str(script), cache=tmp_path / "cache")

    assert done.returncode == status, done.stderr
    others = TEMPLATE in text
    assert len(recording.read(str(record)).builds) == 1 + others
    if "mine" in ending:
        assert "rtcompile" not in done.stderr.partition("ValueError: mine")[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_program_leaves_its_requests_in_the_record(tmp_path, number):
    script = program(tmp_path, f"compile({CODE!r})\nimport os\nos.kill(os.getpid(), {number:d})")
    record = tmp_path / "kernels.json"

    done = run("run", "--record", str(record), script, cache=tmp_path / "cache")

    assert done.returncode == -number
    assert not record.exists()
    assert len(recording.read(f"{record}.part").builds) == 1


def test_no_child_that_is_terminated_or_reaches_the_end_writes_the_programs_summary(tmp_path):
    script = program(
        tmp_path,
        """
        import os, signal, time
        child = os.fork()
        if child:
            time.sleep(0.1)
            os.kill(child, signal.SIGTERM)
            print(os.waitpid(child, 0)[1], flush=True)
        else:
            time.sleep(20)
        if os.fork():
            os.wait()
        """,
    )

    done = run("run", "--record", str(tmp_path / "kernels.json"), script, cache=tmp_path)

    assert done.stdout == f"{int(signal.SIGTERM)}\n", done.stderr
    assert [done.stderr.count(text) for text in ("kernels: ", "builds recorded")] == [1, 1]


def test_requests_of_children_are_counted(tmp_path):
    script = program(
        tmp_path,
        f"""
        import os
        for source in ({CODE!r}, {TEMPLATE!r}):
            if not os.fork():
                try:
                    compile(source)
                except Exception:
                    pass
                os._exit(0)
            os.wait()
        """,
    )
    built = run("run", script, cache=tmp_path / "cache", TMPDIR=str(tmp_path))
    assert "2 kernels: 0 from the cache, 2 built" in built.stderr
    checked = run("run", "--check", script, cache=tmp_path / "other")
    assert (checked.returncode, checked.stderr.count("missing: ")) == (1, 2), checked.stderr
    assert not list(tmp_path.glob("rtcompile-run-*"))


@pytest.mark.some(2)
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-", ">/dev/full"])
def test_closed_streams_do_not_change_a_program(tmp_path, closed):
    script = tmp_path / "program.py"
    script.write_text("print('done'); raise SystemExit(3)")

    def outcome(*command: str) -> tuple[int, str]:
        words = " ".join(shlex.quote(word) for word in (sys.executable, *command, str(script)))
        done = ran("sh", "-c", f"{words} {closed}")
        return done.returncode, done.stdout

    assert outcome("-m", "rtcompile", "run") == outcome()


def test_signals_to_the_first_process_of_a_container_have_their_usual_effect(tmp_path):
    apart = ["unshare", "--pid", "--fork"]
    if shutil.which("unshare") is None or subprocess.call([*apart, "true"], stderr=-3):
        pytest.skip("needs to make a namespace of processes: root, and unshare of util-linux")
    script = tmp_path / "program.py"
    script.write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nprint(os.getpid(), 'goes on')\n"
        "raise KeyboardInterrupt\n"
    )
    record = str(tmp_path / "kernels.json")

    def outcome(*command: str) -> tuple[int, str]:
        words = [*apart, sys.executable, *command, str(script)]
        done = ran(*words)
        return done.returncode, done.stdout

    assert outcome("-m", "rtcompile", "run", "--record", record) == outcome()
    assert recording.read(record).builds == []

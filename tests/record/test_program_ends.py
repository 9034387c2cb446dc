"""Tests of how programs, their children and streams end under `rtcompile run`."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from rtcompile.extras.record import recording
from tests.processes import ran
from tests.programs import CODE, STAND_IN, TEMPLATE, program, run

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.needs_compiler


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("ending", "status"),
    [
        pytest.param("", 0, id="its end"),
        pytest.param("raise SystemExit(7)", 7, id="sys.exit"),
        pytest.param("raise ValueError('mine')", 1, id="an exception"),
        pytest.param(
            "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
            -signal.SIGTERM,
            id="a signal",
        ),
        pytest.param("raise KeyboardInterrupt", -signal.SIGINT, id="an interrupt"),
        pytest.param(
            f"import threading; threading.Thread(target=lambda: compile({TEMPLATE!r})).start()",
            0,
            id="in a thread",
        ),
        pytest.param(
            f"import os\nif not os.fork():\n    compile({TEMPLATE!r})\n    os._exit(0)\nos.wait()",
            0,
            id="a forked child",
        ),
    ],
)
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


def test_a_killed_program_leaves_its_requests_in_the_record(tmp_path):
    script = program(
        tmp_path, f"compile({CODE!r})\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    record = tmp_path / "kernels.json"

    run("run", "--record", str(record), script, cache=tmp_path / "cache")

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
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert outcome("-m", "rtcompile", "run", "--record", record) == outcome()
    assert recording.read(record).builds == []

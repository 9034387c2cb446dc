"""Runs CuPy's own tests with CuPy alone and with all kernels compiled by rtcompile, and compares outcomes.

``python -m benchmarks.cupy_tests .../cupy/tests [--seconds 480] [--processes 8] [--save]``. Needs CuPy's tests
of the installed version, and a GPU: without one most fail on both sides, and those that read a compiler's or a
cache's files are compared (``--only test_compiler jit_tests``). The exit status is 1 if an outcome differs.
Both sides run in parallel, each with this many processes and its own cache. A test that ends the CUDA context
ends its process; another process continues with the rest of its file. At the time limit all end, and only tests
that finished on both sides are compared.

This module is also the pytest plugin of those processes: it runs one part of a file's tests, and notes
each outcome as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

FILES = (
    "cupy_tests/core_tests/**/test_*.py",
    "cupyx_tests/jit_tests/**/test_*.py",
    "cupy_tests/cuda_tests/test_compiler*.py",
)
LEFT_OUT = "not texture and not Texture"  # They end the context, with CuPy alone too.
LINES_PER_PART = 150
MOST_RESTARTS = 20
NO_CONTEXT = (
    "IllegalAddress",
    "ILLEGAL_ADDRESS",
    "LaunchFailure",
    "LAUNCH_FAILED",
    "ContextIsDestroyed",
)
INI = """[pytest]
xfail_strict = true
markers =
    slow
    multi_gpu
    parallel_threads
    iterations
    thread_unsafe
filterwarnings =
    always
    error::FutureWarning
    ignore:.* is experimental:FutureWarning:cupy
    ignore::UserWarning
"""

# --- the plugin --------------------------------------------------------------------------------

_task: dict[str, Any] = {}


def pytest_configure() -> None:
    _task.update(json.loads(os.environ.get("CUPY_TESTS_PART", "{}")))


def pytest_collection_modifyitems(items: list[Any]) -> None:
    if _task:
        part, parts, done = _task["part"], _task["parts"], set(_task["done"])
        items[:] = [item for item in items[part::parts] if item.nodeid not in done]


def pytest_runtest_logstart(nodeid: str) -> None:
    _note({"id": nodeid, "began": True})


def pytest_runtest_logreport(report: Any) -> None:
    if not _task or (report.when != "call" and report.outcome == "passed"):
        return
    outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
    outcome = "error" if outcome == "failed" and report.when != "call" else outcome
    text = str(report.longrepr or "") if report.failed else ""
    _note({"id": report.nodeid, "outcome": outcome, "says": text[-600:]})
    if any(sign in text for sign in NO_CONTEXT):
        os._exit(3)  # every test after it would fail


def _note(line: dict[str, Any]) -> None:
    if _task:
        with open(_task["notes"], "a") as file:
            file.write(json.dumps(line) + "\n")


# --- the runner --------------------------------------------------------------------------------


class Side:
    """One of the two: its outcomes by test, and its parts that did not end in time."""

    def __init__(self, name: str, plugins: tuple[str, ...], folder: Path, deadline: float) -> None:
        self.name = name
        self.plugins = plugins
        self.folder = folder / name
        self.folder.mkdir()
        self.deadline = deadline
        self.outcomes: dict[str, tuple[str, str]] = {}
        self.not_ended: list[str] = []
        self.not_collected: list[str] = []

    def run(self, tests: Path, file: str, part: int, parts: int) -> None:
        notes = self.folder / f"{file.replace('/', '_')}-{part}.notes"
        done: list[str] = []
        for _ in range(MOST_RESTARTS):
            left = self.deadline - time.monotonic()
            status = self._pytest(tests, file, part, parts, done, notes, left) if left > 5 else None
            began = self._read(notes)
            if status is None:
                self.not_ended.append(f"{file} (part {part + 1} of {parts})")
                return
            if status in (0, 1, 5):  # 5: no tests in this part
                return
            if not began:
                self.not_collected.append(file)
                return
            for test in began:  # and the process ended in it
                self.outcomes.setdefault(test, ("crashed", f"exit status {status}"))
            done = began

    def _pytest(
        self,
        tests: Path,
        file: str,
        part: int,
        parts: int,
        done: list[str],
        notes: Path,
        seconds: float,
    ) -> int | None:
        task = {"part": part, "parts": parts, "done": done, "notes": str(notes)}
        command = [sys.executable, "-m", "pytest", file, "-q", "-k", LEFT_OUT]
        command += ["-m", "not slow and not multi_gpu", "-p", "no:cacheprovider"]
        command += ["-c", str(self.folder.parent / "pytest.ini"), "--rootdir", str(tests)]
        for plugin in ("benchmarks.cupy_tests", *self.plugins):
            command += ["-p", plugin]
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path[1:]]),
            "CUPY_TESTS_PART": json.dumps(task),
            "CUPY_CACHE_DIR": str(self.folder / "cupy"),
            "RTCOMPILE_CACHE_DIR": str(self.folder / "rtcompile"),
        }
        log = notes.with_suffix(".log")
        with log.open("a") as out:
            process = subprocess.Popen(command, cwd=tests, env=environ, stdout=out, stderr=out)
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                return None

    def _read(self, notes: Path) -> list[str]:
        """Take the outcomes; return the tests that began."""
        began = []
        lines = notes.read_text().splitlines() if notes.exists() else []
        for line in lines:
            note = json.loads(line)
            if "began" in note:
                began.append(note["id"])
            else:
                # A test that passed and failed in its teardown failed.
                self.outcomes[note["id"]] = (note["outcome"], note["says"])
        return began

    def summary(self) -> dict[str, Any]:
        return {
            "outcomes": dict(Counter(outcome for outcome, _ in self.outcomes.values())),
            "not ended in time": sorted(self.not_ended),
            "not collected": sorted(set(self.not_collected)),
        }


def parts_of(tests: Path, only: list[str], lines_each: int) -> list[tuple[str, int, int]]:
    """Return (file, part, number of parts), the longest files first."""
    files = sorted(
        ((path.read_text().count("\n"), path) for pattern in FILES for path in tests.glob(pattern)),
        reverse=True,
    )
    found = []
    for lines, path in files:
        count = 1 + lines // lines_each
        if any(name in str(path) for name in only):
            found += [(str(path.relative_to(tests)), part, count) for part in range(count)]
    return found


def compared(alone: Side, ours: Side) -> dict[str, Any]:
    both = alone.outcomes.keys() & ours.outcomes.keys()
    differing = {
        test: {
            "alone": alone.outcomes[test][0],
            "through rtcompile": ours.outcomes[test][0],
            "says": (ours.outcomes[test][1] or alone.outcomes[test][1]),
        }
        for test in sorted(both)
        if alone.outcomes[test][0] != ours.outcomes[test][0]
    }
    return {
        "ended on both sides": len(both),
        "same": len(both) - len(differing),
        "same by outcome": dict(
            Counter(alone.outcomes[test][0] for test in both if test not in differing)
        ),
        "differing": differing,
        "CuPy alone": alone.summary(),
        "through rtcompile": ours.summary(),
    }


def _copy_logs(side: Side) -> None:
    """Copy the ends of the logs to $OUT; they list files that were not collected, with the reasons."""
    if out := os.environ.get("OUT"):
        for log in side.folder.glob("*.log"):
            (Path(out) / f"{side.name}-{log.name}").write_text(log.read_text()[-4000:])


def main() -> None:
    from benchmarks import _machine

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", type=Path)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--processes", type=int, default=8, help="for each of the two sides")
    parser.add_argument(
        "--only", nargs="*", default=[""], help="files whose path has one of these in it"
    )
    parser.add_argument(
        "--lines", type=int, default=LINES_PER_PART, help="of a file's tests that a process runs"
    )
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    tests = given.tests.resolve()
    deadline = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text(INI)
        alone = Side("alone", (), folder, deadline)
        ours = Side("ours", ("tests.gpu.all_through_us",), folder, deadline)
        threads = []
        for side in (alone, ours):
            waiting: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()
            for part in parts_of(tests, given.only, given.lines):
                waiting.put(part)

            def work(
                side: Side = side, waiting: queue.SimpleQueue[tuple[str, int, int]] = waiting
            ) -> None:
                while True:
                    try:
                        file, part, parts = waiting.get_nowait()
                    except queue.Empty:
                        return
                    side.run(tests, file, part, parts)

            threads += [threading.Thread(target=work) for _ in range(given.processes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        kernels = {
            "kernels that CuPy compiled": len(list(folder.glob("alone/cupy/**/*.cubin"))),
            "kernels that rtcompile compiled": len(
                list(folder.glob("ours/rtcompile/objects/**/*"))
            ),
            "kernels that CuPy compiled through rtcompile": len(
                list(folder.glob("ours/cupy/**/*.cubin"))
            ),
        }
        _copy_logs(alone)
        _copy_logs(ours)
        result = compared(alone, ours)
        _machine.save("cupy_tests", {**result, **kernels})
        sys.exit(bool(result["differing"]))


if __name__ == "__main__":
    main()

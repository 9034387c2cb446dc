"""Proves that tests catch faults: each fault is put into a copy of the tree, where its test must fail.

``make mutations`` runs this. A fault is a text replacement in one file. The script fails if the text to
replace does not occur exactly once, if the test fails without the fault too, or if it passes with it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Mutation(NamedTuple):
    """A fault: in `file` the text `code` becomes `fault`, and `test` must fail."""

    what: str
    file: str
    code: str
    fault: str
    test: str


MUTATIONS = (
    Mutation(
        "the sweep of workers' folders ignores their locks",
        "rtcompile/workers/scratch.py",
        "            status, locked = os.fstat(descriptor), _lock(descriptor)\n",
        "            status, locked = os.fstat(descriptor), True\n",
        "tests/workers/test_scratch.py::test_what_is_locked_is_in_use",
    ),
    Mutation(
        "a source that NVRTC rejected is never remembered",
        "rtcompile/build/miss.py",
        "        self._remember(outcome, decision.reason)\n",
        "",
        "tests/build/test_fallback_end_to_end.py::test_the_failed_compiler_is_skipped_after_the_code_was_evicted",
    ),
    Mutation(
        "a failure is remembered only by this process",
        "rtcompile/store/negative.py",
        "        if not self._publish(KIND, key, data):\n",
        "        if True:\n",
        "tests/store/test_negative.py::test_a_failure_is_the_same_value_for_the_next_process",
    ),
    Mutation(
        "a failure with other files is used for these",
        "rtcompile/store/negative.py",
        "        if now is None:\n            return None\n",
        "        now = now or known.depends\n",
        "tests/store/test_negative.py::test_a_failure_is_valid_while_its_headers_are_unchanged_and_missing"
        "_ones_stay_missing",
    ),
    Mutation(
        "the file of a precompiled header is not compared with its record",
        "rtcompile/compilers/pch.py",
        "if now is None or record.image != image(self._path):",
        "if now is None:",
        "tests/compilers/test_pch_files.py::test_another_file_under_its_path_is_not_used",
    ),
    Mutation(
        "a worker is not what the kernel kills first when memory runs out",
        "rtcompile/workers/child.py",
        "        _prefer_for_oom()\n",
        "",
        "tests/workers/test_workers.py::test_a_worker_is_the_first_that_the_kernel_kills_for_memory",
    ),
    Mutation(
        "a slot is not returned when its job has ended",
        "rtcompile/workers/pool.py",
        "            self._slots.pop(taker, None)\n",
        "            pass\n",
        "tests/workers/test_workers.py::test_a_slot_is_returned_however_its_job_ended",
    ),
)


def run(test: str, tree: Path) -> subprocess.CompletedProcess[str]:
    """Run a test in a copy of the tree, on the package of that copy."""
    command = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test)
    environ = {**os.environ, "PYTHONPATH": str(tree)}
    return subprocess.run(command, cwd=tree, env=environ, capture_output=True, text=True)


def problem(mutation: Mutation, tree: Path) -> str:
    """Return why a mutation is not shown to be caught, ``""`` if it is."""
    path = tree / mutation.file
    text = path.read_text()
    if text.count(mutation.code) != 1:
        return f"{mutation.file} has {mutation.code!r} {text.count(mutation.code)} times, not once"
    whole = run(mutation.test, tree)
    if whole.returncode != 0:
        return f"{mutation.test} fails without the fault too:\n{whole.stdout[-2000:]}"
    path.write_text(text.replace(mutation.code, mutation.fault))
    mutated = run(mutation.test, tree)
    path.write_text(text)
    if mutated.returncode != 1:  # 0: it passed; others: it did not run
        return f"{mutation.test} did not notice it:\n{mutated.stdout[-2000:]}"
    return ""


def copied(tree: Path) -> Path:
    """Copy the files of the tree that tests need into a folder, and return it."""
    for name in ("rtcompile", "tests", "include_shims", "examples", "docs", "benchmarks"):
        shutil.copytree(ROOT / name, tree / name)
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tree)
    return tree


def main() -> int:
    """Try every mutation, print a line for each, and return 1 if one is not caught."""
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(Path(folder))
        for mutation in MUTATIONS:
            found = problem(mutation, tree)
            print("caught    " if not found else "NOT CAUGHT", mutation.what, flush=True)
            if found:
                print(found)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())

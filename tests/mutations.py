"""Proves that tests catch faults: each fault is put into a copy of the tree, where its test must fail.

``make mutations`` runs this. ``mutations.txt`` lists the faults; each is a text replacement in one file. The
script fails if the text to replace does not occur exactly once, if the test fails without the fault too, or if
it passes with it.
"""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.tables import sections

ROOT = Path(__file__).parent.parent


class Mutation(NamedTuple):
    """A fault: in `file` the text `code` becomes `fault`, and `test` must fail."""

    what: str
    file: str
    code: str
    fault: str
    test: str


MUTATIONS = [
    Mutation(what, *ast.literal_eval(f"({given})"))
    for what, given in sections(Path(__file__).with_suffix(".txt"))["mutations"][1]
]


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

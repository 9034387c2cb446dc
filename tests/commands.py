"""Helpers that run the command as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def rtcompile(*argv: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "rtcompile", *argv],
        input=stdin,
        capture_output=True,
        env=environ(),
    )


def environ() -> dict[str, str]:
    """Let a child find the package from any folder."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}

"""Temporary folders that only this user can enter, and that are removed when the process ends."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile


def folder(what_for: str) -> str:
    """Make a folder for this user alone, removed when this process ends; `what_for` is in its name."""
    path = tempfile.mkdtemp(prefix=f"rtcompile-{what_for}-")
    atexit.register(_remove, path, os.getpid())
    return path


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked child must not remove it
        shutil.rmtree(path, ignore_errors=True)

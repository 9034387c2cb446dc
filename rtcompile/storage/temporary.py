"""Temporary folders of this process: nobody else's, and gone when it ends."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

__all__ = ["folder"]


def folder(what_for: str) -> str:
    """Make a folder that only this user may enter, and that goes when this process ends.

    Parameters
    ----------
    what_for : str
        A word for its name, so that who finds one left by a killed process knows what it was.
    """
    path = tempfile.mkdtemp(prefix=f"rtcompile-{what_for}-")
    atexit.register(_remove, path, os.getpid())
    return path


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # a process that was forked from this one ends, too
        shutil.rmtree(path, ignore_errors=True)

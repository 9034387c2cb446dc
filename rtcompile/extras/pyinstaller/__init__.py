"""PyInstaller's hooks for rtcompile, which PyInstaller finds by the entry point ``pyinstaller40``."""

from __future__ import annotations

import os


def hook_folders() -> list[str]:
    """Return the folder that has `hook-rtcompile.py` and `rthooks.dat`."""
    return [os.path.dirname(os.path.abspath(__file__))]

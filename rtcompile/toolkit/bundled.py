"""Writes the headers that are inside NVRTC's own file, once for each build of NVRTC."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from packaging.version import Version

from rtcompile.cache import bundled
from rtcompile.core import environment
from rtcompile.storage import temporary
from rtcompile.toolkit import fingerprints
from rtcompile.workers import process

if TYPE_CHECKING:
    from rtcompile.settings import Settings
    from rtcompile.toolkit.places import Hit

_FIRST = Version("13.3")
_SECONDS = 120.0  # it takes 0.3
_SCRIPT = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "workers", "bundled_headers.py"
)


def unpack(nvrtc: Hit, settings: Settings) -> str | None:
    """Return the folder of NVRTC's own headers, unpacked if need be; None if it has none."""
    if Version(nvrtc.version) < _FIRST:
        return None
    name = f"{nvrtc.version}-{fingerprints.of_file(nvrtc.path)}"

    def write(folder: str) -> None:
        command = [process.interpreter(), "-I", "-S", _SCRIPT, nvrtc.path, folder]
        subprocess.run(
            command,
            env=environment.for_workers(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_SECONDS,
            check=True,
        )

    found = bundled.find(settings.cache_dir, name) if settings.cache_on_disk else None
    if found or not settings.jit:
        return found
    try:
        if settings.cache_on_disk:
            with suppress(OSError):  # read-only, full or another's: the process's own will do
                if found := bundled.publish(settings.cache_dir, name, write):
                    return found
        folder = temporary.folder("headers")
        write(folder)
    except (OSError, subprocess.SubprocessError):
        return None  # The error of a missing header names the packages that have it.
    return folder

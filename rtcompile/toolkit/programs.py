"""Asks programs and libraries what they are and contain."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from rtcompile.errors import limit_reached
from rtcompile.request.units import nvcc_environ, worker_environ
from rtcompile.settings import Settings, temporary_folder
from rtcompile.store import inventory
from rtcompile.toolkit import model
from rtcompile.toolkit.model import Library, Program, version_pair
from rtcompile.workers import process

if TYPE_CHECKING:
    from rtcompile.toolkit.roots import Hit

_QUERY = "rtcompile.workers.nvrtc"
_SECONDS = 30.0  # enough for a cold network file system; longer counts as a hang
_UNPACK_SECONDS = 120.0  # it takes 0.3
_FIRST_WITH_HEADERS = 13, 3


def describe_nvcc(path: str, version: str, environ: Mapping[str, str]) -> Program | None:
    """Return the nvcc at `path`; it is run if `version` is unknown. None if that fails."""
    if not version:
        said = _output([path, "--version"], nvcc_environ(environ))
        match = re.search(r"release \d+\.\d+, V(\d+\.\d+\.\d+)", said)
        if match is None:
            return None
        version = match[1]
    return Program(path, version, _behind_wrapper(path, environ))


def architectures(nvrtc: Library, environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the numbers of the architectures that an NVRTC lists; empty if that fails."""
    command = process.bare(f"{_QUERY}:architectures", *nvrtc.preload, nvrtc.path)
    listed = _output(command, worker_environ(environ)).split()
    return tuple(int(word) for word in listed) if all(map(str.isdecimal, listed)) else ()


def unpack(nvrtc: Hit, settings: Settings) -> str | None:
    """Return the folder of NVRTC's own headers, unpacked if need be; None if it has none."""
    if version_pair(nvrtc.version) < _FIRST_WITH_HEADERS:
        return None
    name = f"{nvrtc.version}-{model.of_file(nvrtc.path)}"

    def write(folder: str) -> None:
        command = process.bare(f"{_QUERY}:headers", nvrtc.path, folder)
        if _output(command, worker_environ(os.environ), _UNPACK_SECONDS).strip() != "written":
            raise OSError(f"{nvrtc.path} wrote no headers")

    found = inventory.find(settings.cache_dir, name) if settings.cache_on_disk else None
    if found or not settings.jit:
        return found
    with suppress(OSError):  # the error of a missing header names the packages that have it
        if settings.cache_on_disk:
            with suppress(OSError):  # read-only, full or another's: the process's own will do
                if found := inventory.publish(settings.cache_dir, name, write):
                    return found
        folder = temporary_folder("headers")
        write(folder)
        return folder
    return None


def _behind_wrapper(path: str, environ: Mapping[str, str]) -> str:
    """Return the binary that a wrapper script runs, which an upgrade changes and the script not."""
    # nvcc prints its own folder in a dry run; the format is not documented.
    with open(path, "rb") as file:
        if file.read(2) != b"#!":
            return path
    said = _output([path, "--dryrun", "-x", "cu", "-c", os.devnull], nvcc_environ(environ))
    match = re.search(r"^#\$ _HERE_=(.+)$", said, re.MULTILINE)
    binary = os.path.join(match[1], "nvcc") if match else path
    return binary if os.path.isfile(binary) else path


def _output(command: list[str], environ: dict[str, str], seconds: float = _SECONDS) -> str:
    """Return what a program writes; ``""`` if it cannot be run in time."""
    try:
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        if limit := limit_reached(getattr(error, "errno", None)):
            raise limit from None  # and not "nvcc not found"
        return ""
    return done.stdout.decode("utf-8", "replace")

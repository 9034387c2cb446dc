"""Finds executables on PATH, and asks programs and libraries what they are."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from rtcompile.core.environment import for_nvcc, for_workers
from rtcompile.errors import limit_reached
from rtcompile.toolkit.model import Library, Program
from rtcompile.workers import process

_ARCHITECTURES = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "workers", "architectures.py"
)
_SECONDS = 30.0  # enough for a cold network file system; longer counts as a hang


def which(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the absolute path of `name` on PATH, or None."""
    import shutil

    found = shutil.which(name, path=environ.get("PATH", ""))
    return os.path.abspath(found) if found else None


def describe_nvcc(path: str, version: str, environ: Mapping[str, str]) -> Program | None:
    """Return the nvcc at `path`; it is run if `version` is unknown. None if that fails."""
    if not version:
        said = _output([path, "--version"], for_nvcc(environ))
        match = re.search(r"release \d+\.\d+, V(\d+\.\d+\.\d+)", said)
        if match is None:
            return None
        version = match[1]
    return Program(path, version, _behind_wrapper(path, environ))


def architectures(nvrtc: Library, environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the numbers of the architectures that an NVRTC lists; empty if that fails."""
    command = [process.interpreter(), "-I", "-S", _ARCHITECTURES, *nvrtc.preload, nvrtc.path]
    said = _output(command, for_workers(environ)).split()
    return tuple(int(word) for word in said) if all(map(str.isdecimal, said)) else ()


def _behind_wrapper(path: str, environ: Mapping[str, str]) -> str:
    """Return the binary that a wrapper script runs, since the script survives an upgrade unchanged.

    nvcc prints its own folder in a dry run (``#$ _HERE_=``; the format is not documented). Where
    that folder has no nvcc, the script itself is returned.
    """
    with open(path, "rb") as file:
        if file.read(2) != b"#!":
            return path
    said = _output([path, "--dryrun", "-x", "cu", "-c", os.devnull], for_nvcc(environ))
    match = re.search(r"^#\$ _HERE_=(.+)$", said, re.MULTILINE)
    binary = os.path.join(match[1], "nvcc") if match else path
    return binary if os.path.isfile(binary) else path


def _output(command: list[str], environ: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        if limit := limit_reached(getattr(error, "errno", None)):
            raise limit from None  # and not "nvcc not found"
        return ""
    return done.stdout.decode("utf-8", "replace")

"""Programs in processes of their own, and this process reset to the state of a new one."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rtcompile import toolkit
from rtcompile.lookup import bundles, environment
from rtcompile.store import store


def ran(*words: object, environ: Mapping[str, str | Path] | None = None, **more: Any) -> Any:
    """Run a program, with this process's variables and further ones; return what it wrote."""
    usual = {"env": {**os.environ, **(environ or {})}, "capture_output": True, "text": True}
    return subprocess.run([*map(str, words)], **{**usual, **more})


def started(*words: object, environ: Mapping[str, str | Path] | None = None, **more: Any) -> Any:
    """Start a program, with this process's variables and further ones, and pipes to its input and from its output."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    given = {"env": {**os.environ, **(environ or {})}, **pipes, **more}
    return subprocess.Popen([*map(str, words)], **given)


def python(program: str, *arguments: object, **more: Any) -> Any:
    """Run a Python program, as `ran` does."""
    return ran(sys.executable, "-c", textwrap.dedent(program), *arguments, **more)


def command(*arguments: object, **more: Any) -> Any:
    """Run rtcompile's command, as `ran` does."""
    return ran(sys.executable, "-m", "rtcompile", *arguments, **more)


def forget_process() -> None:
    """Clear this process's memory, as in a new process."""
    forget_caches()
    forget_bundles()
    forget_toolkit()


def forget_caches() -> None:
    """Forget the open caches and their results."""
    store._stores.clear()
    environment.forget()


def forget_bundles() -> None:
    """Forget the bundles in use and their contents."""
    bundles._bundles.clear()


def forget_toolkit() -> None:
    """Forget the found toolkit; the cache still records it."""
    toolkit._in_this_process.clear()
    toolkit._decoded.clear()


def build_of(made: Any) -> Any:
    """Return the build of a RawModule or RawKernel; equal ones share it."""
    return made._build


def functions_of(kernel: Any) -> Any:
    """Return the driver's functions of a RawKernel, by device, which its launches use."""
    return kernel._functions

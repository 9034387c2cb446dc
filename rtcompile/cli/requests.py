"""Turns the command line's build options into the same requests that Python would make."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from rtcompile.core.request import CompileRequest
from rtcompile.errors import InvalidRequest
from rtcompile.watching.files import decoded


def requests(given: Namespace, file: str, *more_options: str) -> Iterator[CompileRequest]:
    """Yield one request for each requested architecture."""
    source, name = read_source(file)
    options = [
        *(f"-I{directory}" for directory in given.include_dirs),
        *(f"-D{macro}" for macro in given.macros),
        *([f"-std={given.std}"] if given.std else []),
        *given.compiler_options,
        *more_options,
    ]
    for arch in given.arch or [None]:
        yield CompileRequest(
            source=source,
            options=tuple(options),
            arch=arch,
            name_expressions=tuple(given.name_expression),
            name=name,
            backend=given.backend,
            target=given.target,
            link=tuple(given.link),
        )


def obey_jobs(given: Namespace) -> None:
    """Let ``--jobs`` limit how many compilers are at work at once."""
    if given.jobs is None:
        return
    if given.jobs < 1:
        raise InvalidRequest(f"--jobs {given.jobs}: expected a positive number")
    os.environ["RTCOMPILE_JOBS"] = str(given.jobs)


def overrides(given: Namespace) -> dict[str, Any]:
    """Return the limits that were given, for `Settings.override`."""
    return {"timeout": given.timeout, "memory_limit": given.memory_limit}


def read_source(file: str) -> tuple[str, str]:
    """Return a source and its absolute path, by which the compiler finds quoted includes."""
    if file == "-":
        data, name = sys.stdin.buffer.read(), "stdin.cu"
    else:
        with open(file, "rb") as opened:
            data = opened.read()
        name = os.path.abspath(file)
    return decoded(data, file), name

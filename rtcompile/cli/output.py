"""Turns the command's options into requests, and prints results as text or JSON, and errors on stderr."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import IO, Any

from rtcompile import errors, styling
from rtcompile.files.sealed import decoded
from rtcompile.request.request import CompileRequest
from rtcompile.request.values import absolute

# --- Results as text or as one JSON object, and errors ---------------------------------------------

NO_KERNELS = (
    "no kernel is in it: mark a function __global__; a template has only the instances that "
    "-n names, such as -n 'f<float>'"
)


def prepare_streams() -> None:
    """Let stdout and stderr escape characters that their encoding lacks; one that is closed becomes the null device."""
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def flush() -> OSError | None:
    """Flush stdout. If that fails, drop the remaining output, which Python would retry, and return why."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard(sys.stdout.fileno())
        sys.stdout.flush()
        return error
    return None


def discard(*descriptors: int) -> None:
    """Discard everything that is written to these descriptors from now on."""
    with open(os.devnull, "wb") as nothing:
        for descriptor in descriptors:
            os.dup2(nothing.fileno(), descriptor)


def terminal_width(stream: IO[str], otherwise: int) -> int:
    """Return the columns of the terminal at `stream`; `otherwise` if it is not a terminal."""
    return shutil.get_terminal_size((otherwise, 24)).columns if stream.isatty() else otherwise


def print_json(fields: dict[str, Any]) -> None:
    """Print one object, ``"ok"`` first."""
    json.dump({"ok": True, **fields}, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")


def print_result(given: Namespace, fields: dict[str, Any], text: str) -> None:
    """Print a result as one JSON object or as text."""
    if given.json:
        print_json(fields)
    else:
        print(text)


_LOCATION = re.compile(r"\S[^:\n]*(?::\d+|\(\d+\)):")


def failure(error: Exception, given: Namespace, file: str = "") -> None:
    """Print why the command ended, on stderr or as JSON on stdout."""
    if given.json:
        try:
            print_json({"ok": False, "error": error_fields(error)})
        except BrokenPipeError:
            raise
        except OSError:  # the disk is full
            flush()
        else:
            if flush() is None:
                return
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        prefix = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        text = f"{prefix}{error.strerror}"
    pieces: styling.Styled = (("", text),)
    if isinstance(error, errors.RtcompileError):
        from rtcompile.messages import rendering

        pieces = (("", rendering.spelled(text, "command")),)
        if isinstance(error, errors.CompileError):
            width = terminal_width(sys.stderr, 100)
            pieces = rendering.render(error, width=width, frontend="command")
    text = styling.as_text(pieces)
    if not _LOCATION.match(text):
        about = f"{file}: " if file and file not in text.partition("\n")[0] else ""
        sys.stderr.write(f"rtcompile {given.verb}: {about}")
    sys.stderr.write(f"{styling.painted(pieces, uses_color(sys.stderr))}\n")


def error_fields(error: Exception) -> dict[str, Any]:
    """Return an error as plain values."""
    fields: dict[str, Any] = {"kind": type(error).__name__, "message": str(error)}
    if isinstance(error, errors.CompileError):
        fields["log"] = error.log
        fields["cached"] = error.cached
        fields["diagnostics"] = [asdict(diagnostic) for diagnostic in error.diagnostics]
    if isinstance(error, errors.BatchError):
        fields["errors"] = {
            str(index): {"name": error.names.get(index, ""), **error_fields(failed)}
            for index, failed in error.errors.items()
        }
    return fields


def uses_color(stream: IO[str]) -> bool:
    """Return whether to use colours on `stream`."""
    return styling.takes_escapes(stream) and not os.environ.get("NO_COLOR")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; in a narrow terminal each row becomes several lines."""
    return styling.table(header, rows, width=terminal_width(sys.stdout, 0))


def human_size(size: float) -> str:
    """Return ``"1.5 MiB"``."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


# --- Requests from the command line's options ------------------------------------------------------


def requests(given: Namespace, file: str, *more_options: str) -> Iterator[CompileRequest]:
    """Yield the request for each architecture, as Python would make it."""
    if file == "-":
        data, name = sys.stdin.buffer.read(), "stdin.cu"
    else:
        with open(file, "rb") as opened:
            data = opened.read()
        name = absolute(file)  # by its path the compiler finds quoted includes
    source = decoded(data, file)
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


def overrides(given: Namespace) -> dict[str, Any]:
    """Return the settings of a build that were given, for `Settings.override`."""
    return {name: getattr(given, name) for name in ("timeout", "memory_limit", "recompile")}

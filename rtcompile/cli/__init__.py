"""The `rtcompile` command. Everything that a verb does is also available in Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module

from rtcompile import errors
from rtcompile.cli import arguments, output

FAILED, WRONG, MISSING, CRASHED, INTERRUPTED = 1, 2, 3, 4, 130

_CODES: tuple[tuple[type[Exception], int], ...] = (
    (errors.CompilerCrashed, CRASHED),
    (errors.ToolkitNotFound, MISSING),
    (errors.UnsupportedArch, MISSING),
    (errors.InvalidRequest, WRONG),
    (OSError, WRONG),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] != ["run"]:  # with `run`, stdout belongs to the program
        output.prepare_streams()
        if argv is None:  # the process is the command's own
            output.prepare_warnings()
    try:
        return _run(words)
    except BrokenPipeError:  # the reader is gone, as in `rtcompile … | head`
        output.discard(1, 2)  # otherwise Python would write to the closed pipe again at exit
        return 0


def _run(argv: list[str]) -> int:
    try:
        given = arguments.parse(argv)
    except SystemExit:  # argparse has printed help, a version or an error
        problem = output.flush()
        if problem is None:
            raise
        print(f"rtcompile: {problem.strerror}", file=sys.stderr)
        return WRONG
    try:
        module, _, function = given.function.partition(".")
        work = getattr(import_module(f"rtcompile.cli.{module}"), function)
        is_quiet = given.quiet and not given.json and getattr(given, "output", None) != "-"
        nothing = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # closed below
        with nothing, redirect_stdout(nothing if is_quiet else sys.stdout):
            code: int = work(given)
        problem = output.flush()
        if problem is not None:
            given.json = False  # stdout cannot be written
            raise problem
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except (errors.RtcompileError, OSError) as error:
        output.failure(error, given)
        code = exit_code(error)
        output.flush()
    return code


def exit_code(error: Exception) -> int:
    """Return the exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)

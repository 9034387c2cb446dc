"""Logs one line per build through `logging`, if the application or ``RTCOMPILE_LOG`` wants it."""

from __future__ import annotations

import sys

from rtcompile.errors import InvalidRequest, RtcompileError, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
    from typing import IO

    from rtcompile.core.request import CompileRequest, ObjectCode

    Listener = Callable[[CompileRequest, ObjectCode | RtcompileError], object]

__all__ = ["announce", "check_stream", "listeners", "report_failure"]

# Functions that are called with each request and its result, in the thread of the request.
listeners: list[Listener] = []


def check_stream(stream: IO[str] | None) -> None:
    """Raise `InvalidRequest`, before anything is built, if `stream` cannot be written to."""
    if stream is None:
        return
    try:
        stream.write("")
    except (AttributeError, TypeError, ValueError) as error:  # no file; a binary file; a closed one
        raise InvalidRequest(
            f"log_stream must be a file that is open for text, not {shown(stream)}: {error}"
        ) from None


def report_failure(request: CompileRequest, error: RtcompileError) -> None:
    """Call the listeners with the error of a build."""
    for listen in tuple(listeners):
        listen(request, error)


def announce(request: CompileRequest, code: ObjectCode, level: str | None) -> None:
    """Log a finished build at INFO to the logger ``rtcompile``; `level` also shows it on stderr.

    The record has the fields of the line as attributes too (``extra``): ``program``, ``arch``,
    ``backend``, ``hit``, ``why``, ``notes``, ``milliseconds``, ``code_bytes``.
    """
    if listeners:
        for listen in tuple(listeners):
            listen(request, code)
    # If `logging` is not imported, no handler can exist, and a hit should not import it.
    if level is None and "logging" not in sys.modules:
        return
    import logging

    logger = logging.getLogger("rtcompile")
    if level is not None:
        _show_on_stderr(logger, level)
    if not logger.isEnabledFor(logging.INFO):
        return
    build = code.build
    outcome = f"hit ({build.hit})" if build.hit else "built"
    why = f": {build.why}" if build.why else ""
    notes = "".join(f"; {note}" for note in build.notes)
    logger.info(
        "%s for %s by %s, %s in %.1f ms%s%s",
        request.name,
        code.arch,
        build.backend,
        outcome,
        build.milliseconds,
        why,
        notes,
        extra={
            "program": request.name,
            "arch": str(code.arch),
            "backend": build.backend,
            "hit": build.hit,
            "why": build.why,
            "notes": build.notes,
            "milliseconds": build.milliseconds,
            "code_bytes": len(code.code),
        },
    )


def _show_on_stderr(logger: logging.Logger, level: str) -> None:
    import logging

    number = logging.getLevelName(level.upper())
    if not isinstance(number, int):
        raise InvalidRequest(
            f"RTCOMPILE_LOG={shown(level)}: expected debug, info, warning or error"
        )
    if any(handler.get_name() == "rtcompile" for handler in logger.handlers):
        return
    handler = logging.StreamHandler()
    handler.set_name("rtcompile")
    handler.setFormatter(logging.Formatter("rtcompile: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(number)

"""Logs one line per build through `logging`, if the application or ``RTCOMPILE_LOG`` wants it."""

from __future__ import annotations

from rtcompile.errors import InvalidRequest, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from typing import IO

    from rtcompile.core.request import CompileRequest, ObjectCode


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


def announce(request: CompileRequest, code: ObjectCode, level: str | None) -> None:
    """Log a finished build at INFO to the logger ``rtcompile``; `level` also shows it on stderr.

    The record has the fields of the line as attributes too (``extra``): ``program``, ``arch``,
    ``backend``, ``hit``, ``why``, ``notes``, ``milliseconds``, ``code_bytes``.
    """
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

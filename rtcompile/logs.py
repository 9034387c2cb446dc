"""Logs one line per build: with `logging`, if the application uses it, and on stderr for ``RTCOMPILE_LOG``."""

from __future__ import annotations

import sys

from rtcompile import errors
from rtcompile.errors import InvalidRequest, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

    from rtcompile.request.object_code import ObjectCode
    from rtcompile.request.request import CompileRequest


def check_stream(stream: IO[str]) -> None:
    """Raise `InvalidRequest`, before anything is built, if `stream` cannot be written to."""
    try:
        stream.write("")
    except (AttributeError, TypeError, ValueError) as error:  # no file, a binary or a closed one
        raise InvalidRequest(
            f"log_stream must be a file that is open for text, not {shown(stream)}: {error}"
        ) from None


_has_warned = False


def warn_once(error: Exception) -> None:
    """Warn, once per process, that a log handler or a listener raised."""
    global _has_warned
    if not _has_warned:
        _has_warned = True
        text = f"{type(error).__name__}: {error}"
        errors.warn(f"a log handler or a listener raised, and builds continue without it: {text}")


def announce(request: CompileRequest, code: ObjectCode, level: str | None) -> None:
    """Log a finished build at INFO with its fields as attributes, and on stderr if `level` includes it."""
    logger = None
    if "logging" in sys.modules:
        import logging

        named = logging.getLogger("rtcompile")
        logger = named if named.isEnabledFor(logging.INFO) else None
    is_shown = level in ("debug", "info") and sys.stderr is not None
    if logger is None and not is_shown:
        return
    build = code.build
    outcome = f"hit ({build.hit})" if build.hit else "built"
    why = f": {build.why}" if build.why else ""
    notes = "".join(f"; {note}" for note in build.notes)
    line = (
        f"{request.name} for {code.arch} by {build.backend}, {outcome} in "
        f"{build.milliseconds:.1f} ms{why}{notes}"
    )
    if is_shown:
        sys.stderr.write(f"rtcompile: {line}\n")
    if logger is not None:
        names = ("backend", "hit", "why", "notes", "milliseconds")
        fields = {"program": request.name, "arch": str(code.arch), "code_bytes": len(code.code)}
        fields |= {name: getattr(build, name) for name in names}
        logger.info("%s", line, extra=fields)


def note(line: str) -> None:
    """Log a line about another event at INFO, and on stderr if ``RTCOMPILE_LOG`` shows builds."""
    import os

    if os.environ.get("RTCOMPILE_LOG") in ("debug", "info") and sys.stderr is not None:
        sys.stderr.write(f"rtcompile: {line}\n")
    if "logging" in sys.modules:
        import logging

        logging.getLogger("rtcompile").info("%s", line)

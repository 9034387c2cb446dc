"""Builds a cell, shows a line of progress if it takes long, and lets Ctrl-C end it."""

from __future__ import annotations

import time
from concurrent.futures import wait

from rtcompile.core.request import CompileRequest, ObjectCode
from rtcompile.many import submit_many
from rtcompile.watching.progress import changing_line

_QUIET_SECONDS = 0.5
_SECONDS_BETWEEN_CHANGES = 0.25


def build(request: CompileRequest) -> ObjectCode:
    """Return the build of `request`; an interrupt of the cell kills its compiler."""
    begin = time.monotonic()
    (future,) = submit_many([request])
    try:
        if wait([future], timeout=_QUIET_SECONDS).not_done:
            with changing_line() as show:
                while wait([future], timeout=_SECONDS_BETWEEN_CHANGES).not_done:
                    show(f"compiling: {time.monotonic() - begin:.0f} s")
    except BaseException:
        future.cancel()
        raise
    return future.result()

"""``RTCOMPILE_TRACE=file``: writes the time that builds took as a Chrome trace for Perfetto.

When tracing is off, a span costs one look-up of the environment. The file is valid JSON at any moment. Many
processes may write it at once, since all times come from the machine's monotonic clock.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rtcompile.errors import warn
from rtcompile.request.values import path as checked_path

_file: contextvars.ContextVar[str | None] = contextvars.ContextVar("rtcompile_trace", default=None)
_OPENING, _CLOSING = b"[\n", b"\n]\n"
_named: set[tuple[str, int, str]] = set()  # (file, process, row) whose names have been written


@contextmanager
def into(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Write this thread's or task's trace to `path` in the body of ``with``; None has no effect."""
    token = _file.set(checked_path("trace", path) if path is not None else _file.get())
    try:
        yield
    finally:
        _file.reset(token)


def span(name: str, **details: Any) -> AbstractContextManager[None]:
    """Trace the body under `name`; `details` are shown with it."""
    path = _path()
    return _span(path, name, details) if path else nullcontext()


def add(name: str, begin: float, end: float, *, row: str = "", **details: Any) -> None:
    """Trace a past event from `begin` to `end` (`time.monotonic`), in `row` or in this thread's."""
    path = _path()
    if path:
        _append(path, name, begin, end, row or threading.current_thread().name, details)


def _path() -> str | None:
    return _file.get() or os.environ.get("RTCOMPILE_TRACE") or None


@contextmanager
def _span(path: str, name: str, details: dict[str, Any]) -> Iterator[None]:
    begin = time.monotonic()
    try:
        yield
    finally:
        _append(path, name, begin, time.monotonic(), threading.current_thread().name, details)


def _append(
    path: str, name: str, begin: float, end: float, row: str, details: dict[str, Any]
) -> None:
    import json  # with warnings and fcntl this takes 6 ms, which only tracing needs

    process = os.getpid()
    events: list[dict[str, Any]] = []
    # A row's number is computed from its name, so threads need not agree on one.
    number = sum(byte << 8 * (i % 3) for i, byte in enumerate(row.encode(errors="replace")))
    if (path, process, row) not in _named:
        _named.add((path, process, row))
        name_it = {"name": "thread_name", "ph": "M", "pid": process, "tid": number}
        events.append({**name_it, "args": {"name": row}})
    microseconds = {"ts": round(begin * 1e6, 1), "dur": round((end - begin) * 1e6, 1)}
    where = {"pid": process, "tid": number}
    events.append(
        {"name": name, "cat": "rtcompile", "ph": "X", **microseconds, **where, "args": details}
    )
    try:
        _write(path, ",\n".join(json.dumps(event) for event in events).encode())
    except OSError as error:
        warn(f"RTCOMPILE_TRACE={path}: {error.strerror}")


def _write(path: str, events: bytes) -> None:
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        at = max(0, size - len(_CLOSING))
        if size and os.pread(descriptor, len(_CLOSING), at) != _CLOSING:
            raise OSError(0, "the file exists and is not an rtcompile trace")
        os.pwrite(descriptor, (b",\n" if size else _OPENING) + events + _CLOSING, at)
    finally:
        os.close(descriptor)

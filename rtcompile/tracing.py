"""``RTCOMPILE_TRACE=file``: writes what builds spend time on, in all processes, as a Chrome trace for Perfetto."""

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
    """Write this thread's or task's trace to `path` in the body of ``with``; None changes nothing."""
    token = _file.set(checked_path("trace", path) if path is not None else _file.get())
    try:
        yield
    finally:
        _file.reset(token)


def span(name: str, **details: Any) -> AbstractContextManager[None]:
    """Trace the body of ``with`` under `name`; `details` are shown with it."""
    return _traced(name, details) if _path() else nullcontext()


@contextmanager
def _traced(name: str, details: dict[str, Any]) -> Iterator[None]:
    begin = time.monotonic()
    try:
        yield
    finally:
        add(name, begin, time.monotonic(), **details)


def add(name: str, begin: float, end: float, *, row: str = "", **details: Any) -> None:
    """Trace a past event from `begin` to `end` (`time.monotonic`), in `row` or in this thread's."""
    path = _path()
    if not path:
        return
    import json  # with warnings and fcntl this takes 6 ms, which only tracing needs

    name_of_row = row or threading.current_thread().name
    events = [event(name, begin, end, name_of_row, details)]
    if (path, os.getpid(), name_of_row) not in _named:
        _named.add((path, os.getpid(), name_of_row))
        events.insert(0, named_row(name_of_row))
    try:
        _write(path, ",\n".join(map(json.dumps, events)).encode())
    except OSError as error:
        warn(f"RTCOMPILE_TRACE={path}: {error.strerror}")


def _path() -> str | None:
    return _file.get() or os.environ.get("RTCOMPILE_TRACE")


def named_row(name: str) -> dict[str, Any]:
    """Return the event that names a row."""
    return {"name": "thread_name", "ph": "M", **_where(name), "args": {"name": name}}


def event(name: str, begin: float, end: float, row: str, details: object) -> dict[str, Any]:
    """Return an event of a Chrome trace; `begin` and `end` are times of `time.monotonic`."""
    times = {"ts": round(begin * 1e6, 1), "dur": round((end - begin) * 1e6, 1)}
    return {"name": name, "cat": "rtcompile", "ph": "X", **times, **_where(row), "args": details}


def _where(row: str) -> dict[str, int]:
    # A row's number is computed from its name, so threads need not agree on one.
    number = sum(byte << 8 * (i % 3) for i, byte in enumerate(row.encode(errors="replace")))
    return {"pid": os.getpid(), "tid": number}


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

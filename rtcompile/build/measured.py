"""Measures compiles for a profile: phases, templates and headers, as the compiler reports them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rtcompile.compilers import nvrtc
from rtcompile.request import sources
from rtcompile.request.units import CompileFailure, Limits, TranslationUnit
from rtcompile.settings import Settings
from rtcompile.toolkit.model import Library
from rtcompile.workers.nvrtc import ENDS

_HEADER = "Processing Header File"
_FRONT_END = "CUDA C++ Front-End"


class Event(NamedTuple):
    """An event of the trace, in microseconds since the compile began."""

    name: str
    begin: float
    duration: float
    detail: str


class Measured(NamedTuple):
    """One compile: its phases in milliseconds, its spans in seconds, and the events of its trace.

    `begin` and `end` are those of the whole compile, on the clock of `spans`. `frames` are the headers, in
    seconds since the front end began; None if they are unknown, for the reason in `note`.
    """

    begin: float
    end: float
    phases: dict[str, float]
    spans: Sequence[tuple[str, float, float]]
    frames: Frame | None
    note: str
    events: tuple[Event, ...]


def measure(
    unit: TranslationUnit, library: Library, settings: Settings
) -> Measured | CompileFailure:
    """Measure a compile by NVRTC, without a precompiled header."""
    limits = Limits(settings.timeout, settings.memory_limit)
    begin = time.monotonic()
    reply, queued = nvrtc.observe("compile_unit", unit, library, limits)
    end = time.monotonic()
    if isinstance(reply, CompileFailure):
        return reply
    if reply["error"]:
        return CompileFailure(reply["error"], reply["log"], unit.flags, "nvrtc")
    whole, *parts = reply["spans"]
    inside = {name: (until - since) * 1e3 for name, since, until in parts}
    inside["rest of NVRTC"] = max(0.0, (whole[2] - whole[1]) * 1e3 - sum(inside.values()))
    waiting = queued * 1e3
    worker = max(0.0, (end - begin) * 1e3 - waiting - sum(inside.values()))
    front_end = inside.get("front end", 0.0) / 1e3
    frames, note = None, "this NVRTC names no headers"
    if reply["trace"] is not None:
        read = [os.fsencode(path) for path in sources.parse_trace(reply["trace"])]
        timed, _ = nvrtc.observe("time_headers", unit, library, limits, read=read)
        if isinstance(timed, CompileFailure):
            note = timed.log
        elif timed["error"]:
            log = timed["log"].strip()[:300]
            note = f"the headers do not compile with marks at their ends: {log}"
        else:
            frames, note = frames_of_events(timed, front_end), ""
    traced, _ = nvrtc.observe("time_unit", unit, library, limits)
    events = [] if isinstance(traced, CompileFailure) else [Event(*e) for e in traced["events"]]
    of_front_end = next((event.duration for event in events if event.name == _FRONT_END), 0.0)
    factor = front_end * 1e6 / of_front_end if of_front_end else 1.0
    return Measured(
        begin,
        end,
        {"waiting for a worker": waiting, "worker process": worker, **inside},
        reply["spans"],
        frames,
        note,
        tuple(
            event._replace(begin=event.begin * factor, duration=event.duration * factor)
            for event in events
            # NVRTC 13.0 ends each header only where the next one ends that includes nothing.
            if event.name != _HEADER
        ),
    )


# NVRTC reads the names to be lowered after the source, which ends the source's headers.
_AFTER_THE_SOURCE = b"__nv_name_map\n"


@dataclass(slots=True)
class Frame:
    """One inclusion of a header: when it was open, in seconds, and the headers that it included."""

    path: str
    begin: float
    end: float = 0.0
    included: list[Frame] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long it was open."""
        return self.end - self.begin

    @property
    def own_seconds(self) -> float:
        """How long it was open, without the headers that it includes."""
        return max(0.0, self.seconds - sum(frame.seconds for frame in self.included))

    def walk(self) -> Iterable[Frame]:
        """Yield this inclusion and all below it."""
        yield self
        for frame in self.included:
            yield from frame.walk()


def frames_of_events(reply: dict[str, Any], front_end: float) -> Frame:
    """Return the source's frame, of `front_end` seconds, from an include trace and the times of its lines."""
    root = Frame("", reply["begin"], reply["end"])
    stack = [root]
    rest = b""
    for seconds, piece in [*reply["opened"], (root.end, _AFTER_THE_SOURCE)]:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            path = line.lstrip(b" ")
            if not path.startswith((b"/", b"__nv_")):
                continue
            is_mark = path.startswith(ENDS)
            depth = len(line) - len(path) - is_mark  # a mark closes the header that it is in
            while len(stack) - 1 > depth:
                frame = stack.pop()
                # A header that closes without its mark was not read again (#pragma once).
                by_its_mark = is_mark and len(stack) - 1 == depth
                was_read = by_its_mark or frame.included or not frame.path.startswith("/")
                frame.end = seconds if was_read else frame.begin
            if not is_mark and not path.startswith(_AFTER_THE_SOURCE.strip()):
                stack[-1].included.append(Frame(path.decode("utf-8", "surrogateescape"), seconds))
                stack.append(stack[-1].included[-1])
    begin, factor = root.begin, front_end / (root.seconds or 1.0)
    for frame in root.walk():
        frame.begin, frame.end = (frame.begin - begin) * factor, (frame.end - begin) * factor
    return root

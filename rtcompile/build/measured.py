"""Measures compiles for a profile: phases, templates and headers, as the compiler reports them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rtcompile.build.plan import Plan
from rtcompile.compilers import nvcc, nvrtc
from rtcompile.files import headers
from rtcompile.request import command_lines, sources
from rtcompile.request.units import CompileFailure, Limits, TranslationUnit
from rtcompile.settings import Settings
from rtcompile.toolkit.model import Library
from rtcompile.workers.nvrtc import ENDS

_HEADER = "Processing Header File"
_FRONT_END = "CUDA C++ Front-End"
_FIRST_WITH_PCH = (12, 8)


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

    compiler: str
    begin: float
    end: float
    phases: dict[str, float]
    spans: Sequence[tuple[str, float, float]]
    frames: Frame | None
    note: str
    events: tuple[Event, ...]
    has_pch: bool


def by_nvrtc(plan: Plan, settings: Settings) -> Measured | CompileFailure:
    """Measure a compile by NVRTC, without a precompiled header."""
    library = plan.toolchain.require_nvrtc()
    target = "cubin" if plan.compiler_target == "object" else plan.compiler_target
    flags = command_lines.for_nvrtc(
        plan.options,
        plan.choice.arch,
        target,
        library.version_pair,
        [directory.path for directory in plan.search],
    )
    unit = TranslationUnit(
        plan.request.source,
        plan.key_inputs.name,
        flags,
        plan.request.name_expressions,
        target,
        plan.choice.arch,
        headers.paths(plan.request.headers),
    )
    limits = Limits(settings.timeout, settings.memory_limit)
    begin = time.monotonic()
    reply, queued = nvrtc.observe("compile_unit", unit, library, limits)
    end = time.monotonic()
    if isinstance(reply, CompileFailure):
        return reply
    if reply["error"]:
        return CompileFailure(reply["error"], reply["log"], flags, "nvrtc")
    whole, *parts = reply["spans"]
    phases = _phases(parts, whole[2] - whole[1], queued, end - begin, "rest of NVRTC")
    trace = sources.parse_trace(reply["trace"] or b"")
    measured = measure(unit, trace, library, limits) if trace else ""
    frames, note = (None, measured) if isinstance(measured, str) else (measured, "")
    if reply["trace"] is None:
        note = "this NVRTC names no headers"
    traced, _ = nvrtc.observe("time_unit", unit, library, limits)
    events = [] if isinstance(traced, CompileFailure) else [Event(*e) for e in traced["events"]]
    front_end = phases.get("front end", 0.0)
    _scale(frames, front_end / 1e3)
    return Measured(
        f"nvrtc {library.version}",
        begin,
        end,
        phases,
        reply["spans"],
        frames,
        note,
        # NVRTC 13.0 ends each header only where the next one ends that includes nothing.
        tuple(event for event in _scaled(events, front_end) if event.name != _HEADER),
        library.version_pair >= _FIRST_WITH_PCH,
    )


def by_nvcc(plan: Plan, unit: TranslationUnit, settings: Settings) -> Measured | CompileFailure:
    """Measure a compile by NVCC."""
    program = plan.toolchain.require_nvcc()
    limits = Limits(settings.timeout, settings.memory_limit)
    begin = time.monotonic()
    timed = nvcc.observe(unit, plan.toolchain, "--time", limits=limits)
    end = time.monotonic()
    if isinstance(timed, CompileFailure):
        return timed
    traced = nvcc.observe(unit, plan.toolchain, "--fdevice-time-trace", limits=limits)
    note = ""
    events: list[Event] = []
    if isinstance(traced, CompileFailure):
        note = f"nvcc {program.version} writes no time trace (13.0 does)"
    else:
        events = _events(traced.text)
    parts = []
    since = start = end - timed.seconds
    for name, milliseconds in _tools(timed.text.decode("utf-8", "replace"), events):
        parts.append((name, since, since + milliseconds / 1e3))
        since += milliseconds / 1e3
    phases = _phases(parts, timed.seconds, timed.queued, end - begin, "rest of nvcc")
    scaled = _scaled(events, phases.get("front end", 0.0))
    return Measured(
        f"nvcc {program.version}",
        begin,
        end,
        phases,
        [("compile", start, end), *parts],
        _nvcc_frames(scaled, phases.get("front end", 0.0)) if events else None,
        note,
        tuple(event for event in scaled if event.name != _HEADER),
        has_pch=False,
    )


def _phases(
    parts: Iterable[tuple[str, float, float]],
    compile_seconds: float,
    queued: float,
    seconds: float,
    rest: str,
) -> dict[str, float]:
    """Return milliseconds by phase, in order, with a phase for the remaining time."""
    inside: dict[str, float] = {}
    for name, since, until in parts:
        inside[name] = inside.get(name, 0.0) + (until - since) * 1e3
    inside[rest] = max(0.0, compile_seconds * 1e3 - sum(inside.values()))
    waiting = queued * 1e3
    worker = max(0.0, seconds * 1e3 - waiting - sum(inside.values()))
    return {"waiting for a worker": waiting, "worker process": worker, **inside}


def _scaled(events: Sequence[Event], front_end: float) -> list[Event]:
    """Return the events scaled to a front end of `front_end` milliseconds."""
    traced = next((event.duration for event in events if event.name == _FRONT_END), 0.0)
    factor = front_end * 1e3 / traced if traced else 1.0
    return [e._replace(begin=e.begin * factor, duration=e.duration * factor) for e in events]


def _scale(root: Frame | None, seconds: float) -> None:
    """Scale the frames to a front end that took `seconds`."""
    if root is None or not root.seconds:
        return
    begin, factor = root.begin, seconds / root.seconds
    for frame in root.walk():
        frame.begin, frame.end = (frame.begin - begin) * factor, (frame.end - begin) * factor


# --- Reading nvcc's tables and traces ---------------------------------------------------------------


def _events(text: bytes) -> list[Event]:
    try:
        found = json.loads(text)["traceEvents"]
        return [
            Event(e["name"], e["ts"], e["dur"], str((e.get("args") or {}).get("detail", ""))[:1000])
            for e in found
            if "ts" in e and "dur" in e
        ]
    except (ValueError, LookupError, TypeError, AttributeError):
        return []  # of another format


_TOOLS = {"cicc": "front end and optimizer", "ptxas": "ptxas"}


def _tools(table: str, events: Sequence[Event]) -> Iterable[tuple[str, float]]:
    """Yield NVCC's tools in order, with milliseconds; the device compiler counts as two of them."""
    front_end = sum(event.duration for event in events if event.name == _FRONT_END)
    optimizer = sum(event.duration for event in events if event.name == "LibNVVM")
    for line in table.splitlines()[1:]:
        fields = [field.strip() for field in line.split(" , ")]
        try:
            name, milliseconds = fields[1], float(fields[-2])
        except (LookupError, ValueError):
            continue
        if name == "cicc" and front_end:
            yield "front end", milliseconds * front_end / (front_end + optimizer)
            yield "optimizer", milliseconds * optimizer / (front_end + optimizer)
        elif "preprocess" in name:
            yield "preprocessor", milliseconds
        elif "(driver)" not in name:
            yield _TOOLS.get(name, name), milliseconds


def _nvcc_frames(events: Sequence[Event], front_end: float) -> Frame:
    """Return the headers, nested as the times of their events are."""
    start = next((event.begin for event in events if event.name == _FRONT_END), 0.0)
    root = Frame("", 0.0, front_end / 1e3)
    stack = [root]
    found = [event for event in events if event.name == _HEADER]
    for event in sorted(found, key=lambda event: (event.begin, -event.duration)):
        begin = (event.begin - start) / 1e6
        frame = Frame(event.detail, begin, begin + event.duration / 1e6)
        while len(stack) > 1 and stack[-1].end <= frame.begin:
            stack.pop()
        frame.end = min(frame.end, stack[-1].end)  # neighbours may overlap slightly
        stack[-1].included.append(frame)
        stack.append(frame)
    return root


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


def measure(
    unit: TranslationUnit, trace: Sequence[str], library: Library, limits: Limits
) -> Frame | str:
    """Return the source's frame, with the headers in `trace` below it; or why they cannot be measured."""
    read = [os.fsencode(path) for path in trace]
    reply, _ = nvrtc.observe("time_headers", unit, library, limits, read=read)
    if isinstance(reply, CompileFailure):
        return reply.log
    if reply["error"]:
        return f"the headers do not compile with marks at their ends: {reply['log'].strip()[:300]}"
    return frames_of_events(reply)


def frames_of_events(reply: dict[str, Any]) -> Frame:
    """Return the source's frame from the lines of an include trace, each with the time of its writing."""
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
    return root

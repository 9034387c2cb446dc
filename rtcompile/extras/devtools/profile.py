"""Profiles a build: the time of phases, headers and templates, as tables and as a Chrome trace."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rtcompile.build.measured import ENDS, TEXTS, Measured, labelled
from rtcompile.errors import InvalidRequest, public
from rtcompile.named import NamedTuple
from rtcompile.request.values import path as checked_path
from rtcompile.styling import table

_SHOWN = 15  # rows of a table
_FINISH = "Wrapping up translation unit"
_BUILTIN = "__nv_nvrtc_builtin_header.h"
_HEADER = "Processing Header File"
_FRONT_END = "CUDA C++ Front-End"
# NVRTC reads the name expressions after the source, where the source's headers end.
_AFTER_THE_SOURCE = b"__nv_name_map\n"


@dataclass(slots=True)
class Frame:
    """One inclusion of a header: when it was open (seconds), and the headers that it included."""

    path: str
    begin: float
    end: float = 0.0
    included: list[Frame] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The seconds between opening and closing the header."""
        return self.end - self.begin

    @property
    def own_seconds(self) -> float:
        """Those seconds, minus the seconds of the headers that it includes."""
        return max(0.0, self.seconds - sum(frame.seconds for frame in self.included))

    def walk(self) -> Iterable[Frame]:
        """Yield this inclusion and all below it."""
        yield self
        for frame in self.included:
            yield from frame.walk()


class HeaderCost(NamedTuple):
    """The front end's time for a header, in milliseconds.

    Attributes
    ----------
    name : str
        Its path below the directory where it was found, and that directory's label.
    path : str
    own : float
        Time without the headers that it includes, but with the templates that it instantiates.
    total : float
        Time with the headers that it includes for the first time.
    times : int
        How often it was included.
    """

    name: str
    path: str
    own: float
    total: float
    times: int


class TemplateCost(NamedTuple):
    """The front end's time for the instances of a template, in milliseconds.

    Attributes
    ----------
    name : str
    own : float
        Time without the templates that these instances instantiate.
    instances : int
        The number of instances.
    slowest : str
        The instance with the longest time of its own.
    """

    name: str
    own: float
    instances: int
    slowest: str


@dataclass(frozen=True, slots=True, repr=False)
class Profile:
    """The times of a build. ``print`` shows tables, `save` writes a Chrome trace.

    Attributes
    ----------
    program, arch, compiler : str
        The program, its architecture and its compiler.
    milliseconds : float
        From the request to a worker until the code is available.
    phases : tuple of (str, float)
        Name and milliseconds; they add up to `milliseconds`.
    headers : tuple of HeaderCost
        Sorted by `own`, the largest first; with `source` and `finish` they add up to the front end.
    source : float
        Milliseconds of the front end for the source's own text and its template instances.
    finish : float
        Milliseconds of the front end after the last line, when it finishes what headers and source
        declared and instantiated; no compiler reports which of them.
    templates : tuple of TemplateCost
        The most expensive first.
    note : str
        Why there are no header times; ``""`` if there are.
    """

    program: str
    arch: str
    compiler: str
    milliseconds: float
    phases: tuple[tuple[str, float], ...]
    headers: tuple[HeaderCost, ...]
    source: float
    finish: float
    templates: tuple[TemplateCost, ...]
    note: str
    events: tuple[dict[str, Any], ...] = field(default=())

    @classmethod
    def of(cls, found: Measured) -> Profile:
        """Return the profile of a measured compile."""
        whole, *parts = found.spans
        inside: dict[str, float] = {}
        for name, since, until in parts:
            inside[name] = inside.get(name, 0.0) + (until - since) * 1e3
        inside["rest of NVRTC"] = max(0.0, (whole[2] - whole[1]) * 1e3 - sum(inside.values()))
        milliseconds, waiting = (found.end - found.begin) * 1e3, found.queued * 1e3
        worker = max(0.0, milliseconds - waiting - sum(inside.values()))
        front_end = inside.get("front end", 0.0)
        frames = None if found.opened is None else frames_of_events(found.opened, front_end / 1e3)
        events = _scaled(found.events, front_end)
        headers = _headers(frames, found)
        source = front_end - sum(header.own for header in headers)
        finish = sum(lasted for name, _, lasted, _ in events if name == _FINISH) / 1e3
        finish = min(finish, source) if headers else 0.0
        spans = [("build", found.begin, found.end), *found.spans]
        return cls(
            program=found.program,
            arch=found.arch,
            compiler=found.compiler,
            milliseconds=milliseconds,
            phases=(("waiting for a worker", waiting), ("worker process", worker), *inside.items()),
            headers=headers,
            source=source - finish,
            finish=finish,
            templates=_templates(events),
            note=found.note,
            events=tuple(_chrome_events(spans, events, frames)),
        )

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Profile: {self.program} for {self.arch}, {self.milliseconds:.0f} ms>"

    def text(self, most: int = _SHOWN, width: int = 0) -> str:
        """Return the tables, with at most `most` rows each and names cut to `width` columns."""
        lines = [f"{self.program} for {self.arch}: {self.milliseconds:.0f} ms, {self.compiler}", ""]
        rows = [(name, _ms(cost), self._share(cost)) for name, cost in self.phases]
        lines += [table(("phase", "ms", "share"), rows)]
        if self.headers:
            headers: list[tuple[object, ...]] = [
                (_ms(h.own), self._share(h.own), _ms(h.total), h.times, _end(h.name, width - 38))
                for h in self.headers[:most]
            ]
            lines += ["", table(("own ms", "share", "with nested", "times", "header"), headers)]
            if rest := self.headers[most:]:
                lines += [f"{len(rest)} more headers: {_ms(sum(h.own for h in rest))} ms"]
            lines += [f"{self.program} itself: {_ms(self.source)} ms"]
            lines += [f"after the last line: {_ms(self.finish)} ms, of headers and source"]
        if self.templates:
            templates = [
                (_ms(t.own), self._share(t.own), t.instances, _end(t.name, width - 28))
                for t in self.templates[:most]
            ]
            lines += ["", table(("own ms", "share", "instances", "template"), templates)]
        if self.note:
            lines += ["", f"No times of headers: {self.note}"]
        return "\n".join(lines)

    def _share(self, cost: float) -> str:
        return f"{100 * cost / self.milliseconds:.1f}%" if self.milliseconds else ""

    def fields(self) -> dict[str, Any]:
        """Return all figures as plain values, for JSON."""
        same = ("program", "arch", "compiler", "milliseconds", "source", "finish", "note")
        return {name: getattr(self, name) for name in same} | {
            "phases": dict(self.phases),
            "headers": [header._asdict() for header in self.headers],
            "templates": [template._asdict() for template in self.templates],
        }

    @public
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a Chrome trace, whose path ends in ``.json``: Perfetto and speedscope show it as a flame graph.

        Raises
        ------
        InvalidRequest
            The path has another suffix, or cannot be written.
        """
        target = checked_path("path", path)
        if not target.endswith(".json"):
            raise InvalidRequest(f"path must end in .json, not {target!r}")
        try:
            with open(target, "w", encoding="utf-8") as file:
                json.dump({"traceEvents": self.events}, file)
        except OSError as error:
            raise InvalidRequest(f"{target} cannot be written: {error.strerror}") from None


def _end(name: str, width: int) -> str:
    """Cut a long name, keeping its end, which is the informative part of paths and templates."""
    return name if not 0 < width < len(name) else f"…{name[1 - width :]}"


def _ms(cost: float) -> str:
    return f"{cost:.1f}"


# --- Costs of headers and templates ----------------------------------------------------------------


# An event of NVRTC's trace: its name, begin and duration in microseconds since the compile began, and detail.
_Event = tuple[str, float, float, str]


def _scaled(events: Iterable[_Event], front_end: float) -> list[_Event]:
    """Return the events of a trace, which itself takes time, at the times of a `front_end` of these milliseconds."""
    traced = next((lasted for name, _, lasted, _ in events if name == _FRONT_END), 0.0)
    factor = front_end * 1e3 / traced if traced else 1.0
    return [
        (name, begin * factor, lasted * factor, detail)
        for name, begin, lasted, detail in events
        # NVRTC 13.0 ends each header only where the next header without includes ends.
        if name != _HEADER
    ]


def frames_of_events(reply: dict[str, Any], front_end: float) -> Frame:
    """Return the source's frame, of `front_end` seconds, from an include trace and the times of its lines."""
    root = Frame("", reply["begin"], reply["end"])
    stack = [root]
    rest = b""
    for seconds, piece in [*reply["opened"], (root.end, _AFTER_THE_SOURCE)]:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            path = line.lstrip(b" ")
            if not path.startswith((b"/", b"__nv_", TEXTS)):
                continue
            is_mark = ENDS in path
            depth = len(line) - len(path) - is_mark  # a mark ends its header
            while len(stack) - 1 > depth:
                frame = stack.pop()
                # A header that ends without its mark was not read again (#pragma once).
                by_its_mark = is_mark and len(stack) - 1 == depth
                was_read = by_its_mark or frame.included or frame.path.startswith("__nv_")
                frame.end = seconds if was_read else frame.begin
            if not is_mark and not path.startswith(_AFTER_THE_SOURCE.strip()):
                stack[-1].included.append(Frame(path.decode("utf-8", "surrogateescape"), seconds))
                stack.append(stack[-1].included[-1])
    begin, factor = root.begin, front_end / (root.seconds or 1.0)
    for frame in root.walk():
        frame.begin, frame.end = (frame.begin - begin) * factor, (frame.end - begin) * factor
    return root


def _headers(root: Frame | None, measured: Measured) -> tuple[HeaderCost, ...]:
    frames: dict[str, list[Frame]] = defaultdict(list)
    for frame in root.walk() if root is not None else ():
        if frame.path:
            frames[frame.path].append(frame)
    costs = [
        HeaderCost(
            "NVRTC's built-in header" if path == _BUILTIN else labelled(path, measured.search),
            path,
            sum(frame.own_seconds for frame in opened) * 1e3,
            sum(frame.seconds for frame in opened) * 1e3,
            len(opened),
        )
        for path, opened in frames.items()
    ]
    return tuple(sorted(costs, key=lambda header: -header.own))


def _templates(events: Iterable[_Event]) -> tuple[TemplateCost, ...]:
    """Return each template's own cost, from nested events."""
    found = [each for each in events if each[0].startswith("Instantiating Template")]
    found.sort(key=lambda each: (each[1], -each[2]))
    own: list[float] = []
    stack: list[tuple[float, int]] = []  # ends and positions of the open events
    for index, (_, begin, lasted, _) in enumerate(found):
        while stack and stack[-1][0] <= begin:
            stack.pop()
        if stack:
            own[stack[-1][1]] -= lasted
        own.append(lasted)
        stack.append((begin + lasted, index))
    instances: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for (*_, detail), microseconds in zip(found, own, strict=True):
        name, _, instance = detail.partition(" [")
        instances[name].append((microseconds, instance.rstrip("]")))
    costs = [
        TemplateCost(name, sum(max(0.0, cost) for cost, _ in each) / 1e3, len(each), max(each)[1])
        for name, each in instances.items()
    ]
    return tuple(sorted(costs, key=lambda template: -template.own))


# --- The Chrome trace --------------------------------------------------------------------------------

_ROWS = ("rtcompile", "compiler", "headers")


def _chrome_events(
    spans: Sequence[tuple[str, float, float]], events: Iterable[_Event], root: Frame | None
) -> Iterable[dict[str, Any]]:
    """Yield the events of the Chrome trace, with rows for rtcompile, the compiler and headers."""
    for tid, row in enumerate(_ROWS):
        yield {"name": "thread_name", "ph": "M", "pid": 0, "tid": tid, "args": {"name": row}}
    for name, begin, end in spans:
        yield _event(name, begin, end, "rtcompile")
    start = spans[1][1]  # when the compile began; the first span is the build
    for name, begin, lasted, detail in events:
        since, until = start + begin / 1e6, start + (begin + lasted) / 1e6
        yield {**_event(name, since, until, "compiler"), "args": {"detail": detail}}
    opened = next((begin for name, begin, _ in spans if name == "front end"), start)
    for frame in root.walk() if root is not None else ():
        if frame.path:
            begin, end = opened + frame.begin, opened + frame.end
            yield _event(frame.path, begin, end, "headers")


def _event(name: str, begin: float, end: float, row: str) -> dict[str, Any]:
    times = {"ts": round(begin * 1e6, 1), "dur": round((end - begin) * 1e6, 1)}
    return {"name": name, "ph": "X", "pid": 0, "tid": _ROWS.index(row), **times}

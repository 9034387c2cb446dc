"""Where the time of a build goes: phases, headers and templates, from the compiler's own account.

A profile compiles anew, beside the cache, without a precompiled header. NVRTC's time trace names the
phases, the templates and the optimiser's passes; what each header takes is measured by a second run
of the front end, see `header_times`.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rtcompile.building import pipeline
from rtcompile.building.failures import as_error
from rtcompile.compilers import nvrtc
from rtcompile.core import command_lines, includes
from rtcompile.core.request import CompileRequest, SearchDir
from rtcompile.core.request import path as checked_path
from rtcompile.core.units import CompileFailure, Limits, TranslationUnit
from rtcompile.errors import InvalidRequest, public
from rtcompile.settings import Settings
from rtcompile.text.tables import table
from rtcompile.watching import header_times
from rtcompile.watching.header_times import Frame

__all__ = ["HeaderCost", "Profile", "TemplateCost", "profile"]

_SHOWN = 15  # rows of a table
_FIRST_WITH_PCH = (12, 8)
_BUILTIN = "__nv_nvrtc_builtin_header.h"
_INCLUDE = re.compile(r"^[^\n]*?include\s*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE)


class HeaderCost(NamedTuple):
    """What a header cost the front end, in milliseconds.

    Attributes
    ----------
    name : str
        Its path below the directory where it was found, and which that is.
    path : str
    own : float
        While it was read, without what it includes; templates that it instantiates are in it.
    total : float
        With what it includes for the first time.
    times : int
        How often it was included.
    """

    name: str
    path: str
    own: float
    total: float
    times: int


class TemplateCost(NamedTuple):
    """What the instances of a template cost the front end, in milliseconds.

    Attributes
    ----------
    name : str
    own : float
        Without the templates that they instantiate in turn.
    instances : int
        How many.
    slowest : str
        The instance that took longest by itself.
    """

    name: str
    own: float
    instances: int
    slowest: str


@dataclass(frozen=True, slots=True, repr=False)
class Profile:
    """Where the time of a build went. ``print`` shows tables, `save` writes HTML or a Chrome trace.

    Attributes
    ----------
    program, arch, compiler : str
        What was compiled, for what, by what.
    milliseconds : float
        From asking a worker to having the code.
    phases : tuple of (str, float)
        Name and milliseconds; they add up to `milliseconds`.
    headers : tuple of HeaderCost
        The most expensive by itself first; with the source's own text they add up to the front end.
    source : float
        Milliseconds of the front end for the source's own text, and what it instantiates.
    templates : tuple of TemplateCost
        The most expensive first.
    spared : float
        Milliseconds of the front end for the source's leading includes, which a precompiled header
        would spare, less the time to load it; 0 where this NVRTC has none.
    note : str
        Why there are no times of headers; ``""`` where there are.
    """

    program: str
    arch: str
    compiler: str
    milliseconds: float
    phases: tuple[tuple[str, float], ...]
    headers: tuple[HeaderCost, ...]
    source: float
    templates: tuple[TemplateCost, ...]
    spared: float
    note: str
    frames: Frame | None = field(default=None)
    events: tuple[dict[str, Any], ...] = field(default=())

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Profile: {self.program} for {self.arch}, {self.milliseconds:.0f} ms>"

    def text(self, most: int = _SHOWN) -> str:
        """Return the tables, each with at most so many rows."""
        lines = [f"{self.program} for {self.arch}: {self.milliseconds:.0f} ms, {self.compiler}", ""]
        rows = [(name, _ms(cost), self._share(cost)) for name, cost in self.phases]
        lines += [table(("phase", "ms", "share"), rows)]
        if self.headers:
            headers: list[tuple[object, ...]] = [
                (_ms(h.own), self._share(h.own), _ms(h.total), h.times, h.name)
                for h in self.headers[:most]
            ]
            lines += ["", table(("own ms", "share", "with nested", "times", "header"), headers)]
            lines += [f"{self._rest(most)}{self.program} itself: {_ms(self.source)} ms"]
        if self.templates:
            templates = [
                (_ms(t.own), self._share(t.own), t.instances, t.name) for t in self.templates[:most]
            ]
            lines += ["", table(("own ms", "share", "instances", "template"), templates)]
        if self.spared:
            lines += [
                "",
                f"A precompiled header of the leading includes spares up to {_ms(self.spared)} ms; "
                "rtcompile makes it by itself where that is worth it.",
            ]
        if self.note:
            lines += ["", f"No times of headers: {self.note}"]
        return "\n".join(lines)

    def _rest(self, most: int) -> str:
        rest = self.headers[most:]
        if not rest:
            return ""
        return f"{len(rest)} more headers: {_ms(sum(h.own for h in rest))} ms; "

    def _share(self, cost: float) -> str:
        return f"{100 * cost / self.milliseconds:.1f}%" if self.milliseconds else ""

    def fields(self) -> dict[str, Any]:
        """Return all figures as plain values, for JSON."""
        return {
            "program": self.program,
            "arch": self.arch,
            "compiler": self.compiler,
            "milliseconds": self.milliseconds,
            "phases": dict(self.phases),
            "source": self.source,
            "headers": [header._asdict() for header in self.headers],
            "templates": [template._asdict() for template in self.templates],
            "precompiled header spares": self.spared,
            "note": self.note,
        }

    @public
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a flame graph (``.html``, one file that needs no network) or a Chrome trace (``.json``).

        Raises
        ------
        InvalidRequest
            Another suffix, or a file that cannot be written.
        """
        from rtcompile.watching import flame_graph

        target = checked_path("path", path)
        if target.endswith(".html"):
            text = flame_graph.html(self)
        elif target.endswith(".json"):
            text = json.dumps({"traceEvents": self.events})
        else:
            raise InvalidRequest(f"path must end in .html or .json, not {target!r}")
        try:
            with open(target, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
        except OSError as error:
            raise InvalidRequest(f"{target} cannot be written: {error.strerror}") from None


def _ms(cost: float) -> str:
    return f"{cost:.1f}"


def profile(request: CompileRequest, settings: Settings) -> Profile:
    """Compile a request with NVRTC, beside the cache, and return where the time went.

    Raises
    ------
    CompileError
        NVRTC refuses it; the error is that of any build.
    InvalidRequest, ToolkitNotFound, UnsupportedArch
        As for `rtcompile.compile`.
    """
    plan = pipeline.plan(request, settings)
    library = plan.toolchain.require_nvrtc()
    target = "cubin" if plan.unlinked == "object" else plan.unlinked
    directories = [directory.path for directory in plan.search]

    def unit(searched: Sequence[str]) -> TranslationUnit:
        flags = command_lines.for_nvrtc(
            plan.options, plan.choice.arch, target, library.version_pair, searched
        )
        return TranslationUnit(
            plan.request.source,
            plan.question.name,
            flags,
            plan.request.name_expressions,
            target,
            plan.choice.arch,
        )

    limits = Limits(settings.timeout, settings.memory_limit)
    begin = time.monotonic()
    reply, queued = nvrtc.observe("time_unit", unit(directories), library, limits)
    end = time.monotonic()
    if isinstance(reply, CompileFailure):
        raise as_error(reply, plan)
    if reply["error"]:
        failure = CompileFailure(reply["error"], reply["log"], unit(directories).flags, "nvrtc")
        raise as_error(failure, plan)
    phases = _phases(reply["spans"], queued, end - begin)
    front_end = phases.get("front end", 0.0)
    frames, note = _header_frames(unit, directories, reply, library, limits)
    _scale(frames, front_end / 1e3)
    headers = _headers(frames, plan.search)
    has_pch = library.version_pair >= _FIRST_WITH_PCH
    events = _events(reply)
    return Profile(
        program=os.path.basename(plan.question.name),
        arch=str(plan.choice.arch),
        compiler=f"nvrtc {library.version}",
        milliseconds=(end - begin) * 1e3,
        phases=tuple(phases.items()),
        headers=headers,
        source=front_end - sum(header.own for header in headers),
        templates=_templates(events),
        spared=_prefix_cost(plan.request.source, frames) if has_pch else 0.0,
        note=note,
        frames=frames,
        events=(*_own_events(begin, end, reply), *_header_events(frames, reply), *events),
    )


def _phases(
    spans: Sequence[tuple[str, float, float]], queued: float, seconds: float
) -> dict[str, float]:
    """Return milliseconds by phase, in order; what no phase accounts for is named, too."""
    (_, begin, end), *parts = spans
    phases = {"waiting for a worker": queued * 1e3, "worker process": 0.0}
    for name, since, until in parts:
        phases[name] = phases.get(name, 0.0) + (until - since) * 1e3
    phases["rest of NVRTC"] = max(0.0, (end - begin) * 1e3 - sum(list(phases.values())[2:]))
    phases["worker process"] = max(0.0, seconds * 1e3 - sum(phases.values()))
    return phases


def _header_frames(
    unit: Any, directories: Sequence[str], reply: Any, library: Any, limits: Limits
) -> tuple[Frame | None, str]:
    trace = includes.parse_trace(reply["trace"] or b"")
    if not trace:
        return None, "" if reply["trace"] is not None else "this NVRTC names no headers"
    measured = header_times.measure(unit(()), directories, trace, library, limits)
    return (None, measured) if isinstance(measured, str) else (measured, "")


def _scale(root: Frame | None, seconds: float) -> None:
    """Make the second run's frames those of the first: its front end took so many seconds."""
    if root is None or not root.seconds:
        return
    begin, factor = root.begin, seconds / root.seconds
    for frame in root.walk():
        frame.begin, frame.end = (frame.begin - begin) * factor, (frame.end - begin) * factor


def _headers(root: Frame | None, search: Sequence[SearchDir]) -> tuple[HeaderCost, ...]:
    if root is None:
        return ()
    own: dict[str, float] = defaultdict(float)
    total: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for frame in root.walk():
        own[frame.path] += frame.own_seconds * 1e3
        total[frame.path] += frame.seconds * 1e3
        count[frame.path] += 1
    return tuple(
        sorted(
            (
                HeaderCost(_name(path, search), path, own[path], total[path], count[path])
                for path in own
                if path
            ),
            key=lambda header: -header.own,
        )
    )


def _name(path: str, search: Sequence[SearchDir]) -> str:
    if path == _BUILTIN:
        return "NVRTC's built-in header"
    position, rest = includes.place(path, search)
    return f"{rest}  ({search[position].label})" if position >= 0 else path


def _prefix_cost(source: str, root: Frame | None) -> float:
    """Return the milliseconds of the inclusions that a precompiled header would stand for."""
    names = [match[1] for match in _INCLUDE.finditer(includes.pch_prefix(source))]
    cost = 0.0
    for frame in root.included if root is not None else ():
        if names and frame.path.endswith(f"/{names[0]}"):
            names.pop(0)
            cost += frame.seconds * 1e3
    return cost


# --- the compiler's events -----------------------------------------------------------------------


def _events(reply: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the events of NVRTC's time trace, on this machine's clock.

    Its own events of headers are left out: NVRTC 13.0 ends each only where the next header ends that
    includes nothing, so that neighbours look nested.
    """
    try:
        found = json.loads(reply["events"] or b"{}").get("traceEvents", [])
    except (ValueError, AttributeError):
        return ()
    start = reply["spans"][0][1] * 1e6
    return tuple(
        {**event, "ts": start + event["ts"], "pid": os.getpid(), "tid": _ROW["NVRTC"]}
        for event in found
        if isinstance(event, dict)
        and {"name", "ts", "dur"} <= event.keys()
        and event["name"] != "Processing Header File"
    )


_ROW = {"rtcompile": 1, "NVRTC": 2, "headers": 3}


def _own_events(begin: float, end: float, reply: dict[str, Any]) -> Iterable[dict[str, Any]]:
    process = os.getpid()
    for name, row in _ROW.items():
        names = {"name": "thread_name", "ph": "M", "pid": process, "tid": row}
        yield {**names, "args": {"name": name}}
    for name, since, until in (("build", begin, end), *reply["spans"]):
        yield _event(name, since, until, "rtcompile")


def _header_events(root: Frame | None, reply: dict[str, Any]) -> Iterable[dict[str, Any]]:
    start = reply["spans"][0][1]
    for frame in root.walk() if root is not None else ():
        if frame.path:
            yield _event(frame.path, start + frame.begin, start + frame.end, "headers")


def _event(name: str, begin: float, end: float, row: str) -> dict[str, Any]:
    times = {"ts": round(begin * 1e6, 1), "dur": round((end - begin) * 1e6, 1)}
    return {"name": name, "ph": "X", **times, "pid": os.getpid(), "tid": _ROW[row]}


def _templates(events: Iterable[dict[str, Any]]) -> tuple[TemplateCost, ...]:
    """Return what each template's instances cost by themselves, from events that lie in each other."""
    found = [e for e in events if e["name"].startswith("Instantiating Template")]
    found.sort(key=lambda event: (event["ts"], -event["dur"]))
    own: list[float] = []
    stack: list[int] = []
    for index, event in enumerate(found):
        while stack and found[stack[-1]]["ts"] + found[stack[-1]]["dur"] <= event["ts"]:
            stack.pop()
        if stack:
            own[stack[-1]] -= event["dur"]
        own.append(event["dur"])
        stack.append(index)
    cost: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    slowest: dict[str, tuple[float, str]] = {}
    for event, microseconds in zip(found, own, strict=True):
        detail = str(event.get("args", {}).get("detail", "?"))
        name, _, instance = detail.partition(" [")
        cost[name] += max(0.0, microseconds) / 1e3
        count[name] += 1
        slowest[name] = max(slowest.get(name, (-1.0, "")), (microseconds, instance.rstrip("]")))
    return tuple(
        sorted(
            (TemplateCost(name, cost[name], count[name], slowest[name][1]) for name in cost),
            key=lambda template: -template.own,
        )
    )

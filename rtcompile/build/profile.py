"""Where the time of a build goes: phases, headers and templates, as tables and as a Chrome trace."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rtcompile.build import miss, planned
from rtcompile.build.failures import as_error
from rtcompile.build.measured import Event, Frame, Measured, measure
from rtcompile.errors import InvalidRequest, JitDisabled, public
from rtcompile.files.headers import SearchDir
from rtcompile.request import cxx, sources
from rtcompile.request.request import CompileRequest
from rtcompile.request.units import CompileFailure
from rtcompile.request.values import path as checked_path
from rtcompile.settings import Settings
from rtcompile.store.store import Store
from rtcompile.styling import table

_SHOWN = 15  # rows of a table
_FIRST_WITH_PCH = (12, 8)
_FINISH = "Wrapping up translation unit"
_BUILTIN = "__nv_nvrtc_builtin_header.h"


# One inclusion: its path and name, the files and bytes read because of it, and the headers it includes.
Header = dict[str, Any]


class HeaderCost(NamedTuple):
    """What a header cost the front end, in milliseconds.

    Attributes
    ----------
    name : str
        Its path below the directory where it was found, and that directory's label.
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
    """Where the time of a build went. ``print`` shows tables, `save` writes a Chrome trace.

    Attributes
    ----------
    program, arch, compiler : str
        The program, its architecture and its compiler.
    milliseconds : float
        From the request to a worker until the code is there.
    phases : tuple of (str, float)
        Name and milliseconds; they add up to `milliseconds`.
    headers : tuple of HeaderCost
        The most expensive by itself first; with `source` and `finish` they add up to the front end.
    source : float
        Milliseconds of the front end for the source's own text, and what it instantiates.
    finish : float
        Milliseconds of the front end after the last line, when it finishes what headers and source
        declared and instantiated; no compiler reports which of them.
    templates : tuple of TemplateCost
        The most expensive first.
    spared : float
        Milliseconds of the front end for the source's leading includes, which a precompiled header
        would spare, less the time to load it; 0 if this NVRTC has none.
    note : str
        Why there are no times of headers; ``""`` if there are.
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
    spared: float
    note: str
    frames: Frame | None = field(default=None)
    events: tuple[dict[str, Any], ...] = field(default=())

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Profile: {self.program} for {self.arch}, {self.milliseconds:.0f} ms>"

    def text(self, most: int = _SHOWN, width: int = 0) -> str:
        """Return the tables, with at most `most` rows; names are cut to fit `width` columns."""
        lines = [f"{self.program} for {self.arch}: {self.milliseconds:.0f} ms, {self.compiler}", ""]
        rows = [(name, _ms(cost), self._share(cost)) for name, cost in self.phases]
        lines += [table(("phase", "ms", "share"), rows)]
        if self.headers:
            headers: list[tuple[object, ...]] = [
                (_ms(h.own), self._share(h.own), _ms(h.total), h.times, _end(h.name, width - 38))
                for h in self.headers[:most]
            ]
            lines += ["", table(("own ms", "share", "with nested", "times", "header"), headers)]
            lines += [f"{self._rest(most)}{self.program} itself: {_ms(self.source)} ms"]
            lines += [f"after the last line: {_ms(self.finish)} ms, of headers and source"]
        if self.templates:
            templates = [
                (_ms(t.own), self._share(t.own), t.instances, _end(t.name, width - 28))
                for t in self.templates[:most]
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
        same = ("program", "arch", "compiler", "milliseconds", "source", "finish", "note")
        return {name: getattr(self, name) for name in same} | {
            "phases": dict(self.phases),
            "headers": [header._asdict() for header in self.headers],
            "templates": [template._asdict() for template in self.templates],
            "precompiled header spares": self.spared,
        }

    def tree(self) -> list[Header]:
        """Return the headers that the source includes, and below each those that it includes."""
        names = {header.path: header.name for header in self.headers}
        return _tree(self.frames.included if self.frames is not None else (), names, set())

    @public
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a Chrome trace, whose path ends in ``.json``: Perfetto and speedscope show it as a flame graph.

        Raises
        ------
        InvalidRequest
            Another suffix, or a file that cannot be written.
        """
        target = checked_path("path", path)
        if not target.endswith(".json"):
            raise InvalidRequest(f"path must end in .json, not {target!r}")
        try:
            with open(target, "w", encoding="utf-8") as file:
                json.dump({"traceEvents": self.events}, file)
        except OSError as error:
            raise InvalidRequest(f"{target} cannot be written: {error.strerror}") from None


def _end(name: str, room: int) -> str:
    """Cut a long name to its end, where a path's and a template's own name are."""
    return name if not 0 < room < len(name) else f"…{name[1 - room :]}"


def _ms(cost: float) -> str:
    return f"{cost:.1f}"


def profile(request: CompileRequest, settings: Settings) -> Profile:
    """Compile a request as its build would be, beside the cache, and return where the time went."""
    if not settings.jit:
        raise JitDisabled(
            f"{request.name}: a profile compiles it anew; RTCOMPILE_JIT=0 forbids compiling it"
        )
    plan = planned.plan(request, settings)
    library = plan.toolchain.require_nvrtc()
    found = None
    if plan.backend != "nvcc":
        found = measure(miss.unit_for_nvrtc(plan, request.name_expressions), library, settings)
    if not isinstance(found, Measured):
        # What a build does about an error, another flag or NVCC, is known after a build.
        aside = Store(settings.cache_dir, on_disk=False, size=settings.cache_size)
        build = miss.Miss(plan, settings.override(pch=False), aside, lambda: "a profile")
        with aside.building(plan.key_inputs):
            backend = build.run().build.backend
        plan = build.plan
        if backend == "nvcc":
            raise InvalidRequest(
                f"{request.name} is built by NVCC, and a profile is of NVRTC; `nvcc --time` and "
                "`nvcc --fdevice-time-trace` write NVCC's own"
            )
        found = measure(miss.unit_for_nvrtc(plan, request.name_expressions), library, settings)
    if isinstance(found, CompileFailure):
        raise as_error(found, plan)
    front_end = found.phases.get("front end", 0.0)
    headers = _headers(found.frames, plan.search)
    source = front_end - sum(header.own for header in headers)
    finish = sum(event.duration for event in found.events if event.name == _FINISH) / 1e3
    finish = min(finish, source) if headers else 0.0
    return Profile(
        program=os.path.basename(plan.key_inputs.name),
        arch=str(plan.choice.arch),
        compiler=f"nvrtc {library.version}",
        milliseconds=(found.end - found.begin) * 1e3,
        phases=tuple(found.phases.items()),
        headers=headers,
        source=source - finish,
        finish=finish,
        templates=_templates(found.events),
        spared=_prefix_cost(plan.request.source, found.frames)
        if library.version_pair >= _FIRST_WITH_PCH
        else 0.0,
        note=found.note,
        frames=found.frames,
        events=tuple(_chrome_events(found)),
    )


def _tree(frames: Iterable[Frame], names: Mapping[str, str], seen: set[str]) -> list[Header]:
    found = []
    for frame in frames:
        if frame.path == _BUILTIN:
            continue
        # A later inclusion of the same file costs almost nothing, thanks to its guard.
        first = frame.path not in seen
        seen.add(frame.path)
        included = _tree(frame.included, names, seen)
        size = os.path.getsize(frame.path) if first and os.path.isfile(frame.path) else 0
        header: Header = {
            "path": frame.path,
            "name": names[frame.path],
            "files": first + sum(each["files"] for each in included),
            "bytes": size + sum(each["bytes"] for each in included),
            "milliseconds": round(frame.seconds * 1e3, 1),
            "first": first,
            "included": included,
        }
        found.append(header)
    return found


def _headers(root: Frame | None, search: Sequence[SearchDir]) -> tuple[HeaderCost, ...]:
    frames: dict[str, list[Frame]] = defaultdict(list)
    for frame in root.walk() if root is not None else ():
        if frame.path:
            frames[frame.path].append(frame)
    costs = [
        HeaderCost(
            _name(path, search),
            path,
            sum(frame.own_seconds for frame in opened) * 1e3,
            sum(frame.seconds for frame in opened) * 1e3,
            len(opened),
        )
        for path, opened in frames.items()
    ]
    return tuple(sorted(costs, key=lambda header: -header.own))


def _name(path: str, search: Sequence[SearchDir]) -> str:
    if path == _BUILTIN:
        return "NVRTC's built-in header"
    return sources.labelled(path, search)


def _prefix_cost(source: str, root: Frame | None) -> float:
    """Return the milliseconds of the inclusions that a precompiled header would stand for."""
    directives = cxx.Text(sources.split_prefix(source)[0]).directives()
    names = [
        directive.included[1:-1] for directive in directives if directive.included[:1] in ("<", '"')
    ]
    cost = 0.0
    for frame in root.included if root is not None else ():
        if names and frame.path.endswith(f"/{names[0]}"):
            names.pop(0)
            cost += frame.seconds * 1e3
    return cost


def _templates(events: Iterable[Event]) -> tuple[TemplateCost, ...]:
    """Return what each template's instances cost by themselves, from nested events."""
    found = [event for event in events if event.name.startswith("Instantiating Template")]
    found.sort(key=lambda event: (event.begin, -event.duration))
    own: list[float] = []
    stack: list[int] = []
    for index, event in enumerate(found):
        while stack and found[stack[-1]].begin + found[stack[-1]].duration <= event.begin:
            stack.pop()
        if stack:
            own[stack[-1]] -= event.duration
        own.append(event.duration)
        stack.append(index)
    instances: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for event, microseconds in zip(found, own, strict=True):
        name, _, instance = event.detail.partition(" [")
        instances[name].append((microseconds, instance.rstrip("]")))
    costs = [
        TemplateCost(name, sum(max(0.0, cost) for cost, _ in each) / 1e3, len(each), max(each)[1])
        for name, each in instances.items()
    ]
    return tuple(sorted(costs, key=lambda template: -template.own))


# --- The Chrome trace --------------------------------------------------------------------------------


_ROWS = {"rtcompile": 1, "compiler": 2, "headers": 3}


def _chrome_events(found: Measured) -> Iterable[dict[str, Any]]:
    """Yield what Chrome's and Perfetto's viewers show, with a row each for rtcompile, the compiler and headers."""
    process = os.getpid()
    for name, row in _ROWS.items():
        names = {"name": "thread_name", "ph": "M", "pid": process, "tid": row}
        yield {**names, "args": {"name": name}}

    def event(row: str, name: str, begin: float, end: float, **more: Any) -> dict[str, Any]:
        times = {"ts": round(begin * 1e6, 1), "dur": round((end - begin) * 1e6, 1)}
        return {"name": name, "ph": "X", **times, "pid": process, "tid": _ROWS[row], **more}

    yield event("rtcompile", "build", found.begin, found.end)
    for name, begin, end in found.spans:
        yield event("rtcompile", name, begin, end)
    start = found.spans[0][1]
    for each in found.events:
        begin = start + each.begin / 1e6
        detail = {"args": {"detail": each.detail}}
        yield event("compiler", each.name, begin, begin + each.duration / 1e6, **detail)
    opened = next((begin for name, begin, _ in found.spans if name == "front end"), start)
    for frame in found.frames.walk() if found.frames is not None else ():
        if frame.path:
            yield event("headers", frame.path, opened + frame.begin, opened + frame.end)

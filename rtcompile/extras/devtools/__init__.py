"""Profiles a build: the time of its phases and templates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rtcompile import CompileRequest
from rtcompile.build.measured import measure
from rtcompile.named import NamedTuple
from rtcompile.settings import Settings
from rtcompile.styling import table

_SHOWN = 15  # rows of a table
_FRONT_END = "CUDA C++ Front-End"


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
    """The times of a build; ``print`` shows tables.

    Attributes
    ----------
    program, arch, compiler : str
        The program, its architecture and its compiler.
    milliseconds : float
        From the request to a worker until the code is available.
    phases : tuple of (str, float)
        Name and milliseconds; they add up to `milliseconds`.
    templates : tuple of TemplateCost
        The most expensive first.
    """

    program: str
    arch: str
    compiler: str
    milliseconds: float
    phases: tuple[tuple[str, float], ...]
    templates: tuple[TemplateCost, ...]

    @classmethod
    def of(cls, request: CompileRequest, settings: Settings) -> Profile:
        """Compile a request without the cache, and return its profile."""
        program, arch, compiler, milliseconds, inside, events = measure(request, settings)
        waiting = inside.pop("queue")
        inside["rest of NVRTC"] = max(0.0, inside.pop("compile"))
        worker = max(0.0, milliseconds - waiting - sum(inside.values()))
        phases = (("waiting for a worker", waiting), ("worker process", worker), *inside.items())
        templates = _templates(events, inside.get("front end", 0.0))
        return cls(program, arch, compiler, milliseconds, phases, templates)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Profile: {self.program} for {self.arch}, {self.milliseconds:.0f} ms>"

    def text(self, most: int = _SHOWN, width: int = 0) -> str:
        """Return the tables, with at most `most` rows each and names cut to `width` columns."""
        lines = [f"{self.program} for {self.arch}: {self.milliseconds:.0f} ms, {self.compiler}", ""]
        rows = [(name, f"{cost:.1f}", self._share(cost)) for name, cost in self.phases]
        lines += [table(("phase", "ms", "share"), rows)]
        if self.templates:
            templates = [
                (f"{t.own:.1f}", self._share(t.own), t.instances, _end(t.name, width - 28))
                for t in self.templates[:most]
            ]
            lines += ["", table(("own ms", "share", "instances", "template"), templates)]
        return "\n".join(lines)

    def _share(self, cost: float) -> str:
        return f"{100 * cost / self.milliseconds:.1f}%" if self.milliseconds else ""

    def fields(self) -> dict[str, Any]:
        """Return all figures as plain values, for JSON."""
        templates = [template._asdict() for template in self.templates]
        return {**asdict(self), "phases": dict(self.phases), "templates": templates}


def _end(name: str, width: int) -> str:
    """Cut a long name, keeping its end, which is the informative part of paths and templates."""
    return name if not 0 < width < len(name) else f"…{name[1 - width :]}"


def _templates(
    events: Sequence[tuple[str, float, float, str]], front_end: float
) -> tuple[TemplateCost, ...]:
    """Return each template's own cost, from the nested events of a trace.

    Writing the trace takes time, so the costs are scaled to `front_end`, the front end's milliseconds without it.
    """
    found = [each for each in events if each[0].startswith("Instantiating Template")]
    traced = next((lasted for name, _, lasted, _ in events if name == _FRONT_END), 0.0)
    factor = front_end / traced if traced else 1e-3
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
        TemplateCost(
            name, factor * sum(max(0.0, cost) for cost, _ in each), len(each), max(each)[1]
        )
        for name, each in instances.items()
    ]
    return tuple(sorted(costs, key=lambda template: -template.own))

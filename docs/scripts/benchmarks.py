"""Tables from benchmarks/results, each with the machine that it was measured on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"

_MACHINE = ("processor", "cores", "gpu", "system", "python", "nvrtc", "cutlass")


def table(name: str) -> str:
    """Return the machine and all figures of one file of results."""
    report = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    machine = report["machine"]
    facts = [f"{fact} {machine[fact]}" for fact in _MACHINE if fact in machine]
    facts += [f"{p} {machine[p]}" for p in machine if p.startswith(("cupy", "cuda-core"))]
    lines = [f"Measured on: {'; '.join(facts)}.", "", "| what | figure |", "|---|---:|"]
    lines += [f"| {what} | {figure} |" for what, figure in _leaves(report["results"], ())]
    source = f"../benchmarks/results/{name}.json"
    return "\n".join([*lines, "", f"All of it: [`{name}.json`]({source})."])


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _leaves(below, (*path, key))
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        for item in value:
            named = next(iter(item.values())) if isinstance(item, dict) else ""
            rest = dict(list(item.items())[1:]) if isinstance(item, dict) else item
            yield from _leaves(rest, (*path, str(named)))
    elif value not in ("", [], {}, None):
        if isinstance(value, list):
            value = ", ".join(map(str, value))
        shown = f"{value:,.4g}" if isinstance(value, float) and value < 1e4 else str(value)
        what = " · ".join(part for part in path if part).replace("|", r"\|")
        yield what.replace("<", r"\<"), shown.replace("|", r"\|").replace("<", r"\<")

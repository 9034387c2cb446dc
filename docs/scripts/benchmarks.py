"""Tables from benchmarks/results, each with the machine that it was measured on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"

_COLUMNS_MAX = 7
_LINES_MAX = 80  # of a table; a longer one is only linked
_ON_OTHER_PAGES = {"environments", "trials"}
_MACHINE = ("processor", "cores", "gpu", "system", "python", "nvrtc", "cutlass")


def table(name: str) -> str:
    """Return the machine and all figures of one file of results."""
    report = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    machine = report["machine"]
    facts = [f"{fact} {machine[fact]}" for fact in _MACHINE if fact in machine]
    facts += [f"{p} {machine[p]}" for p in machine if p.startswith(("cupy", "cuda-core"))]
    lines = [f"Measured on: {'; '.join(facts)}.", ""]
    lines += _rows(list(_leaves(report["results"], ())))
    source = f"../benchmarks/results/{name}.json"
    return "\n".join([*lines, "", f"All of it: [`{name}.json`]({source})."])


def others(_: str) -> str:
    """Return a section for each file of results that the page does not name itself."""
    page = (RESULTS.parents[1] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"<!-- made: benchmarks (\w+) -->", page))
    sections = []
    for path in sorted(RESULTS.glob("*.json")):
        if path.stem in shown | _ON_OTHER_PAGES:
            continue
        text = table(path.stem)
        if text.count("\n") > _LINES_MAX:
            text = text[: text.index("\n")] + "\n\n" + text[text.rindex("\n") + 1 :]
        sections.append(f"### {path.stem.replace('_', ' ')}\n\n{text}")
    return "\n\n".join(sections)


def _rows(leaves: list[tuple[tuple[str, ...], str]]) -> list[str]:
    """Return a table: what was measured in rows, the figures of each in columns, where they agree."""
    columns = list(dict.fromkeys(path[-1] for path, _ in leaves if path))
    groups: dict[tuple[str, ...], dict[str, str]] = {}
    for path, figure in leaves:
        groups.setdefault(path[:-1], {})[path[-1] if path else ""] = figure
    if len(columns) > _COLUMNS_MAX or len(leaves) < 0.6 * len(groups) * len(columns):
        rows = [f"| {_cell(path)} | {figure} |" for path, figure in leaves]
        return ["| what | figure |", "|---|---:|", *rows]
    head = "| what | " + " | ".join(_cell((column,)) for column in columns) + " |"
    rows = [
        f"| {_cell(path)} | " + " | ".join(found.get(column, "") for column in columns) + " |"
        for path, found in groups.items()
    ]
    return [head, "|---|" + "---:|" * len(columns), *rows]


def _cell(path: tuple[str, ...]) -> str:
    return " · ".join(part for part in path if part).replace("|", r"\|").replace("<", r"\<")


def _named(item: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return what an item of a list is of, and its figures: what stands before the first figure."""
    fields = list(item.items())
    names = 1
    if any(isinstance(value, dict) for value in item.values()):
        names = next(n for n, (_, value) in enumerate(fields) if isinstance(value, dict))
    return " ".join(str(value) for _, value in fields[:names]), dict(fields[names:])


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _leaves(below, (*path, key))
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        for item in value:
            name, rest = _named(item) if isinstance(item, dict) else ("", item)
            yield from _leaves(rest, (*path, name))
    elif value not in ("", [], {}, None):
        if isinstance(value, list):
            value = ", ".join(map(str, value))
        shown = f"{value:,.4g}" if isinstance(value, float) and value < 1e4 else str(value)
        yield path, shown.replace("|", r"\|").replace("<", r"\<")

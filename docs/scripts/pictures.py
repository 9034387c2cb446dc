"""Pictures of the documentation, as SVG in the page: they take its colours, light or dark."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"

_STYLE = (
    "<style>"
    ".p text{fill:var(--color-foreground-primary);font:14px sans-serif}"
    ".p .dim{fill:var(--color-foreground-secondary);font-size:12px}"
    ".p rect{fill:var(--color-background-secondary);stroke:var(--color-foreground-muted)}"
    ".p .bar{fill:var(--color-brand-primary);stroke:none}"
    ".p .other{fill:var(--color-foreground-muted);stroke:none}"
    ".p path{fill:none;stroke:var(--color-foreground-secondary)}"
    ".p .head{fill:var(--color-foreground-secondary);stroke:none}"
    "</style>"
)


def draw(name: str) -> str:
    """Return a picture by its name, as a block of HTML."""
    return _PICTURES[name]()


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    return (
        "```{raw} html\n"
        f'<svg class="p" role="img" viewBox="0 0 {width} {height}" width="100%" '
        f'style="max-width:{width}px"><title>{escape(title)}</title>{_STYLE}'
        + "".join(parts)
        + "</svg>\n```"
    )


def _box(x: int, y: int, width: int, words: str, below: str) -> str:
    middle = x + width // 2
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="52" rx="6"/>'
        f'<text x="{middle}" y="{y + 22}" text-anchor="middle">{escape(words)}</text>'
        f'<text class="dim" x="{middle}" y="{y + 41}" text-anchor="middle">{escape(below)}</text>'
    )


def _arrow(x: int, top: int, bottom: int, words: str = "") -> str:
    label = f'<text class="dim" x="{x + 8}" y="{(top + bottom) // 2 + 4}">{escape(words)}</text>'
    head = f"M{x - 5} {bottom - 7} L{x + 5} {bottom - 7} L{x} {bottom} Z"
    return f'<path d="M{x} {top} V{bottom - 6}"/><path class="head" d="{head}"/>{label if words else ""}'


def _across(y: int, left: int, right: int, words: str) -> str:
    head = f"M{right - 7} {y - 5} L{right - 7} {y + 5} L{right} {y} Z"
    middle = (left + right) // 2
    return (
        f'<path d="M{left} {y} H{right - 6}"/><path class="head" d="{head}"/>'
        f'<text class="dim" x="{middle}" y="{y - 7}" text-anchor="middle">{escape(words)}</text>'
    )


def _build() -> str:
    """How a request becomes a kernel."""
    steps = [
        ("request", "source, options, names, architecture"),
        ("plan", "headers' paths, compiler, final options"),
        ("key", "one digest over all that decides"),
        ("look", "memory, bundle, disk, shared store"),
        ("cubin", "the machine code, and how it was built"),
        ("CuPy's kernel", "loaded once per device, launched as ever"),
    ]
    parts = []
    for number, (words, below) in enumerate(steps):
        top = 10 + number * 88
        parts.append(_box(20, top, 300, words, below))
        if number:
            label = "found" if words == "cubin" else ""
            parts.append(_arrow(170, top - 36, top, label))
    look, cubin = 10 + 3 * 88, 10 + 4 * 88
    parts += [
        _across(look + 26, 320, 430, "not found"),
        _box(430, look, 300, "a worker process", "NVRTC; NVCC for what NVRTC cannot"),
        _arrow(580, look + 52, cubin, "code, and the headers read"),
        _box(430, cubin, 300, "written to the cache", "the caller does not wait for the disk"),
    ]
    head = f"M327 {cubin + 21} L327 {cubin + 31} L320 {cubin + 26} Z"
    parts.append(f'<path d="M430 {cubin + 26} H327"/><path class="head" d="{head}"/>')
    return _svg(750, 522, "How a build works", parts)


def flowchart(text: str) -> str:
    """Return a picture of a chart that is written for Mermaid: its boxes in layers, top down."""
    names = dict(re.findall(r'(\w+)\["([^"]+)"\]', text))
    lines = re.findall(r"^\s*(\w+).* --> (.+)$", text, re.MULTILINE)
    edges = [(above, below) for above, those in lines for below in those.split(" & ")]
    layer = dict.fromkeys(names, 0)
    for _ in names:  # the longest way down to a box is its layer
        for above, below in edges:
            layer[below] = max(layer[below], layer[above] + 1)
    rows = [[b for b in names if layer[b] == n] for n in range(max(layer.values()) + 1)]
    sizes = {box: 24 + 8 * len(name) for box, name in names.items()}
    width = max(sum(sizes[box] + _BETWEEN for box in row) for row in rows)
    place: dict[str, tuple[int, int]] = {}
    for number, row in enumerate(rows):
        if number:  # below the middle of what leads to it
            row.sort(
                key=lambda b: _middle([place[a][0] for a, c in edges if c == b and a in place])
            )
        between = (width - sum(sizes[box] for box in row)) / len(row)
        left = between / 2
        for box in row:
            place[box] = (round(left + sizes[box] / 2), 8 + _ROW * number)
            left += sizes[box] + between
    parts = [_HEAD]
    for above, below in edges:
        (x, y), (to_x, to_y) = place[above], place[below]
        # An arrow that passes rows leaves and arrives steeply, so that it is told from its neighbours.
        parts.append(
            f'<path class="arrow" d="M{x} {y + 32} C{x} {y + 62} {to_x} {to_y - 34} {to_x} {to_y - 2}" '
            'marker-end="url(#head)"/>'
        )
    for box, (x, y) in place.items():
        parts.append(
            f'<rect x="{x - sizes[box] // 2}" y="{y}" width="{sizes[box]}" height="32" rx="6"/>'
            f'<text x="{x}" y="{y + 21}" text-anchor="middle">{escape(names[box])}</text>'
        )
    return _svg(width, 48 + _ROW * (len(rows) - 1), "Which part imports which", parts)


_BETWEEN, _ROW = 28, 74  # pixels between boxes, and from row to row
_HEAD = (
    '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
    'orient="auto"><path class="head" d="M0 0 L10 5 L0 10 Z"/></marker>'
)


def _middle(places: Sequence[int]) -> float:
    return sum(places) / len(places) if places else 0


def _bars(title: str, unit: str, rows: Sequence[tuple[str, float, bool]]) -> str:
    most = max(value for _, value, _ in rows)
    parts = []
    for number, (words, value, ours) in enumerate(rows):
        top = 8 + number * 30
        width = max(2, round(value / most * 330))
        parts.append(
            f'<text x="290" y="{top + 16}" text-anchor="end">{escape(words)}</text>'
            f'<rect class="{"bar" if ours else "other"}" x="300" y="{top}" width="{width}" '
            f'height="22"/><text x="{306 + width}" y="{top + 16}">{value:,.4g} {unit}</text>'
        )
    return _svg(730, 16 + 30 * len(rows), title, parts)


def _results(name: str) -> dict:  # type: ignore[type-arg]
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["results"]
    return dict(found)


def _warm() -> str:
    """What a kernel of the cache costs in a fresh process: the part that is the library's."""
    found = _results("warm_start")
    rows = []
    for kernel, report in found.items():
        if not isinstance(report, dict) or "warm ms, median" not in report:
            continue
        rows += [
            (f"{kernel}: {who}", ms, who == "rtcompile")
            for who, ms in report["warm ms, median"].items()
        ]
    return _bars("Warm start, milliseconds", "ms", rows)


def _many() -> str:
    """How long many kernels with one expensive header take."""
    found = _results("compile_many_h200")
    name, ways = next(iter(found.items()))
    rows = [
        (way, report["s"], way != "serial NVRTC")
        for way, report in ways.items()
        if isinstance(report, dict) and "s" in report
    ]
    return _bars(f"{name}: seconds", "s", rows)


_PICTURES = {"build": _build, "many": _many, "warm": _warm}

"""Displays modules and kernels in a notebook and in plain IPython: the build and its resources."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rtcompile.extras.notebook.cells import PROGRAM
from rtcompile.extras.notebook.kernels import CellKernel, CellModule, CellTemplate
from rtcompile.inspect.report import KernelReport, limits_of, occupancy, report
from rtcompile.messages import rendering
from rtcompile.request.object_code import ObjectCode
from rtcompile.styling import table

_BLOCKS = range(32, 1025, 32)
_BARS = " ▁▂▃▄▅▆▇█"
# This colour is readable on light and dark backgrounds.
_BAR_COLOR = "#0087d7"


@dataclass(frozen=True, slots=True)
class _Row:
    """A kernel and its build; `resources` is None if they are unknown."""

    signature: str
    code: ObjectCode
    resources: KernelReport | None


@dataclass(frozen=True, slots=True)
class _Card:
    title: str
    rows: tuple[_Row, ...]
    note: str = ""


def as_text(shown: Any) -> str:
    """Return a module, a kernel or a piece of code as a few lines of text."""
    card = _card(shown)
    lines = [card.title]
    if card.rows:
        header = [f"{title} {unit}".strip() for title, unit in _HEADER]
        lines.append(table(header, ([*_cells(row), _sparkline(row)] for row in card.rows)))
    if card.note:
        lines.append(card.note)
    return "\n".join([*lines, *_warnings(shown, rendering.render)])


def as_html(shown: Any) -> str:
    """Return the same as a small table, with the occupancy as a picture."""
    card = _card(shown)
    parts = [f"<div><b>{html.escape(card.title)}</b></div>"]
    if card.rows:
        head = "".join(
            f"<th style='text-align:left'>{title}<br><small>{unit}</small></th>"
            for title, unit in _HEADER
        )
        body = "".join(f"<tr>{_html_row(row)}</tr>" for row in card.rows)
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    if card.note:
        parts.append(f"<div>{html.escape(card.note)}</div>")
    return "".join([*parts, *_warnings(shown, rendering.html)])


def _html_row(row: _Row) -> str:
    signature, *cells = map(html.escape, _cells(row))
    columns = [f"<td style='text-align:left;min-width:14em'><code>{signature}</code></td>"]
    for cell in cells:
        align = "right" if cell[:1].isdigit() else "left"
        columns.append(f"<td style='text-align:{align};white-space:nowrap'>{cell}</td>")
    picture = f"<td style='text-align:left;white-space:nowrap'>{_picture(row)}</td>"
    return "".join([*columns, picture])


_HEADER = (  # the title and the unit of each column
    ("kernel", ""),
    ("arch", ""),
    ("build", ""),
    ("registers", "/thread"),
    ("shared", "B/block"),
    ("stack", "B/thread"),
    ("spilled", "B/thread"),
    ("occupancy", ""),
)


def _cells(row: _Row) -> list[str]:
    build, resources = row.code.build, row.resources
    how = f"hit ({build.hit})" if build.hit else " ".join(build.compiler.split()[:2])
    cells = [row.signature, str(row.code.arch), f"{how}, {_duration(build.milliseconds)}"]
    if resources is None:
        return [*cells, "", "", "", ""]
    spilled = (
        "" if resources.spills is None else str(resources.spills.stores + resources.spills.loads)
    )
    return [
        *cells,
        str(resources.registers),
        str(resources.shared_bytes),
        str(resources.stack_bytes),
        spilled,
    ]


def _duration(milliseconds: float) -> str:
    if milliseconds < 1000:
        return f"{milliseconds:.1f} ms"
    return f"{milliseconds / 1000:.1f} s"


# --- The contents of a card -----------------------------------------------------------------------


def _card(shown: Any) -> _Card:
    if isinstance(shown, CellModule):
        rows = tuple(row for kernel in shown.kernels.values() for row in _rows(kernel))
        names = ", ".join(shown.kernels)
        templates = (one for one in shown.kernels.values() if isinstance(one, CellTemplate))
        note = ", ".join(f"{one.name}[…] is a {one.signature}" for one in templates)
        if not shown.kernels:
            note = "This cell defines no kernel (__global__)."
        return _Card(f"CUDA cell: {names}" if names else "CUDA cell", rows, note)
    if isinstance(shown, CellKernel):
        return _Card(f"CUDA kernel {shown.name}", tuple(_rows(shown)))
    if isinstance(shown, CellTemplate):
        note = f"{shown.name}['float'] is a kernel."
        return _Card(f"CUDA {shown.signature}", tuple(_rows(shown)), note)
    if isinstance(shown, ObjectCode):
        size = f"{shown.kind} for {shown.arch}, {len(shown.code)} bytes"
        return _Card(f"ObjectCode: {size}", tuple(_of_code(shown)))
    return _raw_card(shown)


def _rows(kernel: CellKernel | CellTemplate) -> Iterable[_Row]:
    if isinstance(kernel, CellTemplate):
        return [row for instance in kernel.kernels.values() for row in _rows(instance)]
    return [_Row(kernel.signature, kernel.code, kernel.resources)]


def _raw_card(shown: Any) -> _Card:
    """Return the card of a `RawModule` or `RawKernel`, without building it."""
    name = getattr(shown, "name", None)
    title = f"{type(shown).__name__}{f' {name}' if name else ''}"
    codes = list(shown._build.objects.values())
    if not codes:
        return _Card(title, (), "Not built yet: it is compiled when it is first used.")
    rows = [row for code in codes for row in _of_code(code)]
    if name:
        rows = [
            row
            for row in rows
            if row.resources is None or name in (row.resources.name, row.resources.symbol)
        ]
    return _Card(title, tuple(rows))


def _of_code(code: ObjectCode) -> list[_Row]:
    if code.kind != "cubin":
        return [_Row(code.kind, code, None)]
    return [_Row(kernel.name, code, kernel) for kernel in report(code).kernels]


def _warnings(shown: Any, render: Callable[..., str]) -> list[str]:
    """Return the compiler's warnings about a cell."""
    if not isinstance(shown, CellModule):
        return []
    built = shown.built
    return [render([warning], source=built.cell.text, name=PROGRAM) for warning in built.warnings()]


# --- The occupancy as a picture -------------------------------------------------------------------


def _shares(row: _Row) -> list[float]:
    """Return the occupancy at each block size that the kernel allows."""
    resources = row.resources
    limits = limits_of(row.code.arch)
    if resources is None or limits is None:
        return []
    return [
        occupancy(
            limits, block=block, registers=resources.registers, shared=resources.shared_bytes
        ).share
        for block in _BLOCKS
        if block <= (resources.max_threads or 1024)
    ]


def _sparkline(row: _Row) -> str:
    shares = _shares(row)[3::4] or _shares(row)[-1:]  # at 128, 256, …
    bars = "".join(_BARS[round(share * 8)] for share in shares)
    return f"{bars} {_best(_shares(row))}" if bars else ""


def _best(shares: Sequence[float]) -> str:
    """Return the highest occupancy, and the smallest block that reaches it."""
    most = max(shares)
    return f"{most:.0%} at {_BLOCKS[shares.index(most)]} threads"


def _picture(row: _Row) -> str:
    """Draw the occupancy for blocks of 32 to 1024 threads."""
    shares = _shares(row)
    if not shares:
        return ""
    width, height = 4, 24
    most = max(shares)
    bars = "".join(
        f'<rect x="{i * width}" y="{height * (1 - share):.1f}" width="{width - 1}" '
        f'height="{max(height * share, 0.5):.1f}" fill-opacity="{1 if share == most else 0.4}">'
        f"<title>{block} threads: {share:.0%}</title></rect>"
        for i, (block, share) in enumerate(zip(_BLOCKS, shares, strict=False))
    )
    label = f"occupancy with blocks of 32 to {_BLOCKS[len(shares) - 1]} threads"
    return (
        f'<svg width="{len(_BLOCKS) * width}" height="{height}" role="img" aria-label="{label}" '
        f'fill="{_BAR_COLOR}"><title>{label}</title>{bars}</svg><br>{_best(shares)}'
    )

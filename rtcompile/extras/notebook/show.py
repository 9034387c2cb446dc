"""Displays modules and kernels in a notebook and in plain IPython: the build and its resources."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rtcompile import KernelReport, ObjectCode, Report, render, styling
from rtcompile.extras.notebook.cells import PROGRAM
from rtcompile.extras.notebook.kernels import CellKernel, CellModule, CellTemplate

_BLOCKS = range(32, 1025, 32)
_BARS = " ▁▂▃▄▅▆▇█"
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


def as_text(shown: Any) -> str:
    """Return a module, a kernel or a piece of code as a few lines of text."""
    title, rows, note = _card(shown)
    lines = [title]
    if rows:
        header = [f"{name} {unit}".strip() for name, unit in _HEADER]
        lines.append(styling.table(header, ([*_cells(row), _picture(row)] for row in rows)))
    return "\n".join([*lines, *([note] if note else []), *_warnings(shown, styling.as_text)])


def as_html(shown: Any) -> str:
    """Return the same as a small table."""
    title, rows, note = _card(shown)
    parts = [f"<div><b>{html.escape(title)}</b></div>"]
    if rows:
        head = "".join(
            f"<th style='text-align:left'>{name}<br><small>{unit}</small></th>"
            for name, unit in _HEADER
        )
        body = "".join(f"<tr>{_html_row(row)}</tr>" for row in rows)
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    if note:
        parts.append(f"<div>{html.escape(note)}</div>")
    return "".join([*parts, *_warnings(shown, styling.as_html)])


def _warnings(shown: Any, written: Callable[[styling.Styled], str]) -> list[str]:
    """Return the compiler's warnings about a cell."""
    if not isinstance(shown, CellModule):
        return []
    built = shown.built
    return [
        written(render([warning], source=built.cell.text, name=PROGRAM))
        for warning in built.warnings()
    ]


# --- What is shown of each kind of object ----------------------------------------------------------


class _Row(NamedTuple):
    """A kernel and its build; `resources` is None if they are unknown."""

    signature: str
    code: ObjectCode
    resources: KernelReport | None


def _card(shown: Any) -> tuple[str, list[_Row], str]:
    """Return a title, a row for each kernel, and a note."""
    if isinstance(shown, CellModule):
        rows = [row for kernel in shown.kernels.values() for row in _rows(kernel)]
        templates = (one for one in shown.kernels.values() if isinstance(one, CellTemplate))
        note = ", ".join(f"{one.name}[…] is a {one.signature}" for one in templates)
        if not shown.kernels:
            return "CUDA cell", rows, "This cell defines no kernel (__global__)."
        return f"CUDA cell: {', '.join(shown.kernels)}", rows, note
    if isinstance(shown, CellKernel):
        return f"CUDA kernel {shown.name}", _rows(shown), ""
    if isinstance(shown, CellTemplate):
        return f"CUDA {shown.signature}", _rows(shown), f"{shown.name}['float'] is a kernel."
    if isinstance(shown, ObjectCode):
        size = f"{shown.kind} for {shown.arch}, {len(shown.code)} bytes"
        return f"ObjectCode: {size}", [*_of_code(shown)], ""
    # A `RawModule` or a `RawKernel`, which is not built for this.
    name = getattr(shown, "name", None)
    rows = [row for code in shown.codes for row in _of_code(code)]
    own = [row for row in rows if not name or _is_named(row.resources, name)]
    note = "" if shown.codes else "Not built yet: it is compiled when it is first used."
    return f"{type(shown).__name__}{f' {name}' if name else ''}", own, note


def _is_named(kernel: KernelReport | None, name: str) -> bool:
    return kernel is None or name in (kernel.name, kernel.symbol)


def _rows(kernel: CellKernel | CellTemplate) -> list[_Row]:
    if isinstance(kernel, CellTemplate):
        return [row for instance in kernel.kernels.values() for row in _rows(instance)]
    return [_Row(kernel.signature, kernel.code, kernel.resources)]


def _of_code(code: ObjectCode) -> Iterator[_Row]:
    if code.kind != "cubin":
        yield _Row(code.kind, code, None)
        return
    for kernel in code.report().kernels:
        yield _Row(kernel.name, code, kernel)


# --- A row ----------------------------------------------------------------------------------------


def _cells(row: _Row) -> list[str]:
    build, found = row.code.build, row.resources
    how = f"hit ({build.hit})" if build.hit else " ".join(build.compiler.split()[:2])
    ms = build.milliseconds
    took = f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"
    cells = [row.signature, str(row.code.arch), f"{how}, {took}"]
    if found is None:
        return [*cells, "", "", "", ""]
    spilled = "" if found.spills is None else str(found.spills.stores + found.spills.loads)
    numbers = found.registers, found.shared_bytes, found.stack_bytes
    return [*cells, *map(str, numbers), spilled]


def _html_row(row: _Row) -> str:
    signature, *cells = map(html.escape, _cells(row))
    columns = [f"<td style='text-align:left;min-width:14em'><code>{signature}</code></td>"]
    for cell in (*cells, _picture(row)):
        align = "right" if cell[:1].isdigit() else "left"
        columns.append(f"<td style='text-align:{align};white-space:nowrap'>{cell}</td>")
    return "".join(columns)


def _shares(row: _Row) -> list[float]:
    """Return the occupancy at each block size that the kernel allows."""
    found, report = row.resources, Report(row.code.arch)
    if found is None:
        return []
    blocks = (block for block in _BLOCKS if block <= (found.max_threads or 1024))
    return [at.share for block in blocks if (at := report.occupancy_at(found, block))]


def _picture(row: _Row) -> str:
    """Return bars of the occupancy at 128, 256, … threads, and the smallest block of the highest one."""
    shares = _shares(row)
    bars = "".join(_BARS[round(share * 8)] for share in shares[3::4] or shares[-1:])
    return (
        f"{bars} {max(shares):.0%} at {_BLOCKS[shares.index(max(shares))]} threads" if bars else ""
    )

"""Lays out tables as text, for the command, reports, and notebooks without HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, width: int = 0) -> str:
    """Return a table with numbers aligned to the right, without columns that are empty.

    The first column names the row; None and ``""`` are empty. A table wider than `width` has
    several lines for a row, one for each value.
    """
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    kept = [i for i in range(len(header)) if not cells or any(row[i] for row in cells)]
    columns = [[header[i], *(row[i] for row in cells)] for i in kept]
    padded = [_padded(column) for column in columns]
    lines = ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]
    if width and max(map(len, lines), default=0) > width:
        return "\n".join(_records(columns))
    return "\n".join(lines)


def _padded(column: Sequence[str]) -> list[str]:
    widest = max(map(len, column))
    number = all(cell[:1].isdigit() for cell in column[1:] if cell)
    return [cell.rjust(widest) if number else cell.ljust(widest) for cell in column]


def _records(columns: Sequence[Sequence[str]]) -> Iterable[str]:
    widest = max(len(column[0]) for column in columns)
    for row in range(1, len(columns[0])):
        yield columns[0][row]
        for title, *values in columns[1:]:
            if values[row - 1]:
                yield f"  {title:{widest}}  {values[row - 1]}"

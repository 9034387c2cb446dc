"""Rows in columns, for the command, for notebooks without HTML and for reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["table"]


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, width: int = 0) -> str:
    """Lay rows out in columns, numbers to the right; columns without a single value are left out.

    Parameters
    ----------
    header : sequence of str
        The columns' titles; that of what a row is about comes first.
    rows : iterable of sequence
        What to show; None and ``""`` are nothing.
    width : int, optional
        Where the table is wider than this, each row becomes a few lines, one for each value.
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

"""Text for terminals and notebooks: styles, tables, and a line that is overwritten."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

# --- Styled text, as plain text, in a terminal's colours, or as HTML ------------------------------

Piece = tuple[str, str]  # a style's name, "" for none, and a text
Styled = tuple[Piece, ...]

# Each style's codes for a terminal, with a number in the palette of 256 colours, and its CSS. All have a
# luminance near 0.18, which is readable on white and on black. The first sixteen colours of the
# palette are not used, because themes change them, and Jupyter's dark theme darkens bold ones.
_STYLES = {
    "location": ("1", "font-weight:bold"),
    "error": ("1;38;5;196", "color:#ff0000;font-weight:bold"),
    "warning": ("1;38;5;164", "color:#d700d7;font-weight:bold"),
    "caret": ("1;38;5;28", "color:#008700;font-weight:bold"),
    "ok": ("38;5;28", "color:#008700"),
    "hint": ("38;5;30", "color:#008787"),
    "note": ("38;5;30", "color:#008787"),
    "dim": ("38;5;243", "color:#767676"),
}


def filled(text: str, width: int, first: str = "", rest: str = "") -> str:
    """Break a text into lines, but not inside backticks and quotes, so commands can be copied."""
    import re
    import textwrap

    whole = re.sub(
        r"`[^`]*`|(?<!\w)'[^'`]{1,80}'(?!\w)", lambda quoted: quoted[0].replace(" ", "\x1f"), text
    )
    return textwrap.fill(
        whole,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    ).replace("\x1f", " ")


def as_text(pieces: Iterable[Piece]) -> str:
    """Return the text without styles."""
    return "".join(text for _, text in pieces)


def as_ansi(pieces: Iterable[Piece]) -> str:
    """Return the text with a terminal's colours."""
    return "".join(f"\033[{_STYLES[s][0]}m{text}\033[0m" if s else text for s, text in pieces)


def as_traceback(pieces: Iterable[Piece]) -> str:
    """Return the text that IPython prints instead of a traceback; Jupyter's red background allows only bold."""
    if not in_notebook():
        return as_ansi(pieces)
    bold = {style for style, (codes, _) in _STYLES.items() if codes.startswith("1")}
    return "".join(f"\033[1m{text}\033[0m" if style in bold else text for style, text in pieces)


def in_notebook() -> bool:
    """Return whether this is a Jupyter kernel, whose output is shown in a browser."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return shell is not None and type(shell()).__name__ == "ZMQInteractiveShell"


def painted(pieces: Iterable[Piece], color: bool) -> str:
    """Return the text, with a terminal's colours if `color` is True."""
    return as_ansi(pieces) if color else as_text(pieces)


def as_html(pieces: Iterable[Piece]) -> str:
    """Return the text as one HTML ``<pre>``, escaped."""
    import html

    # Some front ends show <pre> in a proportional font, where the caret would be misplaced.
    escaped = ((style, html.escape(text)) for style, text in pieces)
    spans = (f'<span style="{_STYLES[s][1]}">{text}</span>' if s else text for s, text in escaped)
    return f'<pre style="font-family:var(--jp-code-font-family,monospace)">{"".join(spans)}</pre>'


def printable(text: str) -> str:
    """Return text without a terminal's control characters, which a compiler's log may contain."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def takes_escapes(stream: IO[str] | None) -> bool:
    """Return whether a stream, which may be None or closed, is a terminal that shows colours and overwrites lines."""
    isatty = getattr(stream, "isatty", None)
    if isatty is None or getattr(stream, "closed", False):
        return False
    return bool(isatty()) and os.environ.get("TERM") != "dumb"


def is_watched() -> bool:
    """Return whether a line on stderr can be overwritten: in a terminal, or below a notebook's cell."""
    return takes_escapes(sys.stderr) or in_notebook()


@contextmanager
def changing_line(*, keep: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield a function that overwrites a line with a text; with `keep` the last text stays."""
    if in_notebook():
        yield from _line_below_cell(keep)
        return
    if not takes_escapes(sys.stderr):
        yield lambda _: None
        return
    erase = "\r\033[K"
    try:
        yield lambda text: print(f"{erase}{text}", end="", file=sys.stderr, flush=True)
    finally:
        print("" if keep else erase, end="\n" if keep else "", file=sys.stderr, flush=True)


def _line_below_cell(keep: bool) -> Iterator[Callable[[str], None]]:
    from IPython.display import clear_output, display

    handle: Any = None
    begun = False  # set before `handle`, since an interrupt may come in between

    def write(text: str) -> None:
        nonlocal handle, begun
        data = {"text/plain": text}
        begun = True
        if handle is None:
            handle = display(data, raw=True, display_id=True)
        else:
            handle.update(data, raw=True)

    try:
        yield write
    finally:
        if begun and not keep:
            clear_output(wait=True)


# --- Tables ---------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, width: int = 0) -> str:
    """Return a table without empty columns; if it is wider than `width`, each value gets its own line."""
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

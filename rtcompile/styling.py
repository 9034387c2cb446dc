"""Text in styles: the same words as plain text, in a terminal's colours, or as HTML."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Piece", "Styled", "as_ansi", "as_html", "as_text", "painted", "printable"]

Piece = tuple[str, str]  # a style's name, "" for none, and a text
Styled = tuple[Piece, ...]

_STYLES = {  # style: (ANSI, CSS)
    "place": ("1", "font-weight:bold"),
    "error": ("1;31", "color:#c00;font-weight:bold"),
    "warning": ("1;35", "color:#a0a;font-weight:bold"),
    "caret": ("32", "color:#080;font-weight:bold"),
    "hint": ("36", "color:#06c"),
    "dim": ("2", "color:#777"),
}


def as_text(pieces: Iterable[Piece]) -> str:
    """Return the words alone."""
    return "".join(text for _, text in pieces)


def as_ansi(pieces: Iterable[Piece]) -> str:
    """Return the words in a terminal's colours."""
    return "".join(
        f"\033[{_STYLES[style][0]}m{text}\033[0m" if style else text for style, text in pieces
    )


def painted(pieces: Iterable[Piece], color: bool) -> str:
    """Return the words, in a terminal's colours where `color` says so."""
    return as_ansi(pieces) if color else as_text(pieces)


def as_html(pieces: Iterable[Piece]) -> str:
    """Return the words as one HTML ``<pre>``, every one escaped."""
    import html

    return "<pre>{}</pre>".format(
        "".join(
            f'<span style="{_STYLES[style][1]}">{html.escape(text)}</span>'
            if style
            else html.escape(text)
            for style, text in pieces
        )
    )


def printable(text: str) -> str:
    """Return a text in which nothing controls a terminal: a compiler's log may hold anything."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)

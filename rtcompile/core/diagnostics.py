"""A compiler's log becomes a list of `Diagnostic`s. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Diagnostic"]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message of a compiler.

    Attributes
    ----------
    severity : {"fatal", "error", "warning", "remark", "note"}
    message : str
        The message, without its place and its severity.
    file : str
        The file as the compiler names it; empty where it names none.
    line, column : int
        1-based; 0 where unknown.
    code : str
        The compiler's own number, ``"20014-D"``; empty where it gives none.
    excerpt : str
        The source line and caret as the compiler printed them.
    hint : str
        What to do about it, true of this build; empty where nothing is known.
    notes : tuple of Diagnostic
        Notes and folded instantiation contexts that belong to this message.
    """

    severity: str
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    code: str = ""
    excerpt: str = ""
    hint: str = ""
    notes: tuple[Diagnostic, ...] = ()

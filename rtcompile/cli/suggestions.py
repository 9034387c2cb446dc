"""What was meant by a mistyped argument of the command."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from rtcompile.errors import InvalidRequest


def unknown_argument(word: str, sub: argparse.ArgumentParser) -> str:
    if not word.startswith("-"):
        return f"{word!r} is one argument too many"
    spellings = list(sub._option_string_actions)
    name = word.partition("=")[0]
    message = f"there is no option {name}"
    if "--backend" not in spellings:
        return message + nearest(name, spellings)
    if f"-{name}" in spellings:  # nvcc's -arch and -std
        return f"{message}; did you mean -{name}?"
    meant = "" if _is_compilers(word) else nearest(name, spellings)
    return f"{message}{meant or '.'} Options of the compiler go after --: `{sub.prog} … -- {word}`"


def _is_compilers(word: str) -> bool:
    from rtcompile.request import options

    try:
        return not options.parse([word]).unknown
    except InvalidRequest:
        return True


def nearest(word: str, known: Iterable[str]) -> str:
    import difflib  # only for a mistake

    found = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {found[0]}?" if found else ""

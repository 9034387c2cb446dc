"""Options as users write them, one or many in a string, become words: an option, or its value."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator

from rtcompile.core.option_table import BY_SPELLING, JOINED, SHORTHANDS

# Their values may hold white space: it belongs to them until a next option begins.
_FREE_TEXT = frozenset({"D", "define-macro", "I", "include-path", "isystem", "system-include",
                        "idirafter", "include", "pre-include"})  # fmt: skip

QUOTES = ("'", '"')
_PIECE = r"""(?:[^\s"']|"[^"]*"?|'[^']*'?)+"""  # few options hold blanks: compiled for the first


def name_and_value(word: str) -> tuple[str, str | None]:
    """Split ``--std=c++17``, ``-DX=1`` and ``-O3``; no value where the next word may hold it."""
    if word[:1] != "-":
        return "", None
    letter = word[1:2]
    if letter in JOINED and len(word) > 2 and word.partition("=")[0][1:] not in BY_SPELLING:
        return letter, word[2:].removeprefix("=").lstrip()
    name, equals, value = word.partition("=")
    name = name[2:] if name[1:2] == "-" else name[1:]
    return name, value if equals else None


def all_words(options: Iterable[str], taking: Container[str]) -> Iterator[str]:
    """Yield the words of options; an option whose name is in `taking` takes a value."""
    waits = False
    for element in options:
        if waits and element.strip():
            yield element.strip()
            waits = False
            continue
        for word in _words(element, taking):
            waits = not waits and _waits_for_value(word, taking)
            yield word


def _waits_for_value(word: str, taking: Container[str]) -> bool:
    name, value = name_and_value(word)
    if value is not None or not name:
        return False
    spec = BY_SPELLING.get(name)
    return name in taking or (spec is not None and spec.takes != "nothing" and not spec.implied)


def _words(element: str, taking: Container[str]) -> list[str]:
    words = element.split()
    return words if len(words) < 2 else _split(element, taking)


def _split(element: str, taking: Container[str]) -> list[str]:
    """Split where a next option begins; white space elsewhere belongs to a define or a path."""
    words: list[str] = []
    free_text = needs_value = False
    end = 0
    for piece in re.finditer(_PIECE, element):
        text = piece[0]
        if needs_value:
            words.append(text)
            needs_value = False
        elif free_text and not _is_option(text, taking):
            words[-1] += element[end : piece.start()] + text
        else:
            words.append(text)
            name, value = name_and_value(text)
            free_text = name in _FREE_TEXT
            needs_value = value is None and name in taking
        end = piece.end()
    return words


def _is_option(text: str, taking: Container[str]) -> bool:
    name, _ = name_and_value(text)
    return bool(name) and (
        text.startswith("--") or name in taking or name in BY_SPELLING or name in SHORTHANDS
    )


def unquoted(text: str) -> str:
    """Return the text without the quotes around it."""
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] in QUOTES and text[-1] == text[0] else text

"""What the texts of a source and its headers say of the time and of their own paths. Pure."""

from __future__ import annotations

from typing import NamedTuple

from rtcompile.core import cxx

_CLOCK = ("__DATE__", "__TIME__", "__TIMESTAMP__")
_OWN_PATH = ("__FILE", "__BASE_FILE__", "__builtin_FILE", "source_location")


class Mentions(NamedTuple):
    """What a text mentions that decides who may use a build, if anybody."""

    clock: str  # the first of ``__DATE__``, ``__TIME__``, ``__TIMESTAMP__`` in the code, "" if none
    own_path: bool  # whether the text can put its own path into the code (``__FILE__``)


def scan(text: str) -> Mentions:
    """Read a source or a header; a mention in a comment does not count."""
    clock, own_path = "", False
    for number, reading in enumerate(cxx.readings(text)):
        said = reading.text
        own_path = own_path or any(word in said for word in _OWN_PATH)
        if not clock and any(macro in said for macro in _CLOCK):
            # Where readings differ, a mention in a comment or a string counts too.
            code = said if number else reading.code()
            clock = next((macro for macro in _CLOCK if macro in code), "")
    return Mentions(clock, own_path)

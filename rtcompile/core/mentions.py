"""Dependencies of a source that the compiler's include trace does not show. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from rtcompile.core import cxx

_CLOCK = ("__DATE__", "__TIME__", "__TIMESTAMP__")
_OWN_PATH = ("__FILE", "__BASE_FILE__", "__builtin_FILE", "source_location")
_WRAPPER = re.compile("has_include|HAS_INCLUDE")
_ASKED = re.compile(
    rf"(?P<defined>\bdefined[\s(]*\w*?)?(?:{_WRAPPER.pattern})\w*\s*"
    r'(?:\(\s*(?P<argument><[^>]{0,999}>|"[^"]{0,999}"|\w+)\s*\))?'
)
# Pieces of `__has_include` that a `##` may put together.
_PASTED = ("__ha", "__has", "s_include", "as_include")


class Mentions(NamedTuple):
    """What a file mentions that a build may depend on, also in comments if that costs only a check."""

    quoted: tuple[str, ...]  # names in ``#include "…"``
    computed: bool  # whether a macro is included: any name may have been meant
    # Operands of ``__has_include`` and its wrappers: ``<x>``, ``"x"``; without delimiters, one is
    # computed, and its file unknown.
    asked: tuple[str, ...]
    clock: str  # the first of ``__DATE__``, ``__TIME__``, ``__TIMESTAMP__`` in the code, "" if none
    own_path: bool  # whether the text can put its own path into the code (``__FILE__``)


def scan(text: str) -> Mentions:
    """Read a source or a header for what the compiler's trace does not show."""
    included: dict[str, None] = {}
    asked: dict[str, None] = {}
    clock, own_path = "", False
    for number, reading in enumerate(cxx.readings(text)):
        said = reading.text
        for directive in (*reading.lines_with("include"), *reading.lines_with("HAS_INCLUDE")):
            included[directive.included] = None
            asked.update(dict.fromkeys(_asked(directive)))
        if cxx.has_word(said, _PASTED):
            asked["##"] = None
        own_path = own_path or any(word in said for word in _OWN_PATH)
        if any(macro in said for macro in _CLOCK):
            # Where readings differ, a mention in a comment or a string counts too.
            code = said if number else reading.code()
            clock = clock or next((macro for macro in _CLOCK if macro in code), "")
    return Mentions(
        quoted=tuple(name[1:-1] for name in included if name[:1] == '"'),
        computed=any(name and name[0] not in '<"' for name in included),
        asked=tuple(asked),
        clock=clock,
        own_path=own_path,
    )


def _asked(directive: cxx.Directive) -> Iterator[str]:
    """Yield the operands of ``__has_include``, directly or through a macro named for it.

    ``#define _CCCL_HAS_INCLUDE(_X) __has_include(_X)`` passes its parameter on: the macro's uses
    count, its definition does not. The uses of a macro whose name does not contain ``HAS_INCLUDE``
    are not found, so its parameter is yielded, as a name whose file is unknown.
    """
    body, at, name, parameters = directive.body, 0, "", ""
    if directive.name == "define":
        name = cxx.word_at(body, 0)
        at = len(name)
        if body[at : at + 1] == "(":
            parameters = body[at + 1 : body.find(")", at)]
            at += 1 + len(parameters)
    elif directive.name not in ("if", "elif"):
        return
    passes_on = [word.strip() for word in parameters.split(",")] if _WRAPPER.search(name) else []
    for match in _ASKED.finditer(body, at):
        argument = match["argument"]
        if argument and argument not in passes_on:
            yield argument
        elif not argument and (name or not match["defined"]):
            yield "__has_include"

"""Spells rtcompile's options as the reader can use them: in Python, in a shell, in a notebook cell.

Messages are written with Python's names; `spelled` alone turns them into command line options.
"""

from __future__ import annotations

import re

from rtcompile.errors import CompileError, RtcompileError
from rtcompile.messages import rendering
from rtcompile.text.styling import Styled

# The spelling in Python, in a shell, and in a ``%%cuda`` line.
_ROWS = (
    (r"backend='auto'", "--backend auto", "--backend auto"),
    (r"backend='nvrtc', fallback='always'", "--backend nvcc", "--backend nvcc"),
    (r"backend='(\w+)'", r"--backend \1", r"--backend \1"),
    (r"fallback='(\w+)'", r"RTCOMPILE_FALLBACK=\1", r"RTCOMPILE_FALLBACK=\1"),
    (r"\barch='(\w+)'", r"--arch \1", r"--arch \1"),
    (r"\barch=(?![\w'])", "--arch", "--arch"),
    (r"target='(\w+)'", r"--target \1", "rtcompile.compile"),
    (r"name_expressions=\['([^']*)'\]", r"-n '\1'", r"-n '\1'"),
    (r"\bname_expressions\b=?", "-n", "-n"),
    (r"\blink=(?:\[\.\.\.\])?", "--link", "RawModule's link="),
    (r"\btimeout=(?=')", "--timeout ", "RTCOMPILE_TIMEOUT="),
    (r"\btimeout=(?!\w)", "--timeout", "RTCOMPILE_TIMEOUT"),
    (r"\bmemory_limit=(?=')", "--memory-limit ", "RTCOMPILE_MEMORY_LIMIT="),
    (r"\bmemory_limit=(?!\w)", "--memory-limit", "RTCOMPILE_MEMORY_LIMIT"),
    (r"recompile=True asks the compiler again", *["`rtcompile cache clear` forgets it"] * 2),
    (r"more in \.errors\b", "more; `--json` shows all", "more in `sys.last_value.errors`"),
    (r"`\.log` has", "`--json` shows", "`sys.last_value.log` has"),
)
_RULES = tuple((re.compile(pattern), {"command": a, "cell": b}) for pattern, a, b in _ROWS)


def spelled(text: str, face: str) -> str:
    """Return a message with our options as `face` spells them: "python", "command" or "cell"."""
    if face != "python":
        for pattern, spellings in _RULES:
            text = pattern.sub(spellings[face], text)
    return text


def told(error: RtcompileError, face: str, *, width: int = 100) -> Styled:
    """Return an error's message, hints and advice with `face`'s options; a file and line come first."""
    pieces = error.styled()
    if isinstance(error, CompileError) and error.diagnostics:
        story = rendering.story(
            error.diagnostics, source=error.source, name=error.name, width=width
        )
        pieces = (*story, *(("", f"\n{paragraph}") for paragraph in error.advice))
    return tuple((style, spelled(text, face)) for style, text in pieces)

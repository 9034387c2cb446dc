"""Reads tables of compiler messages and of mistakes: a line for each row, with `` | `` between the columns.

The columns are a name, a text of the message, texts of the hint (`` ~ `` between two), further fields as
``name=value``, and the source. Python's escapes stand for line ends, backslashes and characters beyond ASCII.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

READ = {
    "names": lambda text: (text,),
    "capability": lambda text: tuple(map(int, text.split("."))),
    **dict.fromkeys(("seconds", "timeout"), float),
    **dict.fromkeys(("memory", "kind"), int),
    **dict.fromkeys(("bare", "plain", "builtins", "slow", "compiles"), "1".__eq__),
}


def rows(file: str) -> Iterator[tuple[str, str, str, dict[str, object], str]]:
    """Yield the columns of a file of this folder; those that a line leaves out are empty."""
    for line in (Path(__file__).parent / file).read_text(encoding="ascii").splitlines():
        if not line.startswith("# "):
            texts = [text.encode().decode("unicode_escape") for text in line.split(" | ", 4)]
            name, message, hint, given, source = [*texts, "", "", ""][:5]
            fields = dict(word.split("=", 1) for word in shlex.split(given))
            read = {name: READ.get(name, str)(value) for name, value in fields.items()}
            yield name, message, hint, read, source

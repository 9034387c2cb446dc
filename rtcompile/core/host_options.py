"""Options behind ``-Xcompiler`` and ``-Xptxas``: which of them the cache must know.

Imported only where such an option is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rtcompile.errors import InvalidRequest

# Options of the host compiler, which is nvcc's preprocessor, that nvcc has options of its own for.
_OWN = ("isystem", "idirafter", "include", "I", "D", "U")
_WORD = re.compile(r"""(?:[^\s,"']|"[^"]*"?|'[^']*'?)+""")
# Options files of the compilers, also as the value of another option.
_OPTIONS_FILE = re.compile(r"(?:^|[=,])(?:@|--?(?:options-file|optf)(?:[=\s]|$))")
# Options that make a host compiler use files or directories that the cache would not know of.
_FILES = re.compile(
    r"-(?:include-pch|iquote|iprefix|iwithprefix|isysroot|imacros|imultilib|fplugin|wrapper|B/|B$|M)"
    r"|--?(?:specs|sysroot|config)(?:=|$)|-(?:Wp|o)(?:,|$)"
)


def split(values: Iterable[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Split the words after ``-Xcompiler`` into those that nvcc has options for, and all others.

    Definitions and directories become the program's own, as if they had been given without
    ``-Xcompiler``: the cache must know each directory that is searched. Words that would read files
    that the cache does not know of are refused.
    """
    words = [word for value in values for word in _WORD.findall(value)][::-1]
    own: list[tuple[str, str]] = []
    others: list[str] = []
    while words:
        word = words.pop()
        name = next((each for each in _OWN if word.startswith(f"-{each}")), "")
        if not name or word.startswith("-include-pch"):
            refuse_files(word, f"-Xcompiler {word}", of_host=True)
            others.append(word)
            continue
        value = word.removeprefix(f"-{name}").removeprefix("=") or (words.pop() if words else "")
        if len(value) > 1 and value[0] in "\"'" and value[0] == value[-1]:
            value = value[1:-1]
        if not value or any(mark in value for mark in "\"'\\"):
            raise InvalidRequest(
                f"-Xcompiler {word}: give -{name} without -Xcompiler, so that its value is read as "
                "it is written"
            )
        own.append((name, value))
    return own, others


def refuse_files(word: str, shown: str, *, of_host: bool = False) -> None:
    """Raise `InvalidRequest` if an option makes a program read a file that the cache cannot see."""
    if _OPTIONS_FILE.search(word) or (of_host and _FILES.match(word)):
        raise InvalidRequest(
            f"{shown!r} makes a compiler read files that the cache does not know of, and a change of "
            "them would go unnoticed; give directories by -I and -idirafter, headers by -include, "
            "and the options themselves instead of a file that holds them"
        )

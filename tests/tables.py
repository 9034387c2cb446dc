"""Reads tables: the rows of a test file's tests from the table beside it, and compiler messages and mistakes.

A table of messages or mistakes has a line for each row, with `` | `` between the columns. These are a name, a text of the message, texts of the hint (`` ~ `` between two), further fields as
``name=value``, and the source. Python's escapes stand for line ends, backslashes and characters beyond ASCII.
"""

import functools
import inspect
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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


def from_table(test: Callable[..., None]) -> Callable[..., None]:
    """Parametrize a test with its section of the table beside its file, which has the file's name and ends in .txt.

    A section begins with ``[name of the test] names of its parameters``. A row of it is a name, which may be
    missing, ``|``, and the arguments as Python expressions, which may contain names of the file above the test. A
    slow row's name begins with ``~``.
    """
    parameters, rows = sections(Path(inspect.getfile(test)).with_suffix(".txt"))[test.__name__]
    values = [
        pytest.param(
            *eval(f"({arguments},)", test.__globals__),
            id=name.lstrip("~ ") or None,
            marks=[pytest.mark.slow] * name.startswith("~"),
        )
        for name, arguments in rows
    ]
    return pytest.mark.parametrize(parameters.split(", "), values)(test)


@functools.cache
def sections(table: Path) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Return the parameters of each section, and its rows: a name and the text of the arguments."""
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    for line in table.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            test, _, parameters = line[1:].partition("] ")
            _, rows = found[test] = (parameters, [])
        elif line and not line.startswith("# "):
            name, _, arguments = line.partition("| ")
            rows.append((name.strip(), arguments))
    return found

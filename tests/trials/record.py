"""What the trials found, for the table of `make trials`: each trial says what it did and how often it went wrong.

``RTCOMPILE_TEST_TRIALS=full`` repeats each trial as often as the table says; an everyday run takes
seconds. ``RTCOMPILE_TEST_TRIALS_OUT`` names the file that gets the counts, a line of JSON for each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

T = TypeVar("T")

# Read here, at import: a fixture takes the developer's settings away from each test.
FULL = os.environ.get("RTCOMPILE_TEST_TRIALS") == "full"
_OUT = os.environ.get("RTCOMPILE_TEST_TRIALS_OUT")


def times(everyday: T, full: T) -> T:
    """Return how often a trial is repeated in this run."""
    return full if FULL else everyday


def record(kind: str, count: int, bad: int = 0) -> None:
    """Note that `count` trials of a kind were made and `bad` of them went wrong.

    A trial calls it before it asserts, so that the table shows what failed. Several calls with one
    kind are added up.

    Parameters
    ----------
    kind : str
        What was done and to what, for a reader of the table: ``"cache file with a bit flipped"``.
    count, bad : int
        How often, and how often with a result that must not be.
    """
    if _OUT:
        with open(_OUT, "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "count": count, "bad": bad}) + "\n")


@contextmanager
def tally(kind: str) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Yield what each trial of a kind runs in; record them in the end, and fail if any went wrong.

    >>> with tally("dice thrown") as trial:
    ...     for _ in range(times(6, 600)):
    ...         with trial():
    ...             assert throw() in range(1, 7)
    """
    count, bad = 0, []

    @contextmanager
    def trial() -> Iterator[None]:
        nonlocal count
        count += 1
        try:
            yield
        except AssertionError as error:
            bad.append(f"trial {count}: {error}")

    try:
        yield trial
    finally:
        record(kind, count, len(bad))
    assert not bad, "\n".join(bad[:10])

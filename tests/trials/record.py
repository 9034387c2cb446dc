"""Records the trials' results for the table of `make trials`: each trial's kind, count and failures.

``RTCOMPILE_TEST_TRIALS=full`` repeats each trial as often as in the table; an everyday run takes
seconds. ``RTCOMPILE_TEST_TRIALS_OUT`` names the file that gets the counts, a line of JSON for each.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

T = TypeVar("T")

# Read at import, since a fixture removes the developer's settings for each test.
FULL = os.environ.get("RTCOMPILE_TEST_TRIALS") == "full"
_OUT = os.environ.get("RTCOMPILE_TEST_TRIALS_OUT")


def times(everyday: T, full: T) -> T:
    """Return the number of repetitions of a trial in this run."""
    return full if FULL else everyday


def record(kind: str, count: int, bad: int = 0) -> None:
    """Record that `count` trials of a kind were made and `bad` of them failed.

    A trial calls it before its assertions, so the table includes failures. Several calls with one kind
    are added up.

    Parameters
    ----------
    kind : str
        The trial's description in the table: ``"cache file with a bit flipped"``.
    count, bad : int
        The number of trials, and of those with a wrong result.
    """
    if _OUT:
        with open(_OUT, "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "count": count, "bad": bad}) + "\n")


@contextmanager
def tally(kind: str) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Yield a context manager for each trial of a kind; record the trials at the end, and fail if any failed.

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

"""Time that a store took: what a thread waited for, less what it computed itself.

What a thread computes, or waits for a processor, is not the store's fault: on a machine with more
processes than cores a store would be called slow that answers at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["Unanswered", "own_seconds", "within"]

_T = TypeVar("_T")

_LOOK_SECONDS = 0.25  # how often a thread that gave no answer yet is looked at

_helped = threading.local()  # `.seconds`: what other threads computed for this one


class Unanswered(Exception):
    """There was no answer in time."""


def own_seconds() -> float:
    """Return how long this thread, and those it asked, ran or waited to run.

    It is 0 where the kernel does not tell.
    """
    return _ran("thread-self") + float(getattr(_helped, "seconds", 0.0))


def _ran(thread: str) -> float:
    try:
        with open(f"/proc/{thread}/schedstat", "rb", buffering=0) as file:
            ran, waited, _ = file.read().split()
    except (OSError, ValueError):
        return 0.0
    return (int(ran) + int(waited)) / 1e9


def within(seconds: float, ask: Callable[[], _T]) -> _T:
    """Return what `ask` returns, which another thread runs; an error of it is raised here.

    For what nothing else limits: files of a server that is gone, the look-up of a host's name. A
    thread that gives no answer is left behind, and ends with the process.

    Raises
    ------
    Unanswered
        The thread waited for longer than `seconds`.
    """
    answers: list[_T] = []
    errors: list[BaseException] = []
    took: list[float] = []

    def run() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            errors.append(error)
        took.append(own_seconds())

    helper = threading.Thread(target=run, name="rtcompile-store", daemon=True)
    begin = time.monotonic()
    try:
        helper.start()
    except RuntimeError:
        raise Unanswered("there is no thread to ask it with") from None
    left = seconds
    while left > 0 and helper.is_alive():
        helper.join(min(left, _LOOK_SECONDS))
        ran = _ran(f"self/task/{helper.native_id}")
        left = seconds - (time.monotonic() - begin - ran)
    if not took:
        raise Unanswered(f"no answer in {seconds:g} s")
    _helped.seconds = getattr(_helped, "seconds", 0.0) + took[0]
    if errors:
        raise errors[0]
    return answers[0]

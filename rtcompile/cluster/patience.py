"""The time that builds wait for a store: a limit for each answer, and one for all that are slow.

What a thread computes, or waits for a processor, is not the store's fault: on a machine with more
processes than cores a store would be called slow that answers at once.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, TypeVar

_T = TypeVar("_T")

_LOOK_SECONDS = 0.25  # how often a thread that gave no answer yet is looked at
_SHORT_LOOK_SECONDS = 0.02  # where it has had its time, and waits for a processor
_IDLE_SECONDS = 1.0  # then a thread that asked for others ends

# Of a thread, `.seconds`: what others computed for it; `.helps`: whether another waits for it.
_helped = threading.local()


class Unanswered(Exception):
    """There was no answer in time."""


class Patience:
    """The time left for slow answers of one store; threads that wait at once share it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._spent: list[tuple[float, float]] = []  # moments from and to which a thread waited
        self._guard = threading.Lock()
        self._asked: dict[threading.Event, float] = {}

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self._seconds - sum(end - begin for begin, end in self._spent)

    @contextmanager
    def asking(self) -> Iterator[threading.Event]:
        """Yield an event for `within`, which `give_up` sets, around one question."""
        awake = threading.Event()
        with self._guard:
            self._asked[awake] = time.monotonic()
        try:
            yield awake
        finally:
            with self._guard:
                del self._asked[awake]

    def give_up(self) -> None:
        """Have every thread that waits go on without an answer."""
        with self._guard:
            for awake in self._asked:
                awake.set()

    def is_over(self, since: float) -> bool:
        """Say whether who waits since this moment waits for one answer for longer than is left."""
        with self._guard:
            asked = min(self._asked.values(), default=None)
            return asked is not None and time.monotonic() - max(asked, since) > self.left

    def spend(self, until: float, waited: float) -> None:
        """Count that a thread waited for some seconds, until a moment."""
        with self._guard:
            spent: list[tuple[float, float]] = []
            for begin, end in sorted([*self._spent, (until - waited, until)]):
                if spent and begin <= spent[-1][1]:
                    begin, last = spent.pop()
                    end = max(end, last)
                spent.append((begin, end))
            self._spent = spent


def own_seconds() -> float:
    """Return how long this thread, and those it asked, ran or were runnable; 0 where unknown."""
    return _ran("thread-self") + float(getattr(_helped, "seconds", 0.0))


def _ran(thread: str) -> float:
    try:
        with open(f"/proc/{thread}/schedstat", "rb", buffering=0) as file:
            ran, waited, _ = file.read().split()
    except (OSError, ValueError):
        return 0.0
    return (int(ran) + int(waited)) / 1e9


def _would_run(thread: str) -> bool:
    """Say whether a thread runs or waits for a processor: the latter is counted once it is over."""
    try:
        with open(f"/proc/{thread}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].split()[0] == b"R"
    except (OSError, IndexError):
        return False


def within(seconds: float, ask: Callable[[], _T], awake: threading.Event | None = None) -> _T:
    """Return what `ask` returns, which another thread runs; an error of it is raised here.

    A thread that gives no answer within `seconds`, or before `awake` is set, is left behind, and
    `Unanswered` is raised. What such a thread asks within a limit of its own has the first one.
    """
    if getattr(_helped, "helps", False):
        return ask()
    answers: list[_T] = []
    errors: list[BaseException] = []
    took: list[float] = []
    awake = threading.Event() if awake is None else awake

    def run() -> None:
        began = own_seconds()
        try:
            answers.append(ask())
        except BaseException as error:
            errors.append(error)
        took.append(own_seconds() - began)

    try:
        helper = _Helper.one()
    except RuntimeError:
        # From Python 3.12 on none is started at the process's end, which waits for a limited time.
        if not threading.main_thread().is_alive():
            return ask()
        raise Unanswered("there is no thread to ask it with") from None
    before, begin = _ran(helper.place), time.monotonic()
    helper.tasks.put((run, awake))
    left = seconds
    while not awake.wait(min(max(left, _SHORT_LOOK_SECONDS), _LOOK_SECONDS)):
        # The clock first: this thread, too, may have to wait for a processor in between.
        now = time.monotonic()
        left = seconds - (now - begin - (_ran(helper.place) - before))
        if left <= 0 and not _would_run(helper.place):
            awake.wait(_SHORT_LOOK_SECONDS)  # it may have waited for Python's lock, which we had
            break
    if not took:
        raise Unanswered(f"no answer in {seconds:g} s")
    _helped.seconds = getattr(_helped, "seconds", 0.0) + took[0]
    if errors:
        raise errors[0]
    return answers[0]


class _Helper:
    """A thread that asks for others, one after the other, and ends when none did for a while."""

    _idle: ClassVar[list[_Helper]] = []

    def __init__(self) -> None:
        self.tasks: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]]
        self.tasks = queue.SimpleQueue()
        thread = threading.Thread(target=self._run, name="rtcompile-store", daemon=True)
        thread.start()
        self.place = f"self/task/{thread.native_id}"

    @classmethod
    def one(cls) -> _Helper:
        """Return a helper that nobody else has; raise RuntimeError where no thread can be started."""
        try:
            return cls._idle.pop()
        except IndexError:
            return cls()

    def _run(self) -> None:
        _helped.helps = True
        while True:
            try:
                task, awake = self.tasks.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                try:
                    self._idle.remove(self)
                except ValueError:  # it was taken just now
                    continue
                return
            task()
            self._idle.append(self)
            awake.set()


os.register_at_fork(after_in_child=_Helper._idle.clear)

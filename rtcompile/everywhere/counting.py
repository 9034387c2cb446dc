"""Counts the kernels that a program requests, and says which of them the cache had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rtcompile.cache import answers
from rtcompile.cache.answers import Answer
from rtcompile.core.request import CompileRequest, ObjectCode
from rtcompile.errors import JitDisabled, RtcompileError, ToolkitNotFound
from rtcompile.everywhere import seam
from rtcompile.watching import logs

__all__ = ["KernelUse", "Tally", "counting"]


class KernelUse(NamedTuple):
    """One kernel or module that a program requested.

    `spared` is the time in milliseconds that the compiler took when it was built, 0 if it was built
    in this run; `milliseconds` is the time of this call.
    """

    name: str
    arch: str
    backend: str
    hit: str
    milliseconds: float
    spared: float


def _build(name: str, code: ObjectCode) -> KernelUse:
    build = code.build
    spared = build.compiled_in if build.hit else 0.0
    return KernelUse(
        name, str(code.arch), build.backend, build.hit or "", build.milliseconds, spared
    )


def _of_answer(name: str, answer: Answer) -> KernelUse:
    return _build(name, answer.object_code())


class Tally:
    """The requests of a run.

    Attributes
    ----------
    missing : list of str
        The requests that were not in the cache where nothing could be compiled.
    """

    def __init__(self) -> None:
        self._built: list[KernelUse] = []
        self._answers: list[tuple[str, Answer]] = []
        self.missing: list[str] = []

    @property
    def builds(self) -> list[KernelUse]:
        """What was asked for, hits of the short road first."""
        return [_of_answer(*pair) for pair in self._answers] + self._built

    def line(self) -> str:
        """Return one line: kernels, hits, built, seconds spared."""
        builds = self.builds
        built = [build for build in builds if not build.hit]
        spent = sum(build.milliseconds for build in built) / 1e3
        spared = sum(build.spared for build in builds) / 1e3
        kernels = len(builds)
        return (
            f"{kernels} kernel{'s' * (kernels != 1)}: {kernels - len(built)} from the cache, "
            f"{len(built)} built in {spent:.1f} s; {spared:.1f} s of compiling spared"
        )

    def note(self, request: CompileRequest, outcome: ObjectCode | RtcompileError) -> None:
        """Count a build; one that failed counts only if compiling was forbidden or impossible."""
        if isinstance(outcome, (JitDisabled, ToolkitNotFound)):
            self.missing.append(str(outcome).partition("\n")[0])
        if not isinstance(outcome, ObjectCode):
            return
        self._built.append(_build(request.name, outcome))

    def note_answer(self, words: Sequence[str], answer: Answer) -> None:
        """Take a hit of the short road into account; its story is read when it is told."""
        self._answers.append((seam.program_name(words[0]), answer))


@contextmanager
def counting() -> Iterator[Tally]:
    """Count the requests of all threads meanwhile."""
    tally = Tally()
    logs.counters.append(tally.note)
    answers.watchers.append(tally.note_answer)
    try:
        yield tally
    finally:
        answers.watchers.remove(tally.note_answer)
        logs.counters.remove(tally.note)

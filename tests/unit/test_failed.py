"""Which failures would come again, and on which files that hangs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rtcompile.cache.failed import Failed, dependencies_of
from rtcompile.core.units import CompileFailure
from tests.questions import Place, make_question

ERROR = "kernel.cu(3): error: identifier is undefined\n"


def failure(
    log: str = ERROR, *, kind: str = "error", trace: tuple[str, ...] | None = ()
) -> CompileFailure:
    return CompileFailure(kind, log, ("nvcc",), "nvcc", trace=trace)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(failure(kind="crash"), id="crash"),
        pytest.param(failure(kind="timeout"), id="time limit"),
        pytest.param(failure(kind="memory"), id="memory limit"),
        pytest.param(failure(kind="link"), id="linker"),
        pytest.param(failure(trace=None), id="nobody knows what was read"),
        pytest.param(failure("nvcc: No space left on device"), id="the machine's"),
        pytest.param(
            failure(ERROR + "fatal error: x.h: No such file or directory"), id="host header"
        ),
    ],
)
def test_what_may_go_well_the_next_time_is_not_remembered(other: CompileFailure) -> None:
    assert dependencies_of(other, (), source="", name="kernel.cu") is None


def test_a_failure_holds_while_its_headers_are_as_they_were_and_those_it_missed_are_not_there(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, "user0", "user1")
    read = place.write("user1/read.h", "old")
    log = f'{ERROR}kernel.cu(4): catastrophic error: cannot open source file "missed.h"\n'
    question = place.question()
    time.sleep(0.02)  # what is read in the tick in which it was written is not trusted

    def remembered() -> Failed:
        refused = failure(log, trace=(read,))
        found = dependencies_of(refused, place.search, source="", name="/project/kernel.cu")
        assert found is not None
        failed = Failed()
        failed.remember(question, refused, [found])
        return failed

    failed = remembered()
    assert failed.find(question) is not None
    assert failed.find(make_question(source="other")) is None
    assert failed.find(place.question(compilers={"nvrtc": "another"})) is None
    place.write("user0/missed.h", "")
    assert failed.find(question) is None
    (tmp_path / "user0/missed.h").unlink()
    assert failed.find(question) is not None
    place.write("user1/read.h", "new and longer")
    assert failed.find(question) is None


def test_of_many_failures_the_latest_are_kept() -> None:
    failed = Failed()
    questions = [make_question(source=str(number)) for number in range(300)]
    for question in questions:
        failed.remember(question, failure(), [])
    assert failed.find(questions[0]) is None
    assert failed.find(questions[-1]) is not None

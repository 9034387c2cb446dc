"""What stays in a process after many builds, in each of the lives of `benchmarks.lives`: no more than after a few."""

import pytest

from benchmarks import lives
from tests.trials.record import record, times

pytestmark = pytest.mark.needs_compiler

NEEDS = {"gevent": "gevent", lives.FROZEN: "PyInstaller"}


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "life",
    [
        pytest.param(life, marks=pytest.mark.slow if life == lives.FROZEN else ())
        for life in lives.LIVES
    ],
)
def test_nothing_more_stays_after_many_builds(life):
    if life in NEEDS:
        pytest.importorskip(NEEDS[life])
    count = times(40, 1_000)
    _, early, late, ended = lives.lived(life, count)
    grown = {name for name in late if late[name] > early[name] and name != "resident MB"}
    good = not grown and not any(ended.values())
    record(
        "build in a process that keeps no thread, descriptor, child or file of it",
        count,
        0 if good else count,
    )
    assert not grown
    assert not any(ended.values())

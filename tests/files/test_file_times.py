"""Whether a file's times reveal every change: file systems with coarse clocks, and images with equal times."""

import os
import time

import pytest

from rtcompile.files import headers
from rtcompile.files.headers import Header
from tests.tables import from_table

SECOND = 10**9


def aged(mtime_ns: int, ctime_ns: int, label: str = "user0") -> Header:
    return Header("/home/me/x.h", label, "x.h", "", 1, mtime_ns, ctime_ns, 2)


@from_table
def test_times_are_trusted_once_the_file_system_s_clock_has_moved_on(age_ns, ticks_ns, is_trusted):
    now = 1_700_000_000 * SECOND + 123_456_789
    changed = (now - age_ns) // ticks_ns * ticks_ns
    header = aged(changed - 60 * SECOND, changed)
    kept = headers.trusted(header, now)
    assert kept == (header if is_trusted else header._replace(mtime_ns=0, ctime_ns=0))
    times = {"st_mtime_ns": header.mtime_ns, "st_ctime_ns": changed}
    status = os.stat_result((0,) * 10, times)
    assert (headers.changed_ns(status) >= now) is not is_trusted


def test_one_fine_time_proves_a_fine_clock():
    now = 1_700_000_000 * SECOND
    for times in ((now - SECOND, now - SECOND + 1), (now - SECOND + 1, now - SECOND)):
        assert headers.trusted(aged(*times), now) == aged(*times)


def test_files_of_an_image_with_equal_times_are_compared_by_contents():
    now = time.time_ns()
    squashed = aged(SECOND, int(str(SECOND)))
    assert headers.trusted(squashed, now).ctime_ns == 0
    assert headers.trusted(aged(SECOND, SECOND, "cudart"), now).ctime_ns == SECOND

    for times in ((2 * SECOND, SECOND), (SECOND, 2 * SECOND), (SECOND // 10, SECOND // 10)):
        assert headers.trusted(aged(*times), now) == aged(*times)
    other = aged(SECOND + 1, SECOND + 1)
    assert headers.trusted(other, now) == other


class Clocks:
    """All clocks of a machine; the file clock ticks every 4 ms, and may be behind."""

    def __init__(self, now_ns: int, behind_ns: int = 0) -> None:
        self.now_ns, self.behind_ns = now_ns, behind_ns
        self.sleeps = 0

    def time_ns(self) -> int:
        return self.now_ns

    def monotonic(self) -> float:
        return self.now_ns / SECOND

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds < 0.004
        self.now_ns += int(seconds * SECOND) + 7
        self.sleeps += 1
        assert self.sleeps < 500

    def clock_gettime_ns(self, _: int) -> int:
        return self.now_ns // 4_000_000 * 4_000_000 - self.behind_ns


@pytest.mark.parametrize(("now_ns", "waited_ns"), [(8_000_000, 0), (8_500_000, 3_500_049)])
def test_after_the_next_tick_no_file_gets_an_earlier_time(monkeypatch, now_ns, waited_ns):
    clocks = Clocks(now_ns)
    monkeypatch.setattr(headers, "time", clocks)
    assert headers.next_tick() == now_ns
    assert clocks.now_ns == now_ns + waited_ns
    assert headers.file_clock_ns() >= now_ns


def test_a_file_clock_that_was_set_back_is_not_waited_for(monkeypatch):
    clocks = Clocks(100 * SECOND, behind_ns=SECOND)
    monkeypatch.setattr(headers, "time", clocks)
    assert headers.next_tick() == headers.file_clock_ns() < 100 * SECOND
    assert 0.05 < clocks.monotonic() - 100 < 0.2

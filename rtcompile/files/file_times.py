"""Decides whether a file's times reveal every change: the file clock, coarse file systems, and mounted images."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rtcompile.files.headers import Header

# The file clock ticks every 4 ms (CONFIG_HZ=250), so two writes within one tick leave the same time. Some file
# systems keep coarser times: ext4 with inodes of 128 bytes keeps whole seconds, FAT two seconds, and some NFS and FUSE
# servers milliseconds. Images that are mounted read-only (squashfs, erofs) may be built with one time for all files;
# another image mounted at the same path can then have the same sizes, times, inode numbers and device.
_MAX_WAIT_SECONDS = 0.1
_COARSE_NS = 1_000_000  # times that are multiples of this may come from a coarse clock
_COARSEST_NS = 2 * 10**9
_SECOND_NS = 10**9


def file_clock_ns() -> int:
    """Return the time (ns since the epoch) that a file changed now would get, in steps of 4 ms."""
    # 5 is CLOCK_REALTIME_COARSE, for which the time module has no constant.
    return time.clock_gettime_ns(5)


def next_tick() -> int:
    """Return the current time, once the file clock has reached it: files changed from now on are no older."""
    # Since Linux 6.13 a file's time may be finer than the file clock, and so ahead of it.
    now = time.time_ns()
    deadline = time.monotonic() + _MAX_WAIT_SECONDS
    while (tick := file_clock_ns()) < now:
        if time.monotonic() > deadline:
            return tick  # The clock was set back, and with it the times of files.
        time.sleep(0.0005)
    return now


def changed_ns(status: os.stat_result) -> int:
    """Return the latest time (ns since the epoch) at which a file with this status may have changed."""
    return status.st_ctime_ns + _coarseness_ns(status.st_mtime_ns, status.st_ctime_ns)


def trusted(header: Header, read_ns: int, toolkit: tuple[str, ...] = ()) -> Header:
    """Return a header, with times of 0 if they may not reveal every change: checks then compare its contents."""
    times = header.mtime_ns, header.ctime_ns
    is_new = max(times) + _coarseness_ns(*times) >= read_ns
    # The times of files in images are trusted if the files are not the user's, or lie in `toolkit`.
    is_own = header.is_own and not header.path.startswith(toolkit)
    if is_new or (is_own and _is_in_image(*times)):
        return header._replace(mtime_ns=0, ctime_ns=0)
    return header


def _coarseness_ns(mtime_ns: int, ctime_ns: int) -> int:
    """Return for how long a later change may leave the same times, beyond the ticks of the file clock."""
    return 0 if mtime_ns % _COARSE_NS or ctime_ns % _COARSE_NS else _COARSEST_NS


def _is_in_image(mtime_ns: int, ctime_ns: int) -> bool:
    # Images with one time for all files store it in whole seconds.
    return mtime_ns == ctime_ns and not mtime_ns % _SECOND_NS

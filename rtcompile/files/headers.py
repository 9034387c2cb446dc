"""Search directories, headers that a compiler read, whether their times reveal every change, headers passed as strings.

Headers passed as strings lie in a virtual folder that is named after the digest of all of them.
"""

from __future__ import annotations

import functools
import os
import time

from rtcompile.files.sealed import content_digest
from rtcompile.named import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


# --- `SearchDir` and `Header` ----------------------------------------------------------------------


class SearchDir(NamedTuple):
    """A directory that is searched for headers; cache keys contain its `label` ("user0", "cudart", …)."""

    label: str
    path: str

    @property
    def is_own(self) -> bool:
        """Whether the user named the directory (``-I``), so it is not the toolkit's."""
        return self.label.startswith("user")


class Header(NamedTuple):
    """A header that a build read.

    Attributes
    ----------
    path : str
        The file's path.
    label : str
        The label of the search directory that contains it, ``"cudart"``; ``""`` if none does.
    relative : str
        The path below that directory.
    digest : str
        The digest of the contents; ``""`` if the file changed while it was read.
    size : int
        Bytes.
    mtime_ns, ctime_ns : int
        Times of the last change of contents and of status, in ns since the epoch; 0 if checks must compare contents.
    inode : int
        The inode number.
    """

    path: str
    label: str
    relative: str
    digest: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int = 0

    @property
    def is_own(self) -> bool:
        """Whether the header is the user's, and not a toolkit's, an installed package's or the system's."""
        if self.label:
            return self.label.startswith("user")
        return not self.path.startswith("/usr/")


def parse_trace(raw: bytes) -> tuple[str, ...]:
    """Return the headers in the output of ``-Xcudafe --trace_includes``, in order of first inclusion."""
    # Each line is one inclusion, indented by one blank per level (NVRTC 12.9 and 13.0). Built-in headers are no files.
    paths = (line.lstrip(" ") for line in raw.decode("utf-8", "surrogateescape").split("\n"))
    return tuple(dict.fromkeys(p for p in paths if p and not p.startswith("__nv_")))


@functools.lru_cache(maxsize=16)
def relative_to(search: tuple[SearchDir, ...]) -> Callable[[str], tuple[int, str]]:
    """Return a function that splits a path into its innermost search directory's index and the rest, or (-1, path)."""
    prefixes: dict[str, int] = {}
    for index, directory in enumerate(search):
        prefixes.setdefault(directory.path.rstrip("/") + "/", index)

    def split(path: str) -> tuple[int, str]:
        end = path.rfind("/") + 1
        while end:
            index = prefixes.get(path[:end])
            if index is not None:
                return index, path[end:]
            end = path.rfind("/", 0, end - 1) + 1
        return -1, path

    return split


def lies_below(folders: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that returns whether a folder, its links resolved, is one of `folders` or below one."""
    resolved = tuple([f"{os.path.realpath(each)}/" for each in dict.fromkeys(folders)])

    @functools.lru_cache(maxsize=1024)
    def is_below(folder: str) -> bool:
        return f"{os.path.realpath(folder)}/".startswith(resolved)

    return is_below


# --- Whether a file's times reveal every change ------------------------------------------------------

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


# --- Headers passed as strings --------------------------------------------------------------------

# The virtual folder of these headers, and where a compiler finds them: in the empty working directory of its job.
FOLDER = "/rtcompile-headers/"
IN_JOB = FOLDER.lstrip("/")

_DIGITS = 32


@functools.lru_cache(maxsize=16)  # most builds of a program pass the same headers
def folder(headers: tuple[tuple[str, str], ...]) -> str:
    """Return the virtual folder of these headers."""
    parts = [part.encode() for pair in headers for part in pair]
    digest = content_digest(b"".join(b"%d:%s;" % (len(part), part) for part in parts))
    return FOLDER + digest[:_DIGITS]


def paths(headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the headers with their full virtual paths."""
    if not headers:
        return ()
    top = folder(headers)
    return tuple((f"{top}/{name}", text) for name, text in headers)

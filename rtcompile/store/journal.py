"""Counts what a process finds and writes, for the statistics and to decide when to evict.

All processes append to one journal, which survives them. What is counted in memory is written
there before it is an eighth of what this process has written there: the first build at once, the
thousandth of a batch with a hundred others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rtcompile.store.folder import Counts, Folder, take_hits

# The statistics are updated once all processes together have written so many records, or so large a part
# of the limit, which is what eviction leaves free.
_MOST_NOTED = 512
_PART_NOTED = 16
_PART_UNNOTED = 8


class Upkeep:
    """The statistics of one cache directory, and its size; `enter` returns None on failure."""

    def __init__(self, folder: Folder, size: int, enter: Callable[[Counts], object]) -> None:
        self._folder = folder
        self._size = size
        self._enter = enter
        self._guard = threading.Lock()
        self._settling = threading.Lock()
        self._hits = self._misses = self._fetched = self._written = 0  # not noted yet
        self._noted = 0  # bytes, by this process

    def hit(self) -> None:
        """Count an object that was found."""
        self._hits += 1

    def wrote(self, size: int, *, misses: int = 0, fetched: int = 0) -> None:
        """Count bytes that were written; log them, evict and update the statistics if it is time."""
        with self._guard:
            self._misses += misses
            self._fetched += fetched
            self._written += size
            if self._written <= self._noted / _PART_UNNOTED:
                return
        if self._note() > _MOST_NOTED or self._folder.journal().written > self._size / _PART_NOTED:
            self.settle(wait=False)

    def note(self) -> None:
        """Write what was counted to the journal."""
        if self._folder.writable and (self._hits or self._written):
            self._note()

    def _note(self) -> int:
        """Append a record to the journal; return the number of records."""
        with self._guard:
            counted = self._hits, self._misses, self._fetched, self._written
            self._hits = self._misses = self._fetched = self._written = 0
            self._noted += counted[3]
        hits, misses, fetched, written = counted
        hits += take_hits(self._folder.path)
        return self._folder.log(hits=hits, misses=misses, fetched=fetched, written=written)

    def settle(self, *, wait: bool = True) -> None:
        """Bring the directory within its limit, and add the journal to the statistics.

        Without `wait` nothing is done while another thread is at it.
        """
        if not self._folder.writable or (not wait and self._settling.locked()):
            return
        with self._settling:  # an interrupt between `acquire` and a ``try`` would leave it locked
            from rtcompile.store import evict

            self.note()
            # First: whoever writes meanwhile begins a new journal, and sees nothing to do.
            counts = self._folder.take_journal()
            if evict.size(self._folder) > self._size - self._size / _PART_NOTED:
                evict.evict(self._folder, self._size)
            if counts.lines and self._enter(counts) is None:
                # Others had the database for too long. The bytes are left out: they were seen to.
                self._folder.log(hits=counts.hits, misses=counts.misses, fetched=counts.fetched)

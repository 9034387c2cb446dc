"""Counts what a process finds and writes; from that follow the books, and when to evict.

All processes append to one file of notes, which survives them. What is counted in memory is written
there before it is an eighth of what this process has written there: the first build at once, the
thousandth of a batch with a hundred others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rtcompile.store.folder import Folder, Notes, take_hits

# The books are updated once all processes together have written so many records, or so large a part
# of the limit, which is what eviction leaves free.
_MOST_NOTED = 512
_PART_NOTED = 16
_PART_UNNOTED = 8


class Upkeep:
    """The statistics of one cache directory, and its size; `enter` returns None on failure."""

    def __init__(self, folder: Folder, size: int, enter: Callable[[Notes], object]) -> None:
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
        """Count bytes that were written; note them, evict and update the books if it is time."""
        with self._guard:
            self._misses += misses
            self._fetched += fetched
            self._written += size
            if self._written <= self._noted / _PART_UNNOTED:
                return
        if self._note() > _MOST_NOTED or self._folder.notes().written > self._size / _PART_NOTED:
            self.settle(wait=False)

    def note(self) -> None:
        """Write what was counted to the notes."""
        if self._folder.writable and (self._hits or self._written):
            self._note()

    def _note(self) -> int:
        """Append a record to the notes; return their number."""
        with self._guard:
            counted = self._hits, self._misses, self._fetched, self._written
            self._hits = self._misses = self._fetched = self._written = 0
            self._noted += counted[3]
        hits, misses, fetched, written = counted
        hits += take_hits(self._folder.path)
        return self._folder.note(hits=hits, misses=misses, fetched=fetched, written=written)

    def settle(self, *, wait: bool = True) -> None:
        """Bring the directory within its limit, and enter the notes of processes into the books.

        Without `wait` nothing is done while another thread is at it.
        """
        if not self._folder.writable or (not wait and self._settling.locked()):
            return
        with self._settling:  # an interrupt between `acquire` and a ``try`` would leave it locked
            from rtcompile.store import inventory

            self.note()
            # First: whoever writes meanwhile begins new notes, and sees nothing to do.
            notes = self._folder.take_notes()
            used = inventory.size(self._folder) + inventory.precompiled_size(self._folder)
            if used > self._size - self._size / _PART_NOTED:
                inventory.evict(self._folder, self._size)
            if notes.lines and self._enter(notes) is None:
                # Others had the books for too long. The bytes are not noted again: they were seen to.
                self._folder.note(hits=notes.hits, misses=notes.misses, fetched=notes.fetched)

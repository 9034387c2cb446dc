"""The questions that NVRTC refused and NVCC answered: known to this process, and in the books."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rtcompile.cache.folder import REFUSALS, Folder
from rtcompile.core.key import Question

if TYPE_CHECKING:
    from rtcompile.cache.books import Books

__all__ = ["Refusals"]


class Refusals:
    """Why NVRTC refused a question. `ask` asks the books; it returns None where there are none."""

    def __init__(self, folder: Folder, ask: Callable[[Callable[[Books], Any]], Any]) -> None:
        self._folder = folder
        self._ask = ask
        self._reading = threading.Lock()
        self._reasons: dict[str, str] | None = None

    def find(self, question: Question) -> str | None:
        """Return why NVRTC refused `question`; None if no refusal is known."""
        known = self._known()
        return known.get(_key(question)) if known else None

    def remember(self, question: Question, reason: str) -> None:
        """Note that NVRTC refused `question`, so that NVCC is used at once the next time."""
        key = _key(question)
        self._known()[key] = reason
        self._ask(lambda books: books.remember_refusal(key, reason))

    def forget(self) -> None:
        """Read the books again when asked next."""
        self._reasons = None

    def _known(self) -> dict[str, str]:
        with self._reading:
            if self._reasons is None:
                # This check saves the first miss the 30 ms of opening a database without refusals.
                there = os.path.exists(self._folder.file(*REFUSALS))
                found = self._ask(lambda books: books.refusals()) if there else None
                self._reasons = found or {}
            return self._reasons


def _key(question: Question) -> str:
    return f"{question.lookup_key()} {question.compilers.get('nvrtc', '')}"

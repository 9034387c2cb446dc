"""Resets in a forked child what other threads of the parent left: imports, locks, and the state of modules.

A child of ``os.fork`` has only the thread that forked. A lock that another thread held stays locked in the child
forever, and so does a module that another thread was importing.
"""

from __future__ import annotations

import _frozen_importlib
import os
import sys
from _thread import RLock, get_ident

TYPE_CHECKING = False  # as type checkers know it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[[], object])

_locks: list[Any] = []
_functions: list[Callable[[], object]] = []


def lock() -> RLock:
    """Return a reentrant lock that is never deleted. A forked child finds it unlocked unless its thread held it."""
    made = RLock()
    _locks.append(made)
    return made


def in_child(function: F) -> F:
    """Call `function` in each forked child, after the functions that were registered before it."""
    _functions.append(function)
    return function


def _forget() -> None:
    _forget_imports()
    for each in _locks:
        if not each._is_owned():
            each._at_fork_reinit()
    for function in _functions:
        function()


def _forget_imports() -> None:
    """Let the child import again what another thread of the parent was importing."""
    # These names of `importlib` are undocumented; if Python renames them, nothing is reset.
    locks = getattr(_frozen_importlib, "_module_locks", {})
    for name, reference in [*locks.items()]:
        if getattr(reference(), "owner", None) not in (None, get_ident()):
            del locks[name]
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if getattr(spec, "_initializing", False):
                del sys.modules[name]


os.register_at_fork(after_in_child=_forget)

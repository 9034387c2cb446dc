"""This process as another one would begin: the one place where tests reach what a process remembers."""

from __future__ import annotations

from typing import Any

from rtcompile.bundles import index as bundles
from rtcompile.lookup import environment
from rtcompile.store import store
from rtcompile.toolkit import remembered


def forget_process() -> None:
    """Forget what this process keeps in memory, as a fresh process would have it."""
    forget_caches()
    forget_bundles()
    forget_toolkit()


def forget_caches() -> None:
    """Forget the caches that are open and what was found in them."""
    store._stores.clear()
    environment.forget()


def forget_bundles() -> None:
    """Forget the bundles in use, and what was read of them."""
    bundles._bundles.clear()


def forget_toolkit() -> None:
    """Forget the toolkit that was found; the cache still says where it was."""
    remembered._in_this_process.clear()


def build_of(made: Any) -> Any:
    """Return the build that a RawModule or RawKernel has, which equal ones share."""
    return made._build


def functions_of(kernel: Any) -> Any:
    """Return the driver's functions of a RawKernel, by device, which its launches use."""
    return kernel._functions

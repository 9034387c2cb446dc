"""Parses compilers' logs, explains errors with cause and fix, and decides about the fallback to NVCC.

The public function is `render`, which is imported when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rtcompile.messages.rendering import render as render


def __dir__() -> list[str]:
    return ["render"]


def __getattr__(name: str) -> object:
    if name != "render":
        raise AttributeError(f"module 'rtcompile.messages' has no attribute {name!r}")
    from rtcompile.messages.rendering import render

    return render

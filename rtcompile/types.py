"""The types of results and of their parts, for annotations and `isinstance`: `Report`, `BuildInfo`, `Diagnostic`, …

Each is imported when it is first used. Type checkers read ``types.pyi``.
"""

from __future__ import annotations

import rtcompile


def __getattr__(name: str) -> object:
    if name == "__all__":
        return __dir__()
    if name not in rtcompile._TYPES:
        raise AttributeError(f"module 'rtcompile.types' has no attribute {name!r}")
    value = globals()[name] = rtcompile._load(name)
    return value


def __dir__() -> list[str]:
    return sorted(rtcompile._TYPES)

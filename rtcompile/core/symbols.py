"""Mangled symbols become C++ names."""

from __future__ import annotations

import re


def simple_name(symbol: str) -> str:
    """Return the name in a mangled symbol, without namespaces: ``k`` of ``_ZN2ns1kEPf``."""
    return (names_in(symbol) or [symbol])[-1]


def demangled(symbol: str) -> str:
    """Return a symbol's declaration, ``ns::k(float*)``, by the C++ runtime; else its simple name."""
    if not symbol.startswith("_Z"):
        return symbol
    import ctypes

    try:
        runtime = ctypes.CDLL("libstdc++.so.6")
        demangle, free = runtime.__cxa_demangle, ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return simple_name(symbol)
    demangle.restype = ctypes.c_void_p
    free.argtypes = [ctypes.c_void_p]
    status = ctypes.c_int()
    text = demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not text or status.value != 0:
        return simple_name(symbol)
    try:
        return (ctypes.string_at(text)).decode("utf-8", "replace")
    finally:
        free(text)


def names_in(symbol: str) -> list[str]:
    """Return the namespaces and the name in a mangled symbol; none for a symbol as it is."""
    if not symbol.startswith("_Z"):
        return []
    rest = symbol[2:].removeprefix("N").removeprefix("L")
    found: list[str] = []
    while match := re.match(r"L?(\d+)", rest):
        end = match.end() + int(match[1])
        found.append(rest[match.end() : end])
        rest = rest[end:]
        if not symbol.startswith("_ZN"):
            break
    # NVRTC puts declarations of unnamed namespaces into a namespace of its own.
    return [name for name in found if not name.startswith(("_INTERNAL_", "_GLOBAL__N_"))]

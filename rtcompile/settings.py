"""The environment's defaults, read in one place, each time they are needed (some twenty `get`s).

One row per variable; the README's table is this one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rtcompile.errors import InvalidRequest

__all__ = ["Settings"]

FALLBACKS = ("auto", "never", "always")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asks for; every field can be overridden by an argument."""

    cache_dir: str
    cache_size: int = 4 << 30  # bytes
    cache_on_disk: bool = True
    fallback: str = "auto"
    pch: bool = True
    timeout: float | None = None  # seconds
    memory_limit: int | None = None  # bytes
    jobs: int | None = None
    trace: str | None = None
    log: str | None = None
    jit: bool = True
    debug: bool = False
    save_source: bool = False
    dump_source_on_error: bool = False
    ptx: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings; raise `InvalidRequest` naming a variable that cannot be understood."""
        env = os.environ if environ is None else environ
        return cls(
            cache_dir=_cache_dir(env),
            cache_size=_bytes(env, "RTCOMPILE_CACHE_SIZE", 4 << 30) or 0,
            cache_on_disk=not _flag(env, "CUPY_CACHE_IN_MEMORY", False),
            fallback=_choice("RTCOMPILE_FALLBACK", env.get("RTCOMPILE_FALLBACK") or "auto"),
            pch=_flag(env, "RTCOMPILE_PCH", True),
            timeout=_seconds(env, "RTCOMPILE_TIMEOUT"),
            memory_limit=_bytes(env, "RTCOMPILE_MEMORY_LIMIT", None),
            jobs=_count(env, "RTCOMPILE_JOBS"),
            trace=env.get("RTCOMPILE_TRACE") or None,
            log=env.get("RTCOMPILE_LOG") or None,
            jit=_flag(env, "RTCOMPILE_JIT", True),
            debug=_flag(env, "CUPY_CUDA_COMPILE_WITH_DEBUG", False),
            save_source=_flag(env, "CUPY_CACHE_SAVE_CUDA_SOURCE", False),
            dump_source_on_error=_flag(env, "CUPY_DUMP_CUDA_SOURCE_ON_ERROR", False),
            ptx=_flag(env, "CUPY_COMPILE_WITH_PTX", False),
        )

    def override(
        self,
        *,
        fallback: str | None = None,
        pch: bool | None = None,
        timeout: float | None = None,
        memory_limit: int | str | None = None,
    ) -> Settings:
        """Return these settings with the arguments that are not None in their place."""
        changes: dict[str, Any] = {}
        if fallback is not None:
            changes["fallback"] = _choice("fallback", fallback)
        if pch is not None:
            changes["pch"] = bool(pch)
        if timeout is not None:
            changes["timeout"] = _seconds({"timeout": str(timeout)}, "timeout")
        if memory_limit is not None:
            changes["memory_limit"] = _bytes({"memory_limit": str(memory_limit)}, "memory_limit", 0)
        return replace(self, **changes) if changes else self


def _choice(name: str, value: str) -> str:
    if value not in FALLBACKS:
        raise InvalidRequest(f"{name}={value!r}: expected one of {FALLBACKS}")
    return value


def _cache_dir(env: Mapping[str, str]) -> str:
    explicit = env.get("RTCOMPILE_CACHE_DIR")
    if explicit:
        return os.path.abspath(os.path.expanduser(explicit))
    # CUPY_CACHE_DIR moves CuPy's kernel cache to a fast or writable disk: ours follows it there.
    cupy = env.get("CUPY_CACHE_DIR")
    if cupy:
        return os.path.join(os.path.abspath(os.path.expanduser(cupy)), "rtcompile")
    base = env.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "rtcompile")


def _flag(env: Mapping[str, str], name: str, default: bool) -> bool:
    text = env.get(name, "")
    if not text:
        return default
    if text in ("0", "1"):
        return text == "1"
    if name.startswith("CUPY_"):  # CuPy reads anything but an integer 1 as off, without a word.
        return False
    raise InvalidRequest(f"{name}={text!r}: expected 0 or 1")


def _bytes(env: Mapping[str, str], name: str, default: int | None) -> int | None:
    text = env.get(name, "").strip().upper().removesuffix("B").removesuffix("I")
    if not text:
        return default
    number, unit = (text[:-1], text[-1]) if text[-1] in "KMGT" else (text, "")
    try:
        value = int(float(number) * _UNITS[unit])
    except ValueError:
        value = -1
    if value <= 0:
        raise InvalidRequest(f"{name}={env[name]!r}: expected a size like 512M or 2G")
    return value


def _seconds(env: Mapping[str, str], name: str) -> float | None:
    text = env.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise InvalidRequest(f"{name}={text!r}: expected a number of seconds")
    return value


def _count(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    if not text:
        return None
    if not text.isdigit() or int(text) < 1:
        raise InvalidRequest(f"{name}={text!r}: expected a positive number")
    return int(text)

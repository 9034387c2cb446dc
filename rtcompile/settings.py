"""The settings of the environment's variables, as in docs/environment-variables.md, and the folders they name."""

from __future__ import annotations

import math
import os
import sys
from _thread import _local as local

from rtcompile.errors import InvalidRequest, shown
from rtcompile.request import values
from rtcompile.request.values import Value, one_of, truth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FALLBACKS = ("auto", "never", "always")
LOG_LEVELS = ("debug", "info", "warning", "error")
# A larger limit is the same as none, and overflows timers and the limits of processes.
_SECONDS_MAX = 1e8  # three years
_BYTES_MAX = 1 << 60
_JOBS_MAX = 4096
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


# The working directory and the variables that a thread goes by, where `directory` and `environ` are
# set: the program may change its own.
own = local()

_DEFAULTS: dict[str, Any] = {
    "cache_size": 4 << 30,
    "cache_on_disk": True,
    "fallback": "auto",
    "pch": True,
    "timeout": None,
    "memory_limit": None,
    "jobs": None,
    "trace": None,
    "log": None,
    "jit": True,
    "ahead": True,
    "progress": True,
    "debug": False,
    "save_source": False,
    "dump_source_on_error": False,
    "ptx": False,
    "recompile": False,
    "bundles": (),
    "remote": "",
}


class Settings(Value):
    """The environment's settings, in seconds and bytes; `recompile` is set by an argument only."""

    __slots__ = ("cache_dir", *_DEFAULTS)

    cache_dir: str
    cache_size: int
    cache_on_disk: bool
    fallback: str
    pch: bool
    timeout: float | None
    memory_limit: int | None
    jobs: int | None
    trace: str | None
    log: str | None
    jit: bool
    ahead: bool
    progress: bool
    debug: bool
    save_source: bool
    dump_source_on_error: bool
    ptx: bool
    recompile: bool
    bundles: tuple[str, ...]
    remote: str

    def __init__(self, cache_dir: str, **given: Any) -> None:
        set_ = object.__setattr__
        set_(self, "cache_dir", cache_dir)
        for name, default in _DEFAULTS.items():
            set_(self, name, given.pop(name, default))
        if given:
            raise TypeError(f"Settings has no {', '.join(given)}")

    def replace(self, **changes: Any) -> Settings:
        """Return a copy with some fields changed, which are not checked."""
        return values.replace(self, **changes)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings; raise `InvalidRequest` naming a variable that cannot be understood."""
        env = os.environ if environ is None else environ
        log = env.get("RTCOMPILE_LOG")
        return cls(
            cache_dir=cache_dir(env),
            cache_size=_bytes("RTCOMPILE_CACHE_SIZE", env.get("RTCOMPILE_CACHE_SIZE")) or 4 << 30,
            cache_on_disk=not flag(env, "CUPY_CACHE_IN_MEMORY", False),
            fallback=one_of(
                "RTCOMPILE_FALLBACK", env.get("RTCOMPILE_FALLBACK") or "auto", FALLBACKS
            ),
            pch=flag(env, "RTCOMPILE_PCH", True),
            timeout=seconds("RTCOMPILE_TIMEOUT", env.get("RTCOMPILE_TIMEOUT")),
            memory_limit=_bytes("RTCOMPILE_MEMORY_LIMIT", env.get("RTCOMPILE_MEMORY_LIMIT")),
            jobs=_count("RTCOMPILE_JOBS", env.get("RTCOMPILE_JOBS")),
            trace=env.get("RTCOMPILE_TRACE") or None,
            log=one_of("RTCOMPILE_LOG", log.lower(), LOG_LEVELS) if log else None,
            jit=flag(env, "RTCOMPILE_JIT", True),
            ahead=flag(env, "RTCOMPILE_AHEAD", True),
            progress=flag(env, "RTCOMPILE_PROGRESS", True),
            debug=flag(env, "CUPY_CUDA_COMPILE_WITH_DEBUG", False),
            save_source=flag(env, "CUPY_CACHE_SAVE_CUDA_SOURCE", False),
            dump_source_on_error=flag(env, "CUPY_DUMP_CUDA_SOURCE_ON_ERROR", False),
            ptx=flag(env, "CUPY_COMPILE_WITH_PTX", False),
            bundles=tuple(filter(None, env.get("RTCOMPILE_BUNDLES", "").split(os.pathsep))),
            remote=env.get("RTCOMPILE_REMOTE", ""),
        )

    def override(
        self,
        *,
        fallback: str | None = None,
        pch: bool | None = None,
        timeout: float | None = None,
        memory_limit: int | str | None = None,
        recompile: bool = False,
    ) -> Settings:
        """Return these settings, changed by the arguments that are not None."""
        changes: dict[str, Any] = {}
        if recompile is not False and truth("recompile", recompile):
            changes["recompile"] = True
        if fallback is not None:
            changes["fallback"] = one_of("fallback", fallback, FALLBACKS)
        if pch is not None:
            # Any non-empty str would be true.
            if not isinstance(pch, int) or pch not in (0, 1):
                raise InvalidRequest(
                    f"pch must be True or False, not {shown(pch)}; write pch=bool(…)"
                )
            changes["pch"] = bool(pch)
        if timeout is not None:
            changes["timeout"] = seconds("timeout", _number("timeout", timeout))
        if memory_limit is not None:
            changes["memory_limit"] = _bytes("memory_limit", _number("memory_limit", memory_limit))
        return self.replace(**changes) if changes else self


def flag(env: Mapping[str, str], name: str, default: bool) -> bool:
    """Return a variable that is 0 or 1."""
    text = env.get(name, "")
    if not text:
        return default
    if text in ("0", "1"):
        return text == "1"
    if name.startswith("CUPY_"):  # CuPy reads anything but an integer 1 as off, without a word.
        return False
    raise InvalidRequest(f"{name}={shown(text)}: expected 0 or 1")


def _number(name: str, value: object) -> str:
    """Return an argument that is a number, or text of one, as the environment would spell it."""
    given = str.__str__(value) if isinstance(value, str) else ""
    if not isinstance(value, (str, bool, bytes)):
        try:
            given = repr(float(value))  # type: ignore[arg-type]
        except OverflowError:
            given = "inf"
        except Exception:  # noqa: BLE001  # an object's own __float__ may raise anything
            given = ""
    if not given:
        raise InvalidRequest(f"{name} must be a number, not {shown(value)}")
    return given


def _bytes(name: str, given: str | None) -> int | None:
    if not given:
        return None
    text = given.strip().upper().removesuffix("B").removesuffix("I")
    number, unit = (text[:-1], text[-1]) if text and text[-1] in _UNITS else (text, "")
    try:
        value = float(number) * _UNITS[unit]
    except ValueError:
        value = math.nan
    if not 1 <= value <= _BYTES_MAX:
        raise InvalidRequest(f"{name}={shown(given)}: expected a size like 512M or 2G")
    return int(value)


def seconds(name: str, given: str | None) -> float | None:
    """Return a time limit; None for no limit, also for "inf"."""
    if not given:
        return None
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise InvalidRequest(f"{name}={shown(given)}: expected a number of seconds")
    return value if value < _SECONDS_MAX else None


def _count(name: str, given: str | None) -> int | None:
    if not given:
        return None
    # isdecimal() alone is true of the digits of every script.
    value = int(given) if given.isascii() and given.isdecimal() and len(given) < 9 else 0
    if not 1 <= value <= _JOBS_MAX:
        raise InvalidRequest(
            f"{name}={shown(given)}: expected a number of builds at once, 1 to {_JOBS_MAX}"
        )
    return value


# --- The folders that the environment names --------------------------------------------------------


def cache_dir(env: Mapping[str, str]) -> str:
    """Return the absolute path of the cache's directory."""
    explicit = env.get("RTCOMPILE_CACHE_DIR")
    if explicit:
        return named_folder("RTCOMPILE_CACHE_DIR", explicit, env)
    # Users set CUPY_CACHE_DIR to a fast or writable disk, which this cache should use too.
    cupy = env.get("CUPY_CACHE_DIR")
    if cupy:
        return os.path.join(named_folder("CUPY_CACHE_DIR", cupy, env), "rtcompile")
    base = env.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # its specification says to ignore a relative path
        return os.path.join(base, "rtcompile")
    home = _home(env)
    if home:
        return os.path.join(home, ".cache", "rtcompile")
    temporary = env.get("TMPDIR", "")
    if not os.path.isabs(temporary):
        temporary = "/tmp"  # noqa: S108  # the folder in it is trusted only if it is the user's
    return os.path.join(temporary, f"rtcompile-cache-{os.geteuid()}")


def import_folders() -> list[str]:
    """Return sys.path without what imports ignore, such as a `pathlib.Path` that was added to it."""
    return [entry for entry in sys.path if isinstance(entry, str)]


def site_folders() -> list[str]:
    """Return the entries of sys.path that packages are installed in, but not folders of scripts."""
    return [
        entry
        for entry in import_folders()
        if entry.endswith(_OF_PACKAGES) or has_folder(entry, "nvidia") or has_folder(entry, "cupy")
    ]


_OF_PACKAGES = ("/site-packages", "/dist-packages")


def has_folder(parent: str, name: str) -> bool:
    """Return whether there is such a folder, in a third of `os.path.isdir`'s time where there is none."""
    return os.access(f"{parent or '.'}/{name}/.", os.F_OK)


def absolute(path: str) -> str:
    """Return the absolute path, with every ``..`` kept: ``link/..`` is above the link's target."""
    full = path if path[:1] == "/" else os.path.join(working_directory(path), path)
    return full if "/.." in full else os.path.abspath(full)


def working_directory(needed_by: str) -> str:
    """Return the working directory; if it was removed, the error names what needs it."""
    try:
        return getattr(own, "directory", None) or os.getcwd()
    except OSError:
        raise InvalidRequest(
            f"{shown(needed_by)} is looked up in the working directory, which was removed; change to "
            "another directory or give absolute paths"
        ) from None


def named_folder(name: str, given: str, env: Mapping[str, str]) -> str:
    """Return the absolute path of the folder that a variable names; ``~`` needs a home directory."""
    path = given
    if given == "~" or given.startswith("~/"):
        home = _home(env)
        if not home:
            raise InvalidRequest(f"{name}={shown(given)}: there is no home; give an absolute path")
        path = home + given[1:]
    elif given.startswith("~"):
        path = os.path.expanduser(given)  # another user's home, "~name"
    return absolute(path)


def _home(env: Mapping[str, str]) -> str:
    """Return the user's home: HOME, else the one in the user database; ``""`` if there is none."""
    home = env.get("HOME", "")
    if not os.path.isabs(home):
        import pwd

        try:
            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            return ""
        if not os.path.isdir(home):  # such as /nonexistent, the home of Debian's user "nobody"
            return ""
    # In containers a user without a name gets "/" as home, which only root should use.
    return home if home.strip("/") or not os.geteuid() else ""


def temporary_folder(what_for: str) -> str:
    """Make a folder for this user alone, removed when this process ends; `what_for` is in its name."""
    import atexit
    import tempfile

    path = tempfile.mkdtemp(prefix=f"rtcompile-{what_for}-")
    atexit.register(_remove, path, os.getpid())
    return path


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked child must not remove it
        import shutil

        shutil.rmtree(path, ignore_errors=True)

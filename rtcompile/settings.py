"""`Settings`: the settings in environment variables (docs/environment-variables.md), the folders in them, and the log."""

from __future__ import annotations

import math
import os
import sys

from rtcompile.errors import InvalidRequest, shown, warn
from rtcompile.named import NamedTuple
from rtcompile.request.values import absolute, one_of, truth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from rtcompile.request.object_code import ObjectCode
    from rtcompile.request.request import CompileRequest

FALLBACKS = ("auto", "never", "always", "nvrtc-first")
LOG_LEVELS = ("debug", "info", "warning", "error")
_SHOWS_BUILDS = ("debug", "info")
# A larger limit would never be reached, and would overflow timers and process limits.
_SECONDS_MAX = 1e8  # three years
_BYTES_MAX = 1 << 60
_JOBS_MAX = 4096
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


# --- The variables and their values ----------------------------------------------------------------


def flag(name: str, given: str) -> bool:
    """Return whether a variable that is 0 or 1 is 1."""
    if given not in ("0", "1"):
        # CuPy silently reads anything except the integer 1 as off.
        if name.startswith("CUPY_"):
            return False
        raise InvalidRequest(f"{name}={shown(given)}: expected 0 or 1")
    return given == "1"


def size(name: str, given: str) -> int:
    """Return the number of bytes of a size like 512M."""
    text = given.strip().upper().removesuffix("B").removesuffix("I")
    number, unit = (text[:-1], text[-1]) if text and text[-1] in _UNITS else (text, "")
    try:
        value = float(number) * _UNITS[unit]
    except ValueError:
        value = math.nan
    if not 1 <= value <= _BYTES_MAX:
        raise InvalidRequest(f"{name}={shown(given)}: expected a size like 512M or 2G")
    return int(value)


def seconds(name: str, given: str) -> float | None:
    """Return a time limit; None for no limit, such as "inf"."""
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise InvalidRequest(f"{name}={shown(given)}: expected a number of seconds")
    return value if value < _SECONDS_MAX else None


def _count(name: str, given: str) -> int:
    # isdecimal() alone accepts the digits of every script.
    value = int(given) if given.isascii() and given.isdecimal() and len(given) < 9 else 0
    if not 1 <= value <= _JOBS_MAX:
        raise InvalidRequest(
            f"{name}={shown(given)}: expected a number of builds at once, 1 to {_JOBS_MAX}"
        )
    return value


# Each field's variable, and the function that parses the variable.
_READERS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "cache_size": ("RTCOMPILE_CACHE_SIZE", size),
    "cache_on_disk": ("CUPY_CACHE_IN_MEMORY", lambda name, given: not flag(name, given)),
    "fallback": ("RTCOMPILE_FALLBACK", lambda name, given: one_of(name, given, FALLBACKS)),
    "pch": ("RTCOMPILE_PCH", flag),
    "timeout": ("RTCOMPILE_TIMEOUT", seconds),
    "memory_limit": ("RTCOMPILE_MEMORY_LIMIT", size),
    "jobs": ("RTCOMPILE_JOBS", _count),
    "log": ("RTCOMPILE_LOG", lambda name, given: one_of(name, given.lower(), LOG_LEVELS)),
    "jit": ("RTCOMPILE_JIT", flag),
    "ahead": ("RTCOMPILE_AHEAD", flag),
    "progress": ("RTCOMPILE_PROGRESS", flag),
    "debug": ("CUPY_CUDA_COMPILE_WITH_DEBUG", flag),
    "save_source": ("CUPY_CACHE_SAVE_CUDA_SOURCE", flag),
    "dump_source_on_error": ("CUPY_DUMP_CUDA_SOURCE_ON_ERROR", flag),
    "ptx": ("CUPY_COMPILE_WITH_PTX", flag),
    "bundles": ("RTCOMPILE_BUNDLES", lambda _, given: tuple(filter(None, given.split(os.pathsep)))),
    "remote": ("RTCOMPILE_REMOTE", lambda _, given: given),
}
# The first four name the cache's folder: see `cache_dir`.
SETTINGS_VARIABLES = (
    *("CUPY_CACHE_DIR", "RTCOMPILE_CACHE_DIR", "TMPDIR", "XDG_CACHE_HOME"),
    *[variable for variable, _ in _READERS.values()],
)


class Settings(NamedTuple):
    """The environment's settings, in seconds and bytes."""

    cache_dir: str
    cache_size: int = 4 << 30
    cache_on_disk: bool = True
    fallback: str = "auto"
    pch: bool = True
    timeout: float | None = None
    memory_limit: int | None = None
    jobs: int | None = None
    log: str | None = None
    jit: bool = True
    ahead: bool = True
    progress: bool = True
    debug: bool = False
    save_source: bool = False
    dump_source_on_error: bool = False
    ptx: bool = False
    recompile: bool = False  # set by an argument only
    bundles: tuple[str, ...] = ()
    remote: str = ""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings; `InvalidRequest` names a variable whose value is invalid."""
        env = os.environ if environ is None else environ
        given = {
            name: read(variable, env[variable])
            for name, (variable, read) in _READERS.items()
            if env.get(variable)
        }
        return cls(cache_dir(env), **given)

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
            # bool() would turn any non-empty str, such as "0", into True.
            if not isinstance(pch, int) or pch not in (0, 1):
                raise InvalidRequest(
                    f"pch must be True or False, not {shown(pch)}; write pch=bool(…)"
                )
            changes["pch"] = bool(pch)
        if timeout is not None:
            changes["timeout"] = seconds("timeout", _number("timeout", timeout))
        if memory_limit is not None:
            changes["memory_limit"] = size("memory_limit", _number("memory_limit", memory_limit))
        return self._replace(**changes) if changes else self


def refuse_contradiction(backend: str, fallback: str | None) -> None:
    """Raise InvalidRequest if the arguments `backend` and `fallback` demand different compilers."""
    if (backend, fallback) in (("nvcc", "never"), ("nvrtc", "always")):
        raise InvalidRequest(
            f"backend={backend!r} and fallback={fallback!r} contradict each other; leave fallback= out, "
            "since backend= alone decides which compiler is used"
        )


def _number(name: str, value: object) -> str:
    """Return an argument that is a number, or text of one, as the environment would spell it."""
    try:
        given = str.__str__(value) if isinstance(value, str) else repr(float(value))  # type: ignore[arg-type]
    except OverflowError:
        given = "inf"
    except Exception:  # noqa: BLE001  # an object's own __float__ may raise anything
        given = ""
    if not given or isinstance(value, (bool, bytes)):
        raise InvalidRequest(f"{name} must be a number, not {shown(value)}")
    return given


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
    """Return sys.path without entries that imports ignore, such as a `pathlib.Path` that was added to it."""
    return [entry for entry in sys.path if isinstance(entry, str)]


def site_folders() -> list[str]:
    """Return the entries of sys.path that packages are installed in, but not folders of scripts."""
    return [
        entry
        for entry in import_folders()
        if entry.endswith(("/site-packages", "/dist-packages"))
        or has_folder(entry, "nvidia")
        or has_folder(entry, "cupy")
    ]


def cuda_of_cupy(folders: Iterable[str]) -> int | None:
    """Return the major version of CUDA in the name of the first installed CuPy's wheel; None if there is none."""
    for folder in folders:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith("cupy_cuda") and name.endswith(".dist-info"):
                digits = name.removeprefix("cupy_cuda").partition("x-")[0]
                if digits.isdecimal():
                    return int(digits)
    return None


def has_folder(parent: str, name: str) -> bool:
    """Return whether a folder exists; if not, this takes a third of the time of `os.path.isdir`."""
    return os.access(f"{parent or '.'}/{name}/.", os.F_OK)


def named_folder(name: str, given: str, env: Mapping[str, str]) -> str:
    """Return the absolute path of the folder that a variable names; ``~`` needs a home directory."""
    path = given
    if given == "~" or given.startswith("~/"):
        home = _home(env)
        if not home:
            raise InvalidRequest(
                f"{name}={shown(given)}: the user has no home directory; give an absolute path"
            )
        path = home + given[1:]
    elif given.startswith("~"):
        path = os.path.expanduser(given)  # another user's home, "~name"
    return absolute(path)


def _home(env: Mapping[str, str]) -> str:
    """Return the user's home directory, from HOME or from the user database; ``""`` if there is none."""
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
    """Make a folder for this user alone, which is removed when this process ends; its name contains `what_for`."""
    import atexit
    import tempfile

    path = tempfile.mkdtemp(prefix=f"rtcompile-{what_for}-")
    atexit.register(_remove, path, os.getpid())
    return path


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked child must not remove it
        import shutil

        shutil.rmtree(path, ignore_errors=True)


# --- The log: one line per build, with `logging`, if the application uses it, and on stderr for RTCOMPILE_LOG

_has_warned = False


def warn_once(error: Exception) -> None:
    """Warn, once per process, that a log handler or a listener raised."""
    global _has_warned
    if not _has_warned:
        _has_warned = True
        text = f"{type(error).__name__}: {error}"
        warn(f"a log handler or a listener raised, and builds continue without it: {text}")


def announce(request: CompileRequest, code: ObjectCode, level: str | None) -> None:
    """Log a finished build at INFO with its fields as attributes, and on stderr if `level` includes it."""
    is_shown = level in _SHOWS_BUILDS
    if not is_shown and _logger() is None:
        return
    build = code.build
    outcome = f"hit ({build.hit})" if build.hit else "built"
    why = f": {build.why}" if build.why else ""
    notes = "".join(f"; {note}" for note in build.notes)
    line = (
        f"{request.name} for {code.arch} by {build.backend}, {outcome} in "
        f"{build.milliseconds:.1f} ms{why}{notes}"
    )
    names = ("backend", "hit", "why", "notes", "milliseconds")
    fields = {"program": request.name, "arch": str(code.arch), "code_bytes": len(code.code)}
    _log(line, is_shown, fields | {name: getattr(build, name) for name in names})


def note(line: str) -> None:
    """Log a line about another event at INFO, and on stderr if ``RTCOMPILE_LOG`` shows builds."""
    _log(line, os.environ.get("RTCOMPILE_LOG", "").lower() in _SHOWS_BUILDS, {})


def _log(line: str, is_shown: bool, fields: dict[str, Any]) -> None:
    if is_shown and sys.stderr is not None:
        sys.stderr.write(f"rtcompile: {line}\n")
    if logger := _logger():
        logger.info("%s", line, extra=fields)


def _logger() -> Any:
    """Return the logger, if the application has imported `logging` and wants messages at INFO."""
    if "logging" not in sys.modules:
        return None
    import logging

    named = logging.getLogger("rtcompile")
    return named if named.isEnabledFor(logging.INFO) else None

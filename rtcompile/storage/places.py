"""Where the cache is, as the environment says it. A cache hit needs no more of the settings."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rtcompile.errors import InvalidRequest, shown

__all__ = ["absolute", "cache_dir", "working_directory"]


def cache_dir(env: Mapping[str, str]) -> str:
    """Return the absolute path of the cache's directory.

    Raises
    ------
    InvalidRequest
        A variable names a home, and there is none.
    """
    explicit = env.get("RTCOMPILE_CACHE_DIR")
    if explicit:
        return _folder("RTCOMPILE_CACHE_DIR", explicit, env)
    # CUPY_CACHE_DIR moves CuPy's kernel cache to a fast or writable disk: ours follows it there.
    cupy = env.get("CUPY_CACHE_DIR")
    if cupy:
        return os.path.join(_folder("CUPY_CACHE_DIR", cupy, env), "rtcompile")
    base = env.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # its specification has a relative one ignored
        return os.path.join(base, "rtcompile")
    home = _home(env)
    if home:
        return os.path.join(home, ".cache", "rtcompile")
    temporary = env.get("TMPDIR", "")
    return os.path.join(
        temporary if os.path.isabs(temporary) else "/tmp", f"rtcompile-cache-{os.geteuid()}"
    )


def absolute(path: str) -> str:
    """Return the absolute path of what may be relative to the working directory.

    Raises
    ------
    InvalidRequest
        It is relative, and the working directory was removed.
    """
    return os.path.abspath(path if path[:1] == "/" else os.path.join(working_directory(path), path))


def working_directory(needed_by: str) -> str:
    """Return the working directory.

    Raises
    ------
    InvalidRequest
        It was removed; the message names what needs it.
    """
    try:
        return os.getcwd()
    except OSError:
        raise InvalidRequest(
            f"{shown(needed_by)} is looked up in the working directory, which was removed; change to "
            "another directory or give absolute paths"
        ) from None


def _folder(name: str, said: str, env: Mapping[str, str]) -> str:
    path = said
    if said == "~" or said.startswith("~/"):
        home = _home(env)
        if not home:
            raise InvalidRequest(f"{name}={shown(said)}: there is no home; give an absolute path")
        path = home + said[1:]
    elif said.startswith("~"):
        path = os.path.expanduser(said)  # another user's
    return absolute(path)


def _home(env: Mapping[str, str]) -> str:
    """Return the user's home: HOME, else what the system knows of the user; ``""`` where there is none."""
    home = env.get("HOME", "")
    if not os.path.isabs(home):
        import pwd

        try:
            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            return ""
        if not os.path.isdir(home):  # /nonexistent, as Debian's nobody has
            return ""
    # Containers give a user that has a number only the root as home.
    return home if home.strip("/") or not os.geteuid() else ""

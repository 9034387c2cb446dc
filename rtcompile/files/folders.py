"""The folders that the environment names, and temporary ones that only this user can enter."""

from __future__ import annotations

import os
import sys

from rtcompile.errors import InvalidRequest, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


# --- The folders that the environment names -------------------------------------------------------


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
    """Say whether there is such a folder, in a third of `os.path.isdir`'s time where there is none."""
    return os.access(f"{parent or '.'}/{name}/.", os.F_OK)


def absolute(path: str) -> str:
    """Return the absolute path, with every ``..`` kept: ``link/..`` is above the link's target."""
    full = path if path[:1] == "/" else os.path.join(working_directory(path), path)
    return full if "/.." in full else os.path.abspath(full)


def working_directory(needed_by: str) -> str:
    """Return the working directory; if it was removed, the error names what needs it."""
    try:
        return os.getcwd()
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


# --- Temporary folders that only this user can enter ----------------------------------------------


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

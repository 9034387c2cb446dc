"""Scratch directories: one per user (mode 0700), with one per zygote inside.

The user's folder is `/tmp/rtcompile-workers-UID`, or in TMPDIR. It is used only if its open descriptor shows that
this user owns it and no other has access, and nothing outside it is ever removed. A zygote locks its own folder as
long as it or a child lives. A later process removes unlocked folders; without locks, or if another machine made the
folder, it removes folders that are a day old.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

TYPE_CHECKING = False  # as type checkers know it; `typing` costs 5 ms
if TYPE_CHECKING:
    from collections.abc import Iterable

# Parents for the user's folder, tried in this order if TMPDIR is not set or unusable.
PARENTS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # the folder in it is of mode 0700, and its owner is checked

_NAME = "rtcompile-workers-"
_NAMES = 8  # names to try if other users have taken the first ones
_ZYGOTE = "zygote-"
_TRIES = 200
_PAUSE = 0.005
# Without locks, a folder counts as abandoned after this time without a write.
_UNUSED_SECONDS = 86400.0
# Errors of `memfd_create` in a sandbox that forbids it (gVisor, seccomp).
_REFUSED = (errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EINVAL)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    """A zygote's folder: its path, and the descriptors of itself and of the user's folder."""

    def __init__(self, path: str, home: int, name: str, descriptor: int) -> None:
        self.path = path
        self.home = home
        self.name = name
        self.descriptor = descriptor  # holds the lock

    def is_there(self) -> bool:
        """Return whether it still exists, since users and programs clean up TMPDIR."""
        try:
            found = os.stat(self.name, dir_fd=self.home, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(os.fstat(self.descriptor), found)

    def make_job_folder(self, name: str) -> None:
        """Make a folder with empty folders `cwd` and `tmp`."""
        os.mkdir(name, 0o700, dir_fd=self.descriptor)
        for part in ("cwd", "tmp"):
            os.mkdir(f"{name}/{part}", 0o700, dir_fd=self.descriptor)

    def enter_job_folder(self, name: str) -> None:
        """Make a job's `cwd` and `tmp` this process's working directory and TMPDIR."""
        os.chdir(os.open(f"{name}/cwd", _FOLDER, dir_fd=self.descriptor))
        os.environ["TMPDIR"] = os.path.join("..", "tmp")

    def remove_job_folder(self, name: str) -> None:
        """Remove a job's folder with its contents."""
        _remove(self.descriptor, name)

    def close(self) -> None:
        """Close the descriptors of a removed folder."""
        os.close(self.descriptor)
        os.close(self.home)

    def remove(self) -> None:
        """Remove this folder, and the leftover folders of killed zygotes."""
        _remove(self.home, self.name)
        os.close(self.descriptor)
        _sweep(self.home, "")
        os.close(self.home)
        _remove_if_empty(os.path.dirname(self.path))


def new_name() -> str:
    """Return a unique name for a zygote's folder."""
    return f"{_ZYGOTE}{_machine()}-{os.urandom(12).hex()}"


def _machine() -> str:
    """Return an identifier of this machine, since several may mount the same folder."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read(8)
    except OSError:
        return os.uname().nodename.encode().hex()[:16]


def claim(temporary: str, name: str) -> Scratch:
    """Make a zygote's folder in TMPDIR, locked as long as this process or a child lives."""
    problems = []
    for parent in _parents(temporary):
        try:
            _check_parent(parent)
            return _claim_in(parent, name)
        except OSError as error:
            problems.append(f"{parent}: {error.strerror or error}")
    raise OSError(
        f"no folder for temporary files can be used ({'; '.join(problems)}). "
        "Set TMPDIR to a folder of your own with free space."
    )


def memfd() -> int:
    """Return the descriptor of a new memfd, or of an unlinked file on disk where the system refuses one."""
    try:
        return os.memfd_create("rtcompile")
    except (AttributeError, OSError) as error:  # some builds of Python lack the function
        if isinstance(error, OSError) and error.errno not in _REFUSED:
            raise
        refused = error
    for parent in _parents(os.environ.get("TMPDIR", "")):
        path = os.path.join(parent, f"{_NAME}{os.urandom(12).hex()}")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            continue
        os.unlink(path)
        return descriptor
    raise OSError(f"neither memfd_create ({refused}) nor a temporary file is possible; set TMPDIR")


def sweep(temporary: str, own: str) -> None:
    """Remove the folders of killed zygotes; `own` belongs to a zygote that is known to have ended."""
    for parent in _parents(temporary):
        for path in _home_paths(parent):
            home = _open_home(path)
            if home is not None:
                _sweep(home, own)
                os.close(home)
                _remove_if_empty(path)


def _parents(temporary: str) -> Iterable[str]:
    return dict.fromkeys(parent for parent in (temporary, *PARENTS) if parent)


def _check_parent(parent: str) -> None:
    """Raise OSError if another user could replace this user's folder, or a shell would run its name."""
    if any(character in parent for character in '"$`'):
        raise OSError("nvcc passes its name to a shell, which would expand it")
    status = os.stat(parent)
    if status.st_uid not in (0, os.geteuid()):
        raise OSError(f"belongs to user {status.st_uid}, who could replace its contents")
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise OSError("others could replace its contents (no sticky bit)")


def _claim_in(parent: str, name: str) -> Scratch:
    for _ in range(_TRIES):
        path, home = _home(parent)
        try:
            _make_folder(name, home)
            folder = os.open(name, _FOLDER, dir_fd=home)
            found = Scratch(os.path.join(path, name), home, name, folder)
            if _lock(folder) is not False and found.is_there():
                return found
            os.close(folder)
        except FileNotFoundError:
            pass  # A sweeping process removed it, or the user's folder, before it was locked.
        except BaseException:
            os.close(home)
            raise
        os.close(home)
        time.sleep(_PAUSE)
    raise OSError(f"another process keeps removing {name}")


def _make_folder(path: str, at: int | None = None) -> None:
    try:
        os.mkdir(path, 0o700, dir_fd=at)
    except FileExistsError:
        pass


def _home(parent: str) -> tuple[str, int]:
    """Return the user's folder and its open descriptor; make it if it does not exist."""
    for path in _home_paths(parent):
        _make_folder(path)
        home = _open_home(path)
        if home is not None:
            return path, home
    raise OSError(f"{path} and the earlier candidates belong to other users")


def _home_paths(parent: str) -> list[str]:
    path = os.path.join(parent, f"{_NAME}{os.geteuid()}")
    return [path, *(f"{path}-{number}" for number in range(2, _NAMES + 1))]


def _open_home(path: str) -> int | None:
    """Open a folder if it is this user's and closed to all others."""
    try:
        descriptor = os.open(path, _FOLDER)
    except OSError:
        return None  # missing, a link, not a folder, or another user's
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
        return descriptor
    os.close(descriptor)
    return None


def _lock(descriptor: int) -> bool | None:
    """Lock a folder; False if another process has locked it, None if there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None  # some network file systems
    return True


def _sweep(home: int, own: str) -> None:
    """Remove the zygotes' folders that no process locks."""
    here = f"{_ZYGOTE}{_machine()}-"
    for name in os.listdir(home):
        if not name.startswith(_ZYGOTE):
            continue
        try:
            descriptor = os.open(name, _FOLDER, dir_fd=home)
        except OSError:
            continue  # removed just now, or not a folder
        try:
            locked = _lock(descriptor)
            unused = time.time() - os.fstat(descriptor).st_mtime
            known = name == own or (locked and name.startswith(here))
            if locked is not False and (known or unused > _UNUSED_SECONDS):
                _remove(home, name)
        finally:
            os.close(descriptor)


def _remove(folder: int, name: str) -> None:
    """Remove the file or folder of this name in an open folder, as far as possible."""
    try:
        try:
            os.unlink(name, dir_fd=folder)
            return
        except IsADirectoryError:
            descriptor = os.open(name, _FOLDER, dir_fd=folder)
        try:
            for inner in os.listdir(descriptor):
                _remove(descriptor, inner)
        finally:
            os.close(descriptor)
        os.rmdir(name, dir_fd=folder)
    except OSError:
        pass


def _remove_if_empty(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError:
        pass  # Other processes are using it.

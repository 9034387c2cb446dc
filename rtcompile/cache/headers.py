"""Checks whether the files that a build depended on are unchanged: by stat, then by content."""

from __future__ import annotations

import contextvars
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from rtcompile.core import includes
from rtcompile.core.includes import Dependencies
from rtcompile.core.request import Header, SearchDir
from rtcompile.storage import trusted
from rtcompile.storage.digest import content_digest, stat_of

if TYPE_CHECKING:
    from rtcompile.core.mentions import Mentions

__all__ = [
    "current",
    "difference",
    "file_clock_ns",
    "next_tick",
    "record",
    "refresh",
    "same",
    "settled_below",
]

# A folder whose headers, once looked at, are taken to be as they were for a second: "/cupy/include/".
# Kernels of CuPy's own follow one another and share a hundred, and to look at them is half of a hit.
settled_below: contextvars.ContextVar[str] = contextvars.ContextVar(
    "rtcompile_settled_below", default=""
)
_SETTLED_SECONDS = 1.0

_NONE = Dependencies()

_MOST_TICKING = 0.1  # seconds
_ticking = threading.Lock()  # held by the one thread of a batch that waits for the clock


def file_clock_ns() -> int:
    """Return the time (ns since the epoch) that a file changed now would get, in steps of 4 ms."""
    # 5 is CLOCK_REALTIME_COARSE, for which the time module has no constant.
    return time.clock_gettime_ns(5)


def next_tick() -> int:
    """Return the time, once the file clock has reached it (4 ms at most).

    A header written before it carries an earlier time, one written from now on a later one. Since
    Linux 6.13 a file's time may be finer than the file clock, and so ahead of it.
    """
    now = time.time_ns()
    deadline = time.monotonic() + _MOST_TICKING
    with _ticking:
        while (tick := file_clock_ns()) < now:
            if time.monotonic() > deadline:
                return tick  # The clock was set back, and with it the times of files.
            time.sleep(0.0005)
    return now


def _after_fork() -> None:
    global _ticking
    _ticking = threading.Lock()  # A thread of the parent may hold it.


os.register_at_fork(after_in_child=_after_fork)


# --- recording -------------------------------------------------------------------------------


# Memo of the dependencies of this process's builds. Variants of one template read the same headers,
# so that of 32 CuTe kernels 31 need not compute them, which takes 8 ms each.
_recorded: dict[tuple[object, ...], Dependencies] = {}
_MOST_RECORDED = 64


def record(
    trace: Iterable[str],
    search: Sequence[SearchDir],
    *,
    source: str = "",
    name: str = "",
    before: Dependencies = _NONE,
) -> Dependencies:
    """Read, hash and stat the headers of a build, and note the files that must not appear.

    Parameters
    ----------
    trace : iterable of str
        Paths that the compiler read, as it spelled them.
    search : sequence of SearchDir
        The directories that this compiler searched, in order.
    source, name : str
        The translation unit: its own includes and ``__has_include`` are looked at too.
    before : Dependencies
        The dependencies of the precompiled header that replaced the beginning of `trace`. They were
        checked after the build began, so those headers are not read again.

    Returns
    -------
    Dependencies
        `uncacheable` is set if they cannot be checked later.
    """
    from rtcompile.core.mentions import scan  # a hit needs none of its regular expressions

    mentions = scan(source)
    trace = tuple(trace)
    if before.headers:
        return _record(trace, search, mentions, os.path.dirname(name), before)
    key = (trace, tuple(search), mentions, os.path.dirname(name))
    known = _recorded.get(key)
    if known is not None and same(known):
        probed = [_changed_ns(path) for path in known.present]
        led = _led_ns(trace, search)
        return known._replace(newest_ns=max([known.newest_ns, led, *probed]))
    found = _record(trace, search, mentions, os.path.dirname(name), before)
    if not found.uncacheable:
        if len(_recorded) >= _MOST_RECORDED:
            _recorded.clear()
        _recorded[key] = found
    return found


def _changed_ns(path: str) -> int:
    try:
        status = os.stat(path)
    except OSError:
        return 0
    return 0 if stat.S_ISDIR(status.st_mode) else status.st_ctime_ns


def _led_ns(trace: Iterable[str], search: Sequence[SearchDir]) -> int:
    """Return when a link or a folder on the way to these files last came to lead elsewhere.

    A header keeps its times when ``current -> v1`` becomes ``current -> v2``, or when another folder
    takes the place of its own. A link is new then, and a folder that was renamed has been changed
    since something in it was: what comes and goes in it changes both of its times to the same.
    """
    newest = 0
    looked: set[str] = set()
    ahead = [*trace, *(directory.path for directory in search)]
    while ahead:
        path = ahead.pop()
        while path not in looked and path.startswith("/"):
            looked.add(path)
            try:
                status = os.lstat(path)
                if stat.S_ISLNK(status.st_mode):
                    newest = max(newest, status.st_ctime_ns)
                    ahead.append(os.path.join(os.path.dirname(path), os.readlink(path)))
                elif stat.S_ISDIR(status.st_mode) and status.st_ctime_ns != status.st_mtime_ns:
                    newest = max(newest, status.st_ctime_ns)
            except OSError:
                pass  # a folder that does not exist: what must not appear there is looked for
            path = os.path.dirname(path)
    return newest


def _record(
    trace: Sequence[str],
    search: Sequence[SearchDir],
    own: Mentions,
    own_directory: str,
    before: Dependencies,
) -> Dependencies:
    from rtcompile.core.mentions import scan

    now = file_clock_ns()
    headers: list[Header] = []
    own_path = dict.fromkeys(before.own_path)
    texts: list[tuple[str, Mentions]] = [(own_directory, own)]
    read = dict.fromkeys(trace)
    place = includes.placing(search)
    precompiled = {header.path for header in before.headers}
    for path in read:
        if path in precompiled:
            continue
        if not path.startswith("/"):
            return Dependencies(uncacheable=f"header {path} was found by a relative path")
        try:
            header, mentions = _read(path, now, scan)
        except OSError as error:
            return Dependencies(
                uncacheable=f"header {path} cannot be read: {error.strerror or error}"
            )
        position, relative = place(path)
        label = search[position].label if position >= 0 else ""
        header = header._replace(label=label, relative=relative)
        headers.append(header)
        texts.append((os.path.dirname(path), mentions))
        if mentions.own_path:
            own_path[header.label] = None

    probes = _Probes(search, before)
    # A macro may have included any of the headers, also one from the precompiled header.
    names = (
        []
        if not any(said.computed for _, said in texts)
        else [name for path in read for _, name in includes.spellings(path, search)]
    )
    for header in headers:
        for position, name in includes.spellings(header.path, search):
            for directory in probes.directories[:position]:
                probes.must_not_appear(directory, name)
    uncacheable = ""
    for directory, mentions in texts:
        if directory.startswith("/"):  # the compiler's own working directory is empty
            for quoted in (*mentions.quoted, *(names if mentions.computed else ())):
                if f"{directory}/{quoted}" not in read:
                    probes.must_not_appear(directory, quoted)
        for asked in mentions.asked:
            if asked[0] in '<"':
                probes.ask(directory if asked[0] == '"' else "", asked[1:-1])
            else:
                uncacheable = f"what __has_include({asked}) asks for is computed"
        if mentions.clock:
            uncacheable = f"{mentions.clock} is different in every build"

    if probes.unreadable:  # the compiler went on to the next directory
        uncacheable = f"{probes.unreadable} comes first in the search and may not be read"
    changed = [header.ctime_ns for header in headers]
    changed += [probes.newest_ns, _led_ns([*trace, *probes.found()], search)]
    return Dependencies(
        # Builds that read only the precompiled header share this very tuple.
        headers=before.headers + tuple(_distrust(header, now) for header in headers),
        absent=tuple(probes.absent),
        present=tuple(probes.present),
        answers=tuple(sorted(probes.answers)),
        newest_ns=max(changed),
        own_path=tuple(own_path),
        uncacheable=uncacheable,
    )


class _Probes:
    """The paths that must stay absent or present for a build's result to stay the same."""

    def __init__(self, search: Sequence[SearchDir], before: Dependencies) -> None:
        self.directories = [directory.path.rstrip("/") for directory in search]
        self.absent = dict.fromkeys(before.absent)
        self.present = dict.fromkeys(before.present)
        self.answers = set(before.answers)
        self.newest_ns = 0
        self.unreadable = ""
        self._search = search
        self._looked: set[tuple[str, str]] = set()
        self._there: dict[str, bool] = {}

    def must_not_appear(self, directory: str, name: str) -> None:
        """Note that no file may appear there, as the first ancestor folder that does not exist.

        A missing ``user0/cute`` stands for every header below it, which reduces CuTe's 770
        candidates to a few tens.
        """
        if (directory, name) in self._looked:
            return
        self._looked.add((directory, name))
        path = directory
        for part in (".", *name.split("/")):
            path = f"{path}/{part}" if part != "." else path
            probe = f"{path}/." if part == "." else path
            if not self._exists(probe):
                self.absent[probe] = None
                return
        if os.path.isdir(path):  # a folder is no header, but a file could replace it
            self.present[f"{path}/."] = None
        elif not os.access(path, os.R_OK):
            self.unreadable = path

    def ask(self, own_directory: str, name: str) -> None:
        """Note what ``__has_include`` finds for `name`, in every directory and not just the first.

        Only the compiler knows which one counts, since ``__has_include_next`` starts further down.
        """
        own = [own_directory] if own_directory.startswith("/") else []
        for directory in [""] if name.startswith("/") else [*own, *self.directories]:
            path = f"{directory}/{name}" if directory else name
            if self._exists(path):
                self.present[path] = None
                position, rest = includes.place(path, self._search)
                label = self._search[position].label if position >= 0 else ""
                self.answers.add(f"{label}/{rest}")
            else:
                self.must_not_appear(directory, name)

    def found(self) -> list[str]:
        """Return the paths that exist."""
        return [path for path, there in self._there.items() if there]

    def _exists(self, path: str) -> bool:
        there = self._there.get(path)
        if there is None:
            try:
                status = os.stat(path)
            except OSError:
                there = False
            else:
                there = True
                if not os.path.isdir(path):
                    self.newest_ns = max(self.newest_ns, status.st_ctime_ns)
            self._there[path] = there
        return there


# Memo of headers by path, since a process's builds share the toolkit's headers. Reading, hashing
# and scanning CuTe's takes 60 ms, a stat of each 1 ms.
_read_before: dict[str, tuple[Header, Mentions]] = {}
_MOST_READ = 8192


def _read(path: str, now_ns: int, scan: Callable[[str], Mentions]) -> tuple[Header, Mentions]:
    before = _read_before.get(path)
    if before is not None and stat_of(os.stat(path)) == before[0][4:]:
        header, mentions = before
    else:
        header, data = _contents(path)
        mentions = scan(data.decode("utf-8", "surrogateescape"))
        if len(_read_before) >= _MOST_READ:
            _read_before.clear()
        _read_before[path] = _distrust(header, now_ns), mentions
    return header, mentions


def _contents(path: str) -> tuple[Header, bytes]:
    # Refuses named pipes and devices, whose reading may never end. The status is read before the
    # bytes, so that a change in between is noticed at the next check.
    descriptor, status = trusted.open_regular(path)
    with open(descriptor, "rb", buffering=0) as file:
        data = file.read()
    return Header(path, "", path, content_digest(data), *stat_of(status)), data


def _distrust(header: Header, now_ns: int) -> Header:
    """Forget the times of a header that could still change without changing them.

    Two edits within one tick of the clock leave the same time. Without a recorded time the next
    check reads the file.
    """
    if max(header.mtime_ns, header.ctime_ns) < now_ns:
        return header
    return header._replace(mtime_ns=0, ctime_ns=0)


# --- checking --------------------------------------------------------------------------------


def same(dependencies: Dependencies) -> bool:
    """Say by stat alone whether every file is as it was recorded. 392 headers: 0.7 ms."""
    if settled_below.get():
        try:
            unchanged = all(_look(header.path) == header[4:] for header in dependencies.headers)
        except OSError:
            return False
        return unchanged and _probes_hold(dependencies)
    os_stat = os.stat
    try:
        for path, _, _, _, size, mtime_ns, ctime_ns, inode in dependencies.headers:
            status = os_stat(path)
            if (
                status.st_mtime_ns != mtime_ns
                or status.st_ctime_ns != ctime_ns
                or status.st_size != size
                or status.st_ino != inode
            ):
                return False
    except OSError:
        return False
    return _probes_hold(dependencies)


_looked: dict[str, tuple[float, tuple[int, int, int, int]]] = {}  # when, and what was found


def _look(path: str) -> tuple[int, int, int, int]:
    """Return a header's stat; one of a moment ago below `settled_below`."""
    below = settled_below.get()
    if not (below and path.startswith(below)):
        return stat_of(os.stat(path))
    now = time.monotonic()
    known = _looked.get(path)
    if known is None or now - known[0] >= _SETTLED_SECONDS:
        if len(_looked) >= _MOST_READ:
            _looked.clear()
        known = _looked[path] = now, stat_of(os.stat(path))
    return known[1]


def _probes_hold(dependencies: Dependencies) -> bool:
    # access() raises no error, and so takes half the time of a stat that fails.
    return not any(map(os.access, dependencies.absent, repeat(os.F_OK))) and all(
        map(os.access, dependencies.present, repeat(os.F_OK))
    )


def refresh(dependencies: Dependencies) -> Dependencies | None:
    """Return the dependencies with current stats if every content is as recorded, else None."""
    if not _probes_hold(dependencies):
        return None
    headers = []
    for header in dependencies.headers:
        fresh = _again(header)
        if fresh is None or fresh.digest != header.digest:
            return None
        headers.append(fresh)
    return dependencies._replace(headers=tuple(headers))


# Headers read already, which many builds of a cluster or of CuPy share, by label, name and path.
_hashed: dict[tuple[str, str, str], Header] = {}


def _again(header: Header) -> Header | None:
    """Return the header as it is now, read only if its stat differs; None if it cannot be read."""
    path = header.path
    try:
        stat = _look(path)
        if stat == header[4:]:
            return header
        which = header.label, header.relative, path
        fresh = _hashed.get(which)
        if fresh is None or stat != fresh[4:]:
            now = file_clock_ns()
            read = _distrust(_contents(path)[0], now)
            fresh = read._replace(label=header.label, relative=header.relative)
            if len(_hashed) >= _MOST_READ:
                _hashed.clear()
            _hashed[which] = fresh
    except OSError:
        return None
    return fresh


def current(dependencies: Dependencies) -> Dependencies | None:
    """Return the dependencies, with current stats, if the build would read the same bytes now."""
    return dependencies if same(dependencies) else refresh(dependencies)


def difference(dependencies: Dependencies) -> str:
    """Describe the first difference, ``"header /x/foo.h changed"``; ``""`` if there is none."""
    for header in dependencies.headers:
        fresh = _again(header)
        if fresh is None:
            return f"header {header.path} is gone"
        if fresh.digest != header.digest:
            return f"header {header.path} changed"
    for path in dependencies.absent:
        if os.access(path, os.F_OK):
            return f"new file {path} comes first in the search, or answers a __has_include"
    for path in dependencies.present:
        if not os.access(path, os.F_OK):
            return f"{path.removesuffix('/.')} is gone"
    return ""

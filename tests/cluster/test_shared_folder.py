"""Tests of a folder that nodes and users share, also on a network file system."""

import errno
import os
import stat
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("zstandard")

import rtcompile
from rtcompile.checkup import checks
from rtcompile.extras.cluster.entries import BadEntryError, LeasesUnsupportedError, RemoteSettings
from rtcompile.extras.cluster.folder_store import FolderStore
from rtcompile.extras.cluster.stores import current
from rtcompile.settings import Settings
from tests import nodes, users
from tests.jobs import at_once

TEAM, ONE, ANOTHER = 54330, 54331, 54332


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(f"file://{tmp_path}/shared", RemoteSettings(()))


@pytest.fixture
def kept(store: FolderStore) -> FolderStore:
    store.put("object/k", b"before")
    return store


def failing(real: Callable[..., object], code: int, name: str, times: int = 99) -> object:
    """Return a function of `os` that fails for paths that end in `name`."""
    left = [times]

    def fail(path: object, *args: object, **more: object) -> object:
        target = str(args[0]) if args and isinstance(args[0], str) else str(path)
        if (str(path).endswith(name) or target.endswith(name)) and left[0]:
            left[0] -= 1
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *args, **more)

    return fail


LOST = [pytest.param(getattr(errno, name), id=name) for name in ("ESTALE", "EBUSY", "ENOENT")]


@pytest.mark.parametrize("code", LOST)
def test_losing_the_race_to_write_is_not_an_error(kept, monkeypatch, code):
    monkeypatch.setattr(os, "replace", failing(os.replace, code, "object/k"))

    kept.put("object/k", b"after")

    assert kept.get("object/k") == b"before"
    assert os.listdir(Path(kept.name[7:]) / "object") == ["k"]


@pytest.mark.parametrize("code", LOST)
def test_a_file_that_disappears_is_a_miss(kept, monkeypatch, code):
    monkeypatch.setattr(os, "open", failing(os.open, code, "object/k"))
    assert kept.get("object/k") is None


def test_a_file_that_was_replaced_while_being_read_is_read_again(kept, monkeypatch):
    monkeypatch.setattr(os, "open", failing(os.open, errno.ESTALE, "object/k", times=1))
    assert kept.get("object/k") == b"before"


def test_entries_cached_as_missing_by_nfs_are_looked_up_on_the_server(kept, monkeypatch):
    """NFS caches for up to a minute that a path was missing, unless its folder is opened."""
    top = kept.name[7:]
    known_missing = {f"{top}/object/k", f"{top}/object", top}
    real = os.open

    def opened(path: str, *args: int, **more: int) -> int:
        if path in known_missing:
            raise FileNotFoundError(errno.ENOENT, "as remembered", path)
        known_missing.difference_update(
            name for name in [*known_missing] if os.path.dirname(name) == path
        )
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", opened)
    assert kept.get("object/k") == b"before"


def test_nodes_that_create_the_folder_at_once_lose_no_entry(tmp_path):
    """Renaming a folder onto an empty one would lose files written to the latter meanwhile."""
    nodes = [FolderStore(f"file://{tmp_path}/shared", RemoteSettings(())) for _ in range(8)]
    start = threading.Barrier(len(nodes))

    def write(number: int) -> None:
        start.wait()
        nodes[number].put(f"object/{number}", b"bytes")

    at_once(*(partial(write, number) for number in range(len(nodes))))
    assert all(nodes[0].get(f"object/{number}") for number in range(len(nodes)))


@pytest.mark.needs_compiler
@pytest.mark.parametrize("code", LOST)
def test_a_build_continues_silently_if_another_node_was_faster(on, tmp_path, monkeypatch, code):
    on("a", f"file://{tmp_path}/shared")
    for name in ("replace", "link"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, failing(real, code, ""))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rtcompile.compile(nodes.source(1), arch="sm_80").build.hit is None
        assert current().flush(10.0)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ELOOP, errno.EISDIR])
def test_one_file_that_cannot_be_read_is_one_bad_entry(kept, monkeypatch, code):
    monkeypatch.setattr(os, "open", failing(os.open, code, "object/k"))
    with pytest.raises(BadEntryError, match=f"object/k: {os.strerror(code)}"):
        kept.get("object/k")


def test_a_store_that_cannot_be_read_at_all_is_an_error(kept, monkeypatch):
    monkeypatch.setattr(os, "open", failing(os.open, errno.EIO, ""))
    monkeypatch.setattr(os, "listdir", failing(os.listdir, errno.EIO, ""))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        kept.get("object/k")


def test_a_folder_or_link_under_an_entrys_path_is_harmless(store):
    top = Path(store.name[7:])
    (top / "object").mkdir(parents=True)
    (top / "object" / "folder").mkdir()
    (top / "object" / "link").symlink_to("/etc/passwd")
    os.mkfifo(top / "object" / "pipe")
    with open(top / "object" / "large", "wb") as file:
        file.truncate(3 << 30)
    for name in ("folder", "link", "pipe", "large"):
        with pytest.raises(BadEntryError):
            store.get(f"object/{name}")


def test_a_shared_build_is_synced_to_the_disk(store, monkeypatch):
    synced = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(stat.S_IFMT(os.fstat(descriptor).st_mode))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    store.put("object/k", b"bytes")
    assert synced == [stat.S_IFREG, stat.S_IFDIR]
    store.create("f/lease/k", b"mine")  # a build waits for this call
    store.put("f/lease/k", b"mine")
    assert len(synced) == 2


# --- a server that is gone ------------------------------------------------------------------------


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Calls to the shared folder do not return, as with an NFS server that is gone."""
    back = threading.Event()
    real = os.open

    def hang(path: object, *args: int, **more: int) -> int:
        if f"{tmp_path}/shared" in str(path):
            back.wait(30.0)
        return real(path, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", hang)
    yield
    back.set()


@pytest.mark.takes_seconds
def test_a_server_that_is_gone_costs_a_second_one_warning_and_no_build(on, tmp_path, gone):
    on("a", f"file://{tmp_path}/shared")
    stores = current()
    begin = time.monotonic()
    with pytest.warns(rtcompile.RtcompileWarning, match=r"no reply in 1 s") as warned:
        found = [stores.levels[0].get("object", str(number)) for number in range(20)]
    assert time.monotonic() - begin < 20 * 0.75  # instead of 20 waits
    assert (found, len(warned)) == ([None] * 20, 1)


@pytest.mark.takes_seconds
def test_doctor_names_a_server_that_is_gone(on, tmp_path, gone):
    on("a", f"file://{tmp_path}/shared")
    (check,) = checks.shared_stores(Settings.from_environ())
    assert (check.status, "no reply" in check.detail) == ("error", True)


# --- users ----------------------------------------------------------------------------------------


def as_member(user: int, act: Callable[[], object]) -> None:
    """Run `act` as a user of the group TEAM, with a umask that must have no effect."""
    users.as_user(user, act, groups=(TEAM,), umask=0o077)


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The group's folder as the working directory, since other users may not reach it by its path."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as two users")
    folder = tmp_path / "team"
    folder.mkdir()
    os.chown(folder, -1, TEAM)
    folder.chmod(0o2770)
    monkeypatch.chdir(folder)
    return "/proc/self/cwd/kernels"


def test_two_users_of_a_group_read_and_replace_each_others_files(ground):
    store = FolderStore(f"file://{ground}", RemoteSettings(()))

    def first() -> None:
        store.put("object/k", b"one's")
        assert store.create("f/lease/k", b"one")

    def second() -> None:
        assert store.get("object/k") == b"one's"
        store.put("object/k", b"another's")
        store.put("manifest/k", b"another's")
        store.put("f/lease/k", b"another")
        assert not store.create("f/lease/k", b"third")

    as_member(ONE, first)
    as_member(ANOTHER, second)
    as_member(ONE, lambda: _equal(store.get("object/k"), b"another's"))
    for folder in (ground, f"{ground}/object", f"{ground}/manifest", f"{ground}/f/lease"):
        found = os.stat(folder)
        assert (found.st_mode & 0o7777, found.st_gid) == (0o2770, TEAM)
    assert os.stat(f"{ground}/object/k").st_mode & 0o777 == 0o440


def test_without_the_groups_bits_another_user_cannot_read(ground):
    os.chmod(".", 0o777)
    store = FolderStore(f"file://{ground}", RemoteSettings(()))

    def second() -> None:
        with pytest.raises((OSError, BadEntryError), match="Permission denied"):
            store.get("object/k")

    as_member(ONE, lambda: store.put("object/k", b"one's"))
    as_member(ANOTHER, second)


def _equal(found: object, wanted: object) -> None:
    assert found == wanted


def test_stores_without_links_report_that_they_have_no_leases(store, monkeypatch):
    monkeypatch.setattr(os, "link", failing(os.link, errno.EOPNOTSUPP, ""))
    with pytest.raises(LeasesUnsupportedError):
        store.create("f/lease/k", b"t")

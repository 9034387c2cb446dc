"""Tests of two users and one cache: no user gets the code of another."""

import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rtcompile.compilers import observed
from rtcompile.files.sealed import seal, unseal
from rtcompile.store.folder import Folder
from tests.key_inputs import make_key_inputs, make_object, open_store
from tests.trials.record import record
from tests.users import as_user

VICTIM, ATTACKER = 54321, 54322
KINDS = ("objects", "records", "toolchains")

two_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")


@pytest.fixture
def ground(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for all users like /tmp, as the working directory, since users may not reach it by its path."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        monkeypatch.chdir(folder)
        # Modules that are imported late may be in root's home.
        fill(Path("rehearsal"), b"")
        assert found(Path("rehearsal")) == ["", ""]
        yield Path()
        monkeypatch.undo()


WANTED = make_key_inputs(source="wanted")


def fill(cache: Path, code: bytes) -> None:
    """Keep a build and a toolchain, which names libraries that a process loads."""
    kept = open_store(cache)
    with kept.building(WANTED):
        kept.add(WANTED, make_object(code), observed.record((), ()))
    Folder(str(cache)).publish("toolchains", "key", seal("toolchain", "key", [code]))


def found(cache: Path) -> list[str]:
    """Return whose build and whose toolchain is found."""
    obj = open_store(cache).find(WANTED)
    toolchain = Folder(str(cache)).decoded("toolchains", "key", partial(unseal, "toolchain"))
    return [*([obj.code.decode()] if obj else ()), *(each.decode() for each in toolchain or ())]


def own_folder(cache: Path) -> None:
    """Give the whole cache to the attacker."""
    as_user(ATTACKER, lambda: (fill(cache, b"planted"), os.chmod(cache, 0o777), open_up(cache)))


def open_up(cache: Path) -> None:
    for path in cache.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)


def in_a_folder_for_all(cache: Path) -> None:
    """Put the cache into a sticky folder in which the attacker created it first."""
    cache.mkdir()
    cache.chmod(0o1777)
    as_user(ATTACKER, lambda: (fill(cache, b"planted"), open_up(cache)))


def once_open(cache: Path) -> None:
    """Let the victim's cache have been open to all earlier."""
    as_user(VICTIM, lambda: (fill(cache, b"right"), os.chmod(cache, 0o777), open_up(cache)))
    as_user(
        ATTACKER,
        lambda: (fill(cache.with_name("his"), b"planted"), open_up(cache.with_name("his"))),
    )
    for kind in KINDS:
        for path in (cache.with_name("his") / kind).iterdir():
            target = cache / kind / path.name

            def plant(path: Path = path, target: Path = target) -> None:
                data = path.read_bytes()
                target.unlink(missing_ok=True)
                target.write_bytes(data)

            as_user(ATTACKER, plant)
    as_user(VICTIM, lambda: [p.chmod(0o700) for p in (cache, *cache.iterdir())])


def linked_once_open(cache: Path) -> None:
    """Likewise, with a second link to a file that the victim owns and the attacker wrote."""
    once_open(cache)
    for kind in KINDS:
        for path in (cache.with_name("his") / kind).iterdir():
            given = cache.with_name(f"given {kind}")
            given.write_bytes(path.read_bytes())
            os.chown(given, VICTIM, VICTIM)
            given.chmod(0o600)
            (cache / kind / path.name).unlink(missing_ok=True)
            os.link(given, cache / kind / path.name)


def swapped_folder(cache: Path) -> None:
    """Let everybody write to the parent of the victim's folders, and the attacker exchange two of them."""
    as_user(VICTIM, lambda: (fill(cache, b"right"), os.chmod(cache, 0o777)))
    his = cache.with_name("his")
    as_user(ATTACKER, lambda: (fill(his, b"planted"), open_up(his)))

    def exchange() -> None:
        for kind in KINDS:
            os.rename(cache / kind, cache / f"{kind}-away")
            os.rename(his / kind, cache / kind)

    as_user(ATTACKER, exchange)


def linked_folder(cache: Path) -> None:
    """Use a folder of the attacker whose entries are links to the victim's folders and to the attacker's."""
    his = cache.with_name("his")
    as_user(ATTACKER, lambda: (fill(his, b"planted"), open_up(his)))
    his.chmod(0o755)
    as_user(ATTACKER, lambda: os.mkdir(cache))
    for kind in KINDS:
        as_user(ATTACKER, partial(os.symlink, f"../his/{kind}", cache / kind))


@two_users
@pytest.mark.parametrize(
    "plant",
    [own_folder, in_a_folder_for_all, once_open, linked_once_open, swapped_folder, linked_folder],
)
def test_files_planted_by_another_user_are_not_found(ground, plant):
    cache = ground / "cache"
    plant(cache)
    seen = as_user(VICTIM, lambda: found(cache))
    record("build or toolchain planted by another user", 2, seen.count("planted"))
    assert "planted" not in seen


@two_users
def test_roots_read_only_cache_serves_all_users(ground):
    cache = ground / "cache"
    fill(cache, b"right")
    for i, path in enumerate([cache, *cache.rglob("*")]):
        path.chmod(0o755 if path.is_dir() else 0o644)
        if path.is_file():  # layers of container images share files by hard links
            os.link(path, ground / f"shared {i}")
    assert as_user(VICTIM, lambda: found(cache)) == ["right", "right"]


@two_users
def test_the_systems_temporary_folder_keeps_its_mode(ground):
    fill(ground, b"root's")
    assert ground.stat().st_mode & 0o7777 == 0o1777
    assert as_user(VICTIM, lambda: found(ground)) == []

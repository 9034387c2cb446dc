"""Another user exchanges the folders of a cache while its owner compiles: no kernel contains that user's text."""

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import rtcompile
from rtcompile import toolkit
from rtcompile.compilers import pch
from rtcompile.files import sealed
from rtcompile.lookup import environment
from rtcompile.store.folder import FOLDERS
from tests.trials.record import tally, times
from tests.trials.test_cache_users import ATTACKER, VICTIM, two_users
from tests.users import as_user

pytestmark = two_users
TEAM = 54400
OURS, HIS = "4242", "6666"
MODES = pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777], ids="{:o}".format)
SOURCE = '#include "value.h"\n__global__ void k%d(int* p) { *p = VALUE; }\n'


@pytest.fixture
def ground(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for all users, like /tmp."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        (folder / "include").mkdir()
        (folder / "include" / "value.h").write_text(f"#define VALUE {OURS}\n")
        monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(folder / "cache"))
        yield folder


def make_cache(ground: Path, mode: int, owner: int = VICTIM) -> Path:
    """Return a cache whose mode lets the attacker write to it."""
    cache = ground / "cache"
    for path in (cache, *(cache / kind for kind in FOLDERS)):
        path.mkdir(mode=0o700, exist_ok=True)
        os.chown(path, owner, owner)
    os.chown(cache, owner, TEAM)
    cache.chmod(mode)
    return cache


def exchange(cache: Path, until: Path) -> None:
    """Replace the victim's folders by ones with another text of the header, and restore them, repeatedly."""
    mine = cache.parent / "mine"
    for kind in FOLDERS:
        (mine / kind).mkdir(parents=True)
        (mine / kind / "value.h").write_text(f"#define VALUE {HIS}\n")
    while not until.exists():
        for kind in FOLDERS:
            with suppress(OSError):
                os.rename(cache / kind, cache / f"{kind}-away")
                os.rename(mine / kind, cache / kind)
        time.sleep(0.02)
        for kind in FOLDERS:
            with suppress(OSError):
                os.rename(cache / kind, mine / kind)
                os.rename(cache / f"{kind}-away", cache / kind)


def build(ground: Path, number: int, backend: str, way: str) -> str:
    """Build as the victim, who is root here; return whose text the kernel contains."""
    include = f"-I{ground}/include"
    given = {"headers": {"value.h": f"#define VALUE {OURS}\n"}} if way == "headers" else {}
    options = ("-lineinfo",) if way == "headers" else ("-lineinfo", include)
    environment.forget()
    ptx = rtcompile.compile(
        SOURCE % number, options=options, arch="sm_80", target="ptx", backend=backend, **given
    ).code
    return "his" if HIS.encode() in ptx else "ours" if OURS.encode() in ptx else "nobody's"


@pytest.mark.filterwarnings("ignore")  # there are warnings that the cache is not used
@pytest.mark.some
@MODES
@pytest.mark.parametrize("way", ["headers", "folder"])
@pytest.mark.parametrize("backend", ["nvrtc", "nvcc"])
def test_no_kernel_contains_text_that_another_user_put_into_the_cache(ground, mode, way, backend):
    found = toolkit.current()
    if backend == "nvcc" and (found.nvcc is None or found.host_compiler is None):
        pytest.skip("nvcc and a host compiler are needed")
    cache, stop = make_cache(ground, mode, owner=0), ground / "stop"
    attack = threading.Thread(
        target=as_user,
        args=(ATTACKER, lambda: exchange(cache, stop)),
        kwargs={"groups": (TEAM,), "seconds": 400},
    )
    attack.start()

    try:
        outcomes = [build(ground, n, backend, way) for n in range(times(2, 20))]
    finally:
        stop.touch()
        attack.join()
    with tally("kernel built while another user exchanges the cache's folders") as trial:
        for outcome in outcomes:
            with trial():
                assert outcome == "ours"


@MODES
@pytest.mark.parametrize("above", [False, True], ids=["the cache", "a folder above it"])
def test_a_compiler_gets_no_path_that_another_user_can_redirect(ground, mode, above):
    cache = make_cache(ground, mode)
    if above:
        below = cache / "below"
        below.mkdir()
        os.chown(below, VICTIM, VICTIM)
        below.chmod(0o700)
        cache = below

    used = as_user(VICTIM, lambda: pch.has_private_folder(str(cache)))
    assert used is (mode == 0o1777)


def test_what_another_user_can_replace_is_not_trusted(ground):
    his, cache = ground / "his", ground / "his" / "cache"
    cache.mkdir(parents=True)
    os.chown(his, ATTACKER, ATTACKER)
    os.chown(cache, VICTIM, VICTIM)
    assert as_user(VICTIM, lambda: sealed.can_be_swapped(str(cache)))
    cache, link = make_cache(ground, 0o700), ground / "link"
    link.symlink_to(cache)
    paths = str(link), f"{link}/../{cache.name}"
    found = lambda: [*map(sealed.can_be_swapped, paths)]  # noqa: E731
    assert as_user(VICTIM, found) == [False, False]
    os.chown(link, ATTACKER, ATTACKER, follow_symlinks=False)
    assert as_user(VICTIM, found) == [True, True]
    # A group with only the user is trusted.
    (ground / "home").mkdir()
    (ground / "home").chmod(0o775)  # it belongs to root and root's group
    assert not sealed.can_be_swapped(str(ground / "home/cache"))
    os.chown(ground / "home", 0, TEAM)
    assert sealed.can_be_swapped(str(ground / "home/cache"))

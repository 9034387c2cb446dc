"""Tests of the folder for workers' files: it is private, and only leftovers of killed owners are removed."""

import errno
import fcntl
import os
import re
import shutil
import threading
from pathlib import Path

import pytest

from rtcompile import toolkit
from rtcompile.request.units import Limits
from rtcompile.workers import system as scratch
from rtcompile.workers.pool import Job, JobResult
from rtcompile.workers.system import Scratch
from tests.jobs import Pool
from tests.processes import python

PREFIX = f"rtcompile-workers-{os.geteuid()}-"
DAY = 86400


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TMPDIR that is the only temporary folder."""
    folder = tmp_path / "parent"
    folder.mkdir(mode=0o700)  # independent of the umask
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(scratch, "PARENTS", ())
    return folder


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of the user with a file."""
    folder = tmp_path / "precious"
    folder.mkdir(mode=0o700)
    (folder / "thesis.tex").write_text("ten years")
    return folder


def claim(parent: Path) -> Scratch:
    return scratch.claim(str(parent), scratch.new_name())


def killed(owner: Scratch) -> Path:
    """Return the leftover folder of a killed zygote, whose lock the kernel has released."""
    os.close(owner.descriptor)
    return Path(owner.path)


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a file system without flock, as some network file systems."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.parametrize("locks", ["locks", "no_locks"])
def test_a_folder_is_private_and_removed_with_its_zygote(parent, locks, request):
    if locks == "no_locks":
        request.getfixturevalue(locks)
    owner = claim(parent)
    (Path(owner.path) / "1").mkdir()
    assert Path(owner.path).stat().st_mode & 0o777 == 0o700
    owner.remove()
    assert list(parent.iterdir()) == []


def test_a_temporary_folder_is_removed_with_its_process(parent):
    script = """
        import os
        from rtcompile import settings as temporary
        folder = temporary.temporary_folder("notebook")
        if os.fork() == 0:
            raise SystemExit
        os.wait()
        print(os.path.basename(folder), os.path.isdir(folder))
    """
    stdout = python(
        script, environ={"PYTHONPATH": str(Path(__file__).parents[2])}, check=True
    ).stdout
    assert re.fullmatch(r"rtcompile-notebook-\w+ True\n", stdout)
    assert list(parent.iterdir()) == []


@pytest.mark.needs_compiler
@pytest.mark.parametrize("is_loaded", [False, True], ids=["no library", "NVRTC"])
def test_a_pool_survives_emptying_tmpdir(parent, is_loaded):
    loads = toolkit.current().require_nvrtc().to_load() if is_loaded else ""
    job = {"command": ["/bin/true"], "environ": {}, "files": {}, "results": []}
    pool = Pool(jobs=1)
    try:
        for _ in range(3):
            ran = pool.run(Job("rtcompile.workers.zygote:run", job, loads), Limits())
            assert isinstance(ran, JobResult)
            assert ran.value["status"] == 0
            while list(parent.iterdir()):  # the zygote may also be removing the job's folder
                for folder in parent.iterdir():
                    shutil.rmtree(folder, ignore_errors=True)
    finally:
        pool.close()
    assert list(parent.iterdir()) == []


def test_what_is_locked_is_in_use(parent):
    alive = claim(parent)
    os.utime(alive.path, (0, 0))
    scratch.sweep(str(parent), "")
    claim(parent).remove()
    assert Path(alive.path).exists()


# The lock of another machine may be visible only there, as on NFS with `nolock`.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(f"{PREFIX}00000000-000000000000000000000000", id="of another machine"),
        pytest.param("", id="without locks"),
    ],
)
def test_a_folder_whose_lock_says_nothing_is_kept_for_a_day_except_by_its_caller(
    parent, name, request
):
    if not name:
        request.getfixturevalue("no_locks")
    theirs = killed(scratch.claim(str(parent), name or scratch.new_name()))
    scratch.sweep(str(parent), "")
    assert theirs.exists()
    os.utime(theirs, (theirs.stat().st_mtime - 2 * DAY,) * 2)
    scratch.sweep(str(parent), "")
    assert not theirs.exists()
    if not name:
        own = killed(claim(parent))
        scratch.sweep(str(parent), own.name)
        assert not own.exists()


def test_a_link_in_a_leftover_folder_is_removed_and_not_followed(parent, precious):
    dead = claim(parent)
    (Path(dead.path) / "1").mkdir()
    left = killed(dead)
    (left / "1" / "link").symlink_to(precious)
    (left / "1" / "file").symlink_to(precious / "thesis.tex")
    scratch.sweep(str(parent), "")
    assert not left.exists()
    assert (precious / "thesis.tex").exists()


def test_what_is_no_folder_of_a_zygote_is_left_and_links_are_not_followed(parent, precious):
    (parent / scratch.new_name()).symlink_to(precious)
    for name in ("rtcompile-cache", "rtcompile-0.9-src", "rtcompile-1-dead"):
        (parent / name).mkdir()
        os.utime(parent / name, (0, 0))
    (parent / scratch.new_name()).touch()
    os.mkfifo(parent / scratch.new_name())
    (parent / scratch.new_name()).symlink_to("nothing")
    before = sorted(os.listdir(parent))
    scratch.sweep(str(parent), "")
    assert sorted(os.listdir(parent)) == before
    assert (precious / "thesis.tex").exists()


def test_a_folder_of_another_user_is_left(parent, monkeypatch):
    left = killed(claim(parent))
    ours = os.fstat

    def of_another(descriptor: int) -> os.stat_result:
        fields = list(ours(descriptor))
        fields[4] += 1  # st_uid
        return os.stat_result(fields)

    monkeypatch.setattr(os, "fstat", of_another)
    scratch.sweep(str(parent), left.name)
    assert left.exists()


def test_a_folder_whose_entries_others_can_rename_is_not_used(parent):
    parent.chmod(0o777)
    with pytest.raises(OSError, match="others could replace its contents"):
        claim(parent)
    parent.chmod(0o1777)
    claim(parent)


def test_if_tmpdir_cannot_be_used_the_usual_folders_are(parent, tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "PARENTS", (str(tmp_path / "missing"), str(parent)))
    owner = scratch.claim(str(tmp_path / "not there"), scratch.new_name())
    assert owner.path.startswith(str(parent))


@pytest.mark.takes_seconds
def test_claiming_a_folder_during_sweeps_works(parent):
    done = threading.Event()

    def sweep() -> None:
        while not done.is_set():
            scratch.sweep(str(parent), "")

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for _ in range(100):
            owner = claim(parent)
            assert Path(owner.path).is_dir()
            owner.remove()
    finally:
        done.set()
        sweeper.join()

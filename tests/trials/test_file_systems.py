"""Trials of temporary folders and caches that are shared with a hostile user, full, or without locks.

``RTCOMPILE_TEST_TRIALS=full`` repeats each trial more often.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ran, started
from tests.trials.record import tally, times
from tests.trials.test_workers_trials import AS_NOBODY, NOBODY, ROOT, with_mounts

ATTACKER = NOBODY + 1

# The builds: small kernels, and one whose header is worth precompiling.
BUILDS = """
    import json, os, sys, threading, warnings
    import rtcompile
    from rtcompile.compilers import nvrtc
    from rtcompile import cubin
    warnings.simplefilter("ignore", rtcompile.RtcompileWarning)
    HEADER = "#include <cuda/std/__type_traits/is_same.h>\\n"  # which counts as one of half a second
    nvrtc._front_end = lambda *_: 500

    def build(number, header=""):
        # One kernel, edited again and again: for kernels built once each no header is made so soon.
        source = header + f'extern "C" __device__ int v{number}; extern "C" __global__ void k() {{}}'
        try:
            code = rtcompile.compile(source, arch="sm_80", fallback="never")
        except rtcompile.RtcompileError as error:
            return f"error: {str(error).splitlines()[0]}"
        right = f"v{number}" in [symbol.name for symbol in cubin.read_symbols(code.code)]
        return "right" if right else "wrong"
"""


def program(body: str) -> str:
    return textwrap.dedent(BUILDS) + textwrap.dedent(body)


# --- two users -----------------------------------------------------------------------------------


def attack(shared: Path, victims: list[Path], ready: int) -> None:
    """As another user, plant files, folders and links under the paths of the victim's workers."""
    machine = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    planted = shared / f"rtcompile-workers-{NOBODY}-{machine}-000000000000000000000000"
    mine = shared / "mine"
    mine.mkdir(exist_ok=True)
    os.write(ready, b"ready")
    while True:
        planted.symlink_to(victims[0])
        planted.unlink()
        planted.mkdir()
        (planted / "1").mkdir()
        for folder in (planted, planted / "1"):
            folder.chmod(0o777)
        for victim in victims:  # a removed path becomes a link during the victim's check
            (planted / "1").rename(mine / "1")
            (planted / "1").symlink_to(victim)
            (planted / "1").unlink()
            (mine / "1").rename(planted / "1")
        shutil.rmtree(planted)
        for path in shared.glob(f"rtcompile-workers-{NOBODY}-*"):
            with suppress(OSError):
                os.listdir(path)
                if path.stat().st_uid == NOBODY:
                    (mine / "could-look-into-it").touch()
            with suppress(OSError):
                if path.stat().st_uid == NOBODY:
                    path.rename(mine / "moved")
                    (mine / "could-move-it").touch()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A temporary folder for all users, like /tmp."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        shared = Path(folder) / "shared"
        shared.mkdir()
        shared.chmod(0o1777)
        yield shared


@pytest.fixture
def precious(shared: Path) -> Path:
    """A folder of the victim with a file."""
    folder = shared.parent / "precious"
    folder.mkdir()
    (folder / "thesis.tex").write_text("ten years")
    for path in (folder, folder / "thesis.tex"):
        os.chown(path, NOBODY, NOBODY)
    return folder


@pytest.fixture
def attacker(shared: Path, precious: Path) -> Iterator[None]:
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.chdir(shared)  # the attacker may not reach it by its path
            os.setgroups([])
            os.setgid(ATTACKER)
            os.setuid(ATTACKER)
            attack(Path(), [precious, shared / "missing"], write)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(write)
    assert os.read(read, 5) == b"ready"
    os.close(read)
    yield
    assert os.waitpid(process, os.WNOHANG) == (0, 0), "the attacker has given up"
    os.kill(process, 9)
    os.waitpid(process, 0)


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="needs to become two other users: root, and setpriv of util-linux",
)
@pytest.mark.usefixtures("attacker")
def test_another_user_plants_files_in_the_temporary_folder(shared, precious):
    cache = shared.parent / "victims-cache"
    cache.mkdir()
    os.chown(cache, NOBODY, NOBODY)
    script = """
        import signal
        from contextlib import suppress
        from pathlib import Path
        from rtcompile.workers.process import ZygoteProcess
        for number in range(int(sys.argv[1])):
            outcome = build(number)
            with suppress(OSError):  # removed while it is looked at
                for used in Path(os.environ["TMPDIR"]).glob("rtcompile-workers-*/*"):
                    if used.lstat().st_uid == os.getuid() != used.parent.stat().st_uid:
                        outcome = "worked in another user's folder"
            for worker in [*ZygoteProcess.alive]:
                os.kill(worker.pid, signal.SIGKILL)
                worker.close()  # clears up after it
            print(outcome, flush=True)
    """
    count = times(8, 500)
    words = *AS_NOBODY, sys.executable, "-c", program(script), count
    victim = ran(*words, environ={"TMPDIR": shared, "RTCOMPILE_CACHE_DIR": cache}, cwd=ROOT)
    if victim.stderr.startswith("setpriv"):
        pytest.skip(f"may not become another user here: {victim.stderr.strip()}")
    with tally("build and clearing up beside a user who plants folders and links") as trial:
        lines = victim.stdout.splitlines()
        for number in range(count):
            with trial():
                assert lines[number : number + 1] == ["right"], victim.stderr[-2000:]
    assert (precious / "thesis.tex").read_text() == "ten years"
    assert not list((shared / "mine").glob("could-*"))


# --- a full file system --------------------------------------------------------------------------


def on_tmpfs(script: str, folder: Path, kibibytes: int) -> list[Any]:
    """Run a script on a small file system as its working directory; return its outcomes."""
    folder.mkdir(exist_ok=True)
    at = shlex.quote(str(folder))
    mounts = f"mount -t tmpfs -o size={kibibytes}k none {at} && cd {at}"
    return list(json.loads(with_mounts(mounts, script)))


only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system")


@only_root
@pytest.mark.parametrize("what", ["RTCOMPILE_CACHE_DIR", "TMPDIR"])
def test_a_full_file_system(what, tmp_path):
    script = f"""
        os.mkdir("folder", 0o700)
        os.environ[{what!r}] = os.path.abspath("folder")
        outcomes = [build(number) for number in range(3)]
        for number in range(3, 6):  # the second makes the header, for which there is no room
            outcomes.append(build(number, HEADER))
        os.system("mount -o remount,size=1g .")
        for number in range(6, 22):  # after two attempts that failed a header is made at the eighth build
            outcomes.append(build(number, HEADER))
        files = os.listdir(os.path.join(os.environ["RTCOMPILE_CACHE_DIR"], "pch"))
        outcomes.append(f"{{sum(name.endswith('.pch') for name in files)}} precompiled")
        print(json.dumps(outcomes))
    """
    sizes = times([64], [16 << step for step in range(11)])
    with tally(f"build on a full file system ({what})") as trial:
        for size in sizes:
            outcomes = on_tmpfs(program(script), tmp_path / "mounted", size)
            for outcome in outcomes[:-1]:
                with trial():
                    fits = outcome == "right" or "No space left" in outcome
                    assert fits, f"{size} KiB: {outcome}"
            with trial():
                assert outcomes[6:] == [*["right"] * 16, "1 precompiled"], f"{size} KiB: {outcomes}"


@only_root
@pytest.mark.parametrize("builds", [0, 1, 3])
def test_a_cache_that_becomes_read_only(builds, tmp_path):
    """The second build creates a precompiled header."""
    script = f"""
        os.mkdir("folder", 0o700)
        os.environ["RTCOMPILE_CACHE_DIR"] = os.path.abspath("folder")
        outcomes = [build(number, HEADER) for number in range({builds})]
        while os.system("mount -o remount,ro . 2>/dev/null"):  # a file is being written
            pass
        outcomes += [build(number, HEADER) for number in range(3, 6)]
        names = os.listdir("folder/pch") if {builds} else []
        outcomes.append([name for name in names if ".tmp" in name])
        print(json.dumps(outcomes))
    """
    *outcomes, unfinished = on_tmpfs(program(script), tmp_path / "mounted", 1 << 20)
    assert outcomes == ["right"] * (builds + 3)
    assert len(unfinished) <= 1  # the next build that creates a header removes it


# --- a file system without locks -----------------------------------------------------------------

NO_LOCKS = """
#include <errno.h>
int flock(int fd, int operation) { errno = ENOLCK; return -1; }
"""


@pytest.fixture
def python_without_locks(tmp_path: Path) -> Path:
    """A Python without file locks, also in its workers."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no C compiler for a library without flock")
    (tmp_path / "flock.c").write_text(NO_LOCKS)
    library, python = tmp_path / "libflock.so", tmp_path / "python"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "flock.c"], check=True)
    given = shlex.quote(str(library)), shlex.quote(sys.executable)
    python.write_text('#!/bin/sh\nLD_PRELOAD={} exec {} "$@"\n'.format(*given))
    python.chmod(0o755)
    return python


def test_a_file_system_without_locks(python_without_locks, tmp_path):
    script = f"""
        import fcntl, signal
        from rtcompile.workers.process import ZygoteProcess
        try:
            fcntl.flock(0, fcntl.LOCK_EX)
        except OSError as error:
            assert error.errno == 37, error
        sys.executable = {str(python_without_locks)!r}
        own, count = int(sys.argv[1]), int(sys.argv[2])
        outcomes = []
        for number in range(count):  # only one process builds every second kernel
            outcomes.append(build(number + own * count if number % 2 else number))
            if number % 2:
                (worker,) = ZygoteProcess.alive
                os.kill(worker.pid, signal.SIGKILL)
                worker.close()
        print(json.dumps(outcomes))
    """
    temporary = tmp_path / "tmp"
    temporary.mkdir(mode=0o700)
    processes = [
        started(
            *(python_without_locks, "-c", program(script), own, times(6, 100)),
            environ={"TMPDIR": temporary},
            cwd=ROOT,
        )
        for own in (1, 2)
    ]
    with tally("build on a file system without locks") as trial:
        for process in processes:
            output = process.communicate(timeout=600)[0]
            for outcome in json.loads(output or '["no output"]'):
                with trial():
                    assert outcome == "right"
    assert list(temporary.iterdir()) == []

"""Tests of the files of precompiled headers: ownership, damage and eviction."""

import os
from pathlib import Path
from typing import Any

import pytest

from rtcompile.compilers import nvrtc, pch
from rtcompile.compilers.pch import PrefixRecord
from rtcompile.store import inventory
from rtcompile.store.folder import Folder
from tests.compilers.test_pch import KERNEL, PREFIX, builder, hastened, used
from tests.processes import python

pytestmark = pytest.mark.needs_compiler

__all__ = ["builder", "hastened"]


def test_another_file_under_its_path_is_not_used(builder):
    header = builder.user / "mine.h"
    source = PREFIX + '#include "mine.h"\n__global__ void k(int* p) { *p = VALUE; }'

    def precompiled_with(value: int) -> bytes:
        header.write_text(f"#define VALUE {value}\n")
        os.utime(header, (value, value))
        builder.ready(source)
        (file,) = builder.files(".pch")
        return file.read_bytes()

    one, two = precompiled_with(1), precompiled_with(2)
    (file,) = builder.files(".pch")
    assert one != two
    file.write_bytes(one)  # NVRTC would accept it, and with it the other value
    assert builder.compiled(source).code == builder.without().compiled(source).code


def test_a_full_disk_rejects_no_prefix_permanently(builder):
    # A limit on file sizes has the same effect, but only for this process and its workers.
    script = f"""
        import resource
        from pathlib import Path
        from tests.compilers.test_pch import *
        hasten(pytest.MonkeyPatch())
        limit = 256 << 10
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        builder = Builder(Path({str(builder.cache)!r}), Path({str(builder.user)!r}))
        for _ in range(3):
            builder.compiled(PREFIX + KERNEL)
            assert builder.files(".pch") == []
    """
    root = Path(__file__).parents[2]
    python(script, cwd=root, check=True)
    builder.ready()


def cut_short(file: Path) -> None:
    status = file.stat()
    os.truncate(file, status.st_size // 2)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda file: (file.unlink(), os.mkfifo(file)), id="fifo"),
        pytest.param(lambda file: (file.unlink(), file.mkdir()), id="folder"),
        pytest.param(cut_short, id="cut short"),
    ],
)
def test_a_damaged_header_is_not_used_and_costs_no_build(builder, damage):
    builder.ready()
    (file,) = builder.files(".pch")
    damage(file)
    assert not used(builder.compiled(PREFIX + KERNEL))


def test_a_header_that_crashes_the_compiler_is_removed_and_the_build_repeated(builder, monkeypatch):
    builder.ready()
    (file,) = builder.files(".pch")
    whole = pch.image(str(file))
    os.truncate(file, file.stat().st_size // 2)
    with monkeypatch.context() as patch:
        patch.setattr(pch, "image", lambda path: whole)  # hides the damage
        assert not used(builder.compiled(PREFIX + KERNEL))
    assert builder.files(".pch") == []
    builder.ready()


def test_after_a_failure_the_next_header_must_save_more(builder, monkeypatch):
    builder.ready()
    monkeypatch.setattr(nvrtc, "_trust_result", lambda *_: False)
    builder.compiled(PREFIX + KERNEL)
    assert builder.files(".pch") == []
    (file,) = builder.files(".record")
    record = PrefixRecord.read(str(builder.cache), file.stem)
    assert (record.builds, record.failures) == (0, 1)


def test_only_a_private_folder_that_nobody_else_could_replace_is_used(tmp_path):
    for mode, is_safe in ((0o755, True), (0o1777, True), (0o775, False)):
        tmp_path.chmod(mode)
        assert pch.has_private_folder(str(tmp_path)) is is_safe
        assert tmp_path.stat().st_mode & 0o7777 == mode
    tmp_path.chmod(0o755)
    (tmp_path / "pch").chmod(0o777)
    assert not pch.has_private_folder(str(tmp_path))
    (tmp_path / "pch").rename(tmp_path / "target")
    (tmp_path / "target").chmod(0o700)
    (tmp_path / "pch").symlink_to(tmp_path / "target")
    assert not pch.has_private_folder(str(tmp_path))
    (tmp_path / "cache").write_text("a file where the cache should be")
    assert not pch.has_private_folder(str(tmp_path / "cache"))


def test_the_least_recently_used_headers_are_evicted(tmp_path):
    folder = Folder(str(tmp_path))
    folder.prepare()
    for age, key in enumerate("bac"):
        for suffix in ("pch", "record"):
            file = tmp_path / "pch" / f"{key}.{suffix}"
            file.write_bytes(bytes(1000))
            os.utime(file, (age, age))
    inventory.evict(folder, 4500)
    left = sorted(file.name for file in (tmp_path / "pch").iterdir())
    assert " ".join(left) == "a.pch a.record c.pch c.record"


def test_no_header_is_kept_or_begun_without_room_for_it(builder, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_CACHE_SIZE", "6M")
    for _ in range(3):
        builder.compiled(PREFIX + KERNEL)
    assert not list(builder.cache.rglob("*.pch"))
    monkeypatch.setenv("RTCOMPILE_CACHE_SIZE", "2M")
    monkeypatch.setattr(pch.Prefix, "_publish", lambda *_: pytest.fail("one was made"))
    for _ in range(4):
        builder.compiled(PREFIX + KERNEL)


def test_a_header_that_vanishes_before_its_use_is_created_again(builder, monkeypatch):
    builder.ready()
    found: list[Any] = []
    look = pch.Prefix.find
    with monkeypatch.context() as patch:
        patch.setattr(pch.Prefix, "find", lambda self: found.append(look(self)) or found[0])
        assert used(builder.compiled(PREFIX + KERNEL))
        for file in builder.files(".pch"):
            file.unlink()
        assert not used(builder.compiled(PREFIX + KERNEL))  # its header is gone
    builder.ready()
    assert used(builder.compiled(PREFIX + KERNEL))


def test_processor_time_of_other_processes_does_not_count_as_reading(tmp_path):
    """On a busy machine reading any header takes long, although few are worth precompiling."""
    script = r"""
        import os, subprocess, sys
        from pathlib import Path
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        from rtcompile.compilers import pch
        from tests.compilers.test_pch import EXPENSIVE, KERNEL, Builder
        noted = []
        pch.Prefix.built = lambda self, outcome, seconds: noted.append(seconds)
        loop = [sys.executable, "-c", "import time\nwhile time.process_time() < 30: pass"]
        # Linux may share a processor out between sessions first, and a worker has one of its own.
        loops = [subprocess.Popen(loop, start_new_session=True) for _ in range(2)]
        try:
            outcome = Builder(Path(sys.argv[1], "cache"), Path(sys.argv[1])).compiled(EXPENSIVE + KERNEL)
        finally:
            for loop in loops:
                loop.kill()
        print(noted[0], outcome.milliseconds["front end"] / 1000)
        """
    noted, waited = map(float, python(script, tmp_path, check=True).stdout.split())
    assert 0 < noted < 0.6 * waited, (noted, waited)

"""Tests on file systems whose times hide changes: whole seconds, and images with one time for all files."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rtcompile
from tests.processes import forget_caches, ran
from tests.trials.record import tally, times

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mke2fs") is None,
    reason="only root may mount an image, and mke2fs makes one",
)

KERNEL = '#include <v.h>\nextern "C" __global__ void k(int* out) { *out = VALUE; }\n'


def image(path: Path, *options: str) -> Path:
    """Return a new image of a file system with whole seconds."""
    with path.open("wb") as file:
        file.truncate(1 << 20)
    command = ["mke2fs", "-q", "-F", "-t", "ext4", "-I", "128", "-O", "^has_journal", *options]
    subprocess.run([*command, str(path)], check=True, capture_output=True)
    return path


@contextmanager
def mounted(source: Path, folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    done = ran("mount", "-o", options, str(source), str(folder))
    if done.returncode:
        pytest.skip(f"may not mount an image here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def build(folder: Path) -> rtcompile.ObjectCode:
    forget_caches()
    return rtcompile.compile(KERNEL, arch="sm_80", options=(f"-I{folder}",), target="ptx")


def next_second() -> None:
    time.sleep(1.01 - time.time() % 1)


def test_edits_within_one_second_on_a_file_system_with_whole_seconds(tmp_path):
    with (
        mounted(image(tmp_path / "image"), tmp_path / "folder", "loop") as folder,
        tally("header edited within one second, on ext4 with whole seconds") as trial,
    ):
        header = folder / "v.h"
        for round in range(times(2, 20)):
            next_second()
            header.write_text(f"#define VALUE {100 + round}\n")
            before = build(folder)
            header.write_text(f"#define VALUE {500 + round}\n")
            status = header.stat()
            with trial():
                assert status.st_mtime_ns % 10**9 == 0
                assert build(folder).code != before.code
                assert build(folder).build.hit is not None


def test_another_image_under_the_same_path(tmp_path):
    next_second()
    images = []
    for value in (1, 2):
        (tmp_path / f"of{value}").mkdir()
        (tmp_path / f"of{value}/v.h").write_text(f"#define VALUE {value}\n")
    for value in (1, 2):
        images.append(image(tmp_path / f"image{value}", "-d", str(tmp_path / f"of{value}")))
    made, seen = [], []
    for path in (*images, images[0]):
        with mounted(path, tmp_path / "folder", "loop,ro") as folder:
            status = (folder / "v.h").stat()
            seen.append((status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))
            made.append(build(folder))
    if len({*seen}) != 1:
        pytest.skip("the images were not made within one second")
    assert made[0].code != made[1].code
    assert made[2].code == made[0].code
    assert made[2].build.hit is not None, "what was built of its contents is found"

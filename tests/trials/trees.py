"""Folders of headers, and their changes: edits, renames, links, mounts, other images."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDERS = ("d0", "d1", "d2", "Köpfe", "link", "late", "d1/c")
NAMES = ("a.h", "b.h", "c/d.h", "e", "é.h")
_MS_BIND, _MNT_DETACH = 4096, 2
_libc = ctypes.CDLL(None, use_errno=True)


class Folder:
    """The folder of a world, and the changes by steps; an impossible change has no effect."""

    def __init__(self, path: Path, images: Path, texts: dict[str, str]) -> None:
        self.path, self._images = path, images
        path.mkdir(parents=True)
        self._mounts: list[Path] = []
        for name in ("d0", "d1", "d2", "Köpfe", "d1/c"):
            (path / name).mkdir()
        (path / "link").symlink_to("d2")
        for name, text in texts.items():
            self.change(["write", name, text])

    def change(self, change: list[Any]) -> None:
        kind, first, *others = change
        with suppress(OSError, shutil.Error):
            if kind == "wait":
                time.sleep(first)
            else:
                getattr(self, f"_{kind.replace(' ', '_')}")(self.path / first, *others)

    def unmount(self) -> None:
        while self._mounts:
            self._unmount(self.path)

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def _number(self, path: Path, number: str, how: str) -> None:
        """Give a header another number, of the same size."""
        before, _, after = path.read_text().rpartition(' "')
        self.replace(path, f'{before} "{number}{after[4:]}'.encode(), how)

    def replace(self, path: Path, data: bytes, how: str) -> None:
        """Write a file, with its times as before ("time"), or by a rename ("rename")."""
        if how == "rename":
            new = path.with_name("new")
            new.write_bytes(data)
            new.rename(path)
            return
        before = path.stat() if how == "time" else None
        path.write_bytes(data)
        if before is not None:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def _remove(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    def _folder(self, path: Path) -> None:
        self._remove(path)
        path.mkdir()

    def _move(self, path: Path, to: str) -> None:
        path.rename(self.path / to)

    def _link(self, path: Path, to: str) -> None:
        new = path.with_name("new")
        new.symlink_to(self.path / to)
        new.rename(path)

    def _hard_link(self, path: Path, to: str) -> None:
        path.unlink(missing_ok=True)
        os.link(self.path / to, path)

    def _swap(self, path: Path, other: str) -> None:
        between = self.path / "between"
        path.rename(between)
        (self.path / other).rename(path)
        between.rename(self.path / other)

    def _copy(self, path: Path, to: str) -> None:
        shutil.copytree(path, self.path / to, dirs_exist_ok=True)  # with the files' times

    def _touch(self, path: Path) -> None:
        os.utime(path)

    def _bind(self, path: Path, over: str) -> None:
        self._mounted(os.fsencode(path), self.path / over, None, _MS_BIND)

    def _mount(self, path: Path) -> None:
        self._mounted(b"none", path, b"tmpfs", 0)
        shutil.copy(self.path / "d0" / "a.h", path / "b.h")

    def _image(self, path: Path, number: str) -> None:
        """Mount an image; the next one under the same path has the same inodes, sizes and times."""
        if self._mounts and self._mounts[-1] == path:
            self._unmount(path)
        image = self._images / number
        command = ["mount", "-o", "ro,loop", image, path]
        if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0:
            self._mounts.append(path)

    def _mounted(self, what: bytes, where: Path, kind: bytes | None, flags: int) -> None:
        target = os.fsencode(where)
        if _libc.mount(what, target, kind, ctypes.c_ulong(flags), None):
            raise OSError(ctypes.get_errno(), "mount")
        self._mounts.append(where)

    def _unmount(self, _: Path) -> None:
        if self._mounts:
            _libc.umount2(os.fsencode(self._mounts.pop()), _MNT_DETACH)


# --- file systems ---------------------------------------------------------------------------------


def may_mount(where: Path) -> bool:
    probe = where / "probe"
    probe.mkdir()
    if _libc.mount(b"none", os.fsencode(probe), b"tmpfs", ctypes.c_ulong(0), None):
        return False
    _libc.umount2(os.fsencode(probe), _MNT_DETACH)
    return True


def make_images(folder: Path) -> None:
    """Create images of a file system with all headers, which differ only in their numbers."""
    tree = folder / "tree"
    (tree / "c").mkdir(parents=True)
    for number, name in enumerate(NAMES):
        (tree / name).write_text(f'#ifndef M{number}\n#define M{number} "1111"\n#endif\n')
    first = folder / "1111"
    os.system(f"mkfs.ext4 -q -d '{tree}' '{first}' 1M >/dev/null 2>&1")
    if first.exists():
        (folder / "2222").write_bytes(first.read_bytes().replace(b'"1111"', b'"2222"'))


def mount(file_system: str, image: Path, where: Path) -> None:
    """Mount a file system with the kernel's clock (tmpfs), or with whole seconds (old ext4)."""
    if file_system == "tmpfs":
        command = f"mount -t tmpfs none '{where}'"
    else:
        make = f"truncate -s 64M '{image}' && mkfs.ext4 -q -I 128 '{image}' >/dev/null 2>&1"
        command = f"{make} && mount -o loop '{image}' '{where}'"
    if os.system(command):
        print(json.dumps({"cannot": command}))
        sys.exit(0)

"""Random edits of trees of headers: each compile gives what a compiler without a cache gives.

Files are written, removed, touched and given old times; folders are renamed away and back, swapped,
linked and mounted over; a file becomes a folder. After each step a kernel is compiled as in the same process
or as in another one, and compared with a build by the compiler alone. Some of the changes are made while
the compiler runs.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rtcompile
from rtcompile import toolkit
from rtcompile.cache import store
from rtcompile.compilers import nvrtc, observed
from rtcompile.core.arch import Arch
from rtcompile.core.header import SearchDir
from rtcompile.core.units import Compiled, Limits, TranslationUnit
from tests.trials.record import tally, times

STEPS = times(80, 5000)
FOLDERS = ("one", "two", "two/sub", "three")
NAMES = ("a.h", "b.h", "c.h")

SOURCES = (
    "#include <a.h>\n",
    "#if __has_include(<a.h>)\n#include <a.h>\n#elif __has_include( /* or */ <b.h>)\n"
    "#include <b.h>\n#endif\n",
    '#define CAT_(a, b) a##b\n#define CAT(a, b) CAT_(a, b)\n#if CAT(__ha, s_include)("sub/c.h")\n'
    '#include /*\n*/ "sub/c.h"\n#endif\n',
    "#define NAME <b.h>\n#if __has_include(NAME)\n#include NAME\n#define B_WAS_THERE 1\n#endif\n",
)
KERNEL = """
#ifndef VALUE
#define VALUE 1
#endif
#ifdef B_WAS_THERE
#define EXTRA 1000
#else
#define EXTRA 0
#endif
extern "C" __global__ void k(int* out) { *out = VALUE + EXTRA; }
"""


class Tree:
    """Header directories that change at random."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root = root
        self.chance = chance
        self.search = [str(root / name) for name in ("one", "two", "three")]
        self.mounted = False
        for folder in FOLDERS:
            (root / folder).mkdir(parents=True, exist_ok=True)
        for folder in FOLDERS:
            self.write(root / folder / chance.choice(NAMES))

    def text(self) -> str:
        value = f"#undef VALUE\n#define VALUE {self.chance.randrange(100, 106)}\n"
        more = ("", "", '#if __has_include("c.h")\n#include "c.h"\n#endif\n', "#include <b.h>\n")
        return f"#pragma once\n{self.chance.choice(more)}{value}"

    def write(self, path: Path) -> None:
        if path.is_dir():
            path.rmdir()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text())

    def header(self) -> Path:
        return self.root / self.chance.choice(FOLDERS) / self.chance.choice(NAMES)

    def edit(self) -> None:
        self.write(self.header())

    def edit_with_old_times(self) -> None:
        path = self.header()
        if path.is_file():
            before = path.stat()
            self.write(path)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def replace(self) -> None:
        path = self.header()
        if path.parent.is_dir() and not path.is_dir():
            new = path.with_name("new")
            self.write(new)
            new.rename(path)

    def remove(self) -> None:
        path = self.header()
        if path.is_file() or path.is_symlink():
            path.unlink()

    def become_a_folder(self) -> None:
        path = self.header()
        self.remove()
        if not os.path.lexists(path) and path.parent.is_dir():
            path.mkdir()

    def touch(self) -> None:
        path = self.header()
        if path.is_file():
            path.touch()

    def link(self) -> None:
        path, target = self.header(), self.header()
        if not os.path.lexists(path) and path.parent.is_dir():
            path.symlink_to(target)

    def rename_away_or_back(self) -> None:
        folder = self.root / self.chance.choice(FOLDERS)
        away = folder.with_name(f"{folder.name}-away")
        if away.exists() and not os.path.lexists(folder):
            away.rename(folder)
        elif folder.is_dir() and not away.exists() and folder.parent.is_dir():
            folder.rename(away)

    def swap(self) -> None:
        """Two folders change places."""
        one, other, between = self.root / "one", self.root / "three", self.root / "between"
        if one.is_dir() and other.is_dir():
            one.rename(between)
            other.rename(one)
            between.rename(other)

    def mount_over(self) -> None:
        """Another folder is mounted over one, or the mount goes."""
        over = self.root / "one"
        if self.mounted:
            self.mounted = bool(subprocess.run(["umount", str(over)], check=False).returncode)
        elif over.is_dir():
            below = self.root / "mounted"
            shutil.copytree(over, below, symlinks=True, dirs_exist_ok=True)
            self.write(below / self.chance.choice(NAMES))
            command = ["mount", "--bind", str(below), str(over)]
            self.mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0

    def step(self) -> None:
        steps: list[Callable[[], None]] = [self.edit] * 5
        steps += [self.edit_with_old_times, self.replace, self.remove, self.become_a_folder]
        steps += [self.touch, self.link, self.rename_away_or_back]
        steps += [] if self.mounted else [self.swap]
        steps += [self.mount_over] if os.geteuid() == 0 else []
        try:
            self.chance.choice(steps)()
        except OSError:
            return  # busy while it is mounted over, a loop of links, a folder that is not empty


def without_cache(source: str, folders: list[str], library: Any) -> int | None:
    """Return what the kernel stores by the compiler alone; None where it does not compile."""
    flags = ("-arch=compute_80", *(f"-I{folder}" for folder in folders))
    unit = TranslationUnit(source, "kernel.cu", flags, (), "ptx", Arch(8, 0))
    search = [SearchDir(f"user{at}", folder) for at, folder in enumerate(folders)]
    outcome = nvrtc.compile(
        unit, library, limits=Limits(), pch=False, cache_dir=None, search=search
    )
    return stored(outcome.code) if isinstance(outcome, Compiled) else None


def with_cache(source: str, folders: list[str]) -> tuple[int | None, str | None]:
    options = tuple(f"-I{folder}" for folder in folders)
    try:
        code = rtcompile.compile(
            source, arch="sm_80", target="ptx", options=options, fallback="never", pch=False
        )
    except rtcompile.CompileError:
        return None, None
    return stored(code.code), code.build.hit


def stored(ptx: bytes) -> int:
    found = re.search(rb"mov\.[bu]32\s+%r\d+, (\d+);", ptx)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("seed", range(2))
def test_random_edits_of_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    tree = Tree(tmp_path / "tree", chance)
    library = toolkit.current().require_nvrtc()
    original = observed.file_set
    meanwhile: list[Callable[[], None]] = []

    def after_the_compiler(*given: Any, **more: Any) -> Any:
        if meanwhile:
            meanwhile.pop()()
        return original(*given, **more)

    monkeypatch.setattr(observed, "file_set", after_the_compiler)
    hits = 0
    try:
        with tally("header, folder, link or mount changed at random, then compiled") as trial:
            for _ in range(STEPS // 2):
                tree.step()
                source = chance.choice(SOURCES) + KERNEL
                if chance.random() < 0.5:
                    store._stores.clear()  # as another process
                if chance.random() < 0.2:
                    meanwhile.append(tree.step)  # What is returned may be that before or after it.
                    with_cache(source, tree.search)
                    meanwhile.clear()
                if chance.random() < 0.3:
                    time.sleep(0.005)  # the next tick of the file clock
                with trial():
                    found, hit = with_cache(source, tree.search)
                    hits += hit is not None
                    assert found == without_cache(source, tree.search, library)
    finally:
        while tree.mounted:
            tree.mount_over()
    assert hits > STEPS // 20, "most builds that are true again have to be found"

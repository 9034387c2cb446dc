"""Provokes messages of real compilers, of the environment and of wheels of other versions."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rtcompile import toolkit
from rtcompile.toolkit.model import Toolchain
from rtcompile.toolkit.search import find
from tests.processes import ran
from tests.provoked import OLD_WHEELS
from tests.provoked.bench import Bench


@pytest.fixture(scope="session")
def wheels(request: pytest.FixtureRequest) -> Callable[[Sequence[str]], Path]:
    """Install wheels into a folder that pytest keeps between runs; skip where pip cannot."""

    def folder_of(requirements: Sequence[str]) -> Path:
        name = re.sub(r"[^\w.]+", "_", requirements[0])
        folder = Path(request.config.cache.mkdir("wheels")) / name
        if not folder.exists():
            # Another process of this run may be installing the same packages.
            own = folder.with_name(f"{name}-{os.getpid()}")
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            try:
                done = ran(*command, "--target", str(own), *requirements, timeout=120)
            except subprocess.TimeoutExpired:
                pytest.skip(f"pip cannot reach the index to install {requirements[0]}")
            if done.returncode != 0:
                pytest.skip(f"pip cannot install {requirements[0]}: {done.stderr[-300:]}")
            try:
                own.rename(folder)
            except OSError:
                shutil.rmtree(own)
        return folder

    return folder_of


@pytest.fixture(scope="session")
def toolchain(
    wheels: Callable[[Sequence[str]], Path], request: pytest.FixtureRequest
) -> Callable[[str], Toolchain]:
    """Return a toolchain by name: "12" is the environment's, "13" and "12.4" are other folders."""
    found: dict[str, Toolchain] = {}

    def of_name(name: str) -> Toolchain:
        if name not in found:
            if name == "12":
                found[name] = toolkit.current()
            else:
                folder = (
                    request.getfixturevalue("cuda13_prefix") if name == "13" else wheels(OLD_WHEELS)
                )
                found[name] = find({}, [str(folder)], usual_roots=())
        return found[name]

    return of_name


@pytest.fixture
def bench(
    toolchain: Callable[[str], Toolchain], wheels: Callable[[Sequence[str]], Path], tmp_path: Path
) -> Bench:
    return Bench(toolchain, wheels, tmp_path)

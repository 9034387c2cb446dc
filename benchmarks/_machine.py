"""Describes the machine and the versions with which a result was measured."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from rtcompile import __version__

# An installed package is byte-compiled. With this variable every measured process would compile rtcompile's
# modules again, which takes 20 ms that users do not pay.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cupy-cuda12x", "cupy-cuda13x", "cuda-bindings", "cuda-core", "numpy")


def describe() -> dict[str, str]:
    facts = {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "rtcompile": __version__,
    }
    for package in PACKAGES:
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    facts.update(_toolchain())
    facts["gpu"] = _gpu()
    return facts


def save(name: str, results: object) -> None:
    """Print the results; write them to benchmarks/results/NAME.json if the script got --save."""
    report = {"commit": commit_of(ROOT), "machine": describe(), "results": results}
    text = json.dumps(report, indent=2)
    print(text)
    if "--save" in sys.argv:
        folder = Path(os.environ.get("OUT") or Path(__file__).parent / "results")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(text + "\n")


def commit_of(checkout: Path) -> str:
    """Return a checkout's commit, with a mark if files differ from it; COMMIT names that of a copy without git."""
    if given := os.environ.get("COMMIT"):
        return given
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _toolchain() -> dict[str, str]:
    from rtcompile import toolkit

    return dict(toolkit.current().versions)


def gpus() -> int:
    """Return how many devices CuPy has here; 0 also where there is no CuPy."""
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # no CuPy, no driver, no device: all mean the same here
        return 0


def _gpu() -> str:
    try:
        import cupy

        properties = cupy.cuda.runtime.getDeviceProperties(0)
    except Exception:  # no CuPy, no driver, no device: all mean the same here
        return "none"
    return f"{properties['name'].decode()}, driver {cupy.cuda.runtime.driverGetVersion()}"

"""Runs ten builds in each of many environments, which are installed from the package index as by users.

``make environments`` installs each into its own virtual environment, compiles ten sources in it, runs the
commands that the errors name, compiles the failed sources again, and writes ``results/environments.json`` and
``docs/environments.md``. Toolkits of this machine are seen only by the environments that name one. No GPU is
needed. Arguments: names of environments.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from benchmarks.environment_list import ENVIRONMENTS, PYTORCH, Environment
from benchmarks.ten_builds import BUILDS, FURTHER

ROOT = Path(__file__).parents[1]


class Venv:
    """A virtual environment that commands are typed in."""

    def __init__(self, environment: Environment, folder: Path) -> None:
        self.prefix = folder / "venv"
        self.system = bool(environment.variables)
        subprocess.run([sys.executable, "-m", "venv", self.prefix], check=True)
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("CUDA", "CONDA", "PYTHON", "RTCOM"))
        }
        self.environ = (
            kept
            | environment.variables
            | {
                "PATH": f"{self.prefix}/bin:/usr/bin:/bin",
                "RTCOMPILE_CACHE_DIR": str(folder / "cache"),
                "PIP_FIND_LINKS": f"{folder.parent / 'dist'} {os.environ.get('PIP_FIND_LINKS', '')}",
                "PIP_CACHE_DIR": str(folder.parent / "pip"),
            }
        )

    def type(self, command: str) -> str:
        """Run a command; return the end of its output if it fails."""
        words = [word.strip("'\"") for word in command.split()]
        done = subprocess.run(
            [self.prefix / "bin/python", "-m", *words],
            env=self.environ,
            capture_output=True,
            text=True,
        )
        return f"{done.stdout}{done.stderr}".strip()[-1000:] if done.returncode else ""

    def build(self, names: Sequence[str]) -> dict[str, dict]:
        return self._ten_builds(*names)

    def again(self, names: Sequence[str]) -> dict[str, dict]:
        return self._ten_builds("--again", *names)

    def _ten_builds(self, *arguments: str) -> dict[str, dict]:
        script = Path(__file__).with_name("ten_builds.py")
        command = [self.prefix / "bin/python", script, str(int(self.system)), *arguments]
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, cwd=self.prefix
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        said = done.stdout.splitlines()[-1].replace(str(self.prefix), "venv")
        return json.loads(said.replace(f"{self.prefix.parent}/", ""))


def run(environment: Environment, folder: Path) -> dict[str, object]:
    """Create an environment, build in it, follow the errors' advice, and build again."""
    begin = time.monotonic()
    venv = Venv(environment, folder)
    empty, start = bytes_in(venv.prefix), time.monotonic()
    for command in environment.commands:
        problem = venv.type(command)
        if problem:
            raise SystemExit(f"{environment.name}: {command}: {problem}")
    installing = time.monotonic() - start
    size = bytes_in(venv.prefix) - empty
    environment.arrange(venv.prefix)
    report = venv.build(list(BUILDS))
    further = venv.build(list(FURTHER))["builds"]
    built = [name for name, of in {**report["builds"], **further}.items() if "error" not in of]
    report["again"] = venv.again(built) if built else {}
    report["install"] = {"megabytes": round(size / 1e6), "seconds": round(installing)}
    report["advice"] = []
    failed = {name: found for name, found in report["builds"].items() if "error" in found}
    tried: set[str] = set()
    while failed:  # one command may be followed by the next
        said = [c for found in failed.values() for c in found["commands"] if c.startswith("pip")]
        commands = [command for command in dict.fromkeys(said) if command not in tried]
        if not commands:
            break
        tried.add(commands[0])
        problem = venv.type(commands[0])
        again = venv.build(list(failed))
        fixed = [name for name in failed if "error" not in again["builds"][name]]
        report["advice"].append({"command": commands[0], "mends": fixed, "problem": problem})
        failed = {name: again["builds"][name] for name in failed if name not in fixed}
    report["left"] = {name: found["text"] for name, found in failed.items()}
    report["pip check"] = venv.type("pip check")
    report["seconds"] = round(time.monotonic() - begin)
    report["date"] = str(date.today())
    return report


def is_kept(found: dict[str, object]) -> bool:
    """Return whether a second process found a build within 10 ms, and started nothing."""
    return bool(found["hit"] and found["milliseconds"] < 10 and not found["started"])


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def markdown(report: dict) -> str:
    """Return the page of the docs."""
    results = report["results"]
    dates = sorted({found.get("date", report["date"]) for found in results.values()})
    when = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
    again = [each for found in results.values() for each in found.get("again", {}).values()]
    compiled = sum(not each["hit"] or bool(each["started"]) for each in again)
    slowest = max((each["milliseconds"] for each in again), default=0)
    lines = [
        "# Environments",
        "",
        f"Ten builds in {len(results)} environments, made from the package index ({when})"
        " by `make environments` (Linux x86-64, no GPU). ✓: NVRTC built it; ✓ nvcc: NVCC did, as"
        " expected for the host code in *CUB device* and *NVCC*; 1, 2, …: it failed, and the error"
        " names the command of that number, which fixes it; ✗: it failed, and the error names a"
        " toolkit to install, because no wheel of CUDA 12 has nvcc and none of CUDA 12.8 has the"
        " device runtime. PyTorch means only its exact requirements; conda's layout is made from"
        " wheels. *second process*: of these and ten further kinds of builds (such as `cub/cub.cuh`, Thrust, name"
        " expressions, PTX), how many a second process found in the cache within 10 ms and without"
        " starting a compiler, while other programs kept the processors busy; in all environments"
        f" {compiled} started one, and the slowest took {slowest:.0f} ms. *MB* and *s* are the size and time of the installation, on"
        f" {report['machine']}. *doctor* is its exit status before the fixes: 0 is fine, 1 is a"
        " warning, 2 means that something that kernels need does not work.",
        "",
        "| environment | " + " | ".join(BUILDS) + " | second process | doctor | MB | s |",
        "|---" * (len(BUILDS) + 5) + "|",
    ]
    notes = []
    for environment in ENVIRONMENTS:
        if environment.name not in results:
            continue
        found = results[environment.name]
        numbers = {
            name: str(number)
            for number, advice in enumerate((a for a in found["advice"] if a["mends"]), 1)
            for name in advice["mends"]
        }
        cells = []
        for name in BUILDS:
            backend = found["builds"][name].get("backend", "")
            good = "✓ nvcc" if backend == "nvcc" else "✓"
            cells.append(good if backend else numbers.get(name, "✗"))
        cost = found.get("install", {"megabytes": "", "seconds": ""})
        again = found.get("again", {}).values()
        kept = f"{sum(map(is_kept, again))} of {len(again)}" if again else "none built"
        cells += map(str, [kept, found["doctor"], *cost.values()])
        lines.append(f"| {environment.name} | {' | '.join(cells)} |")
        parts = ("nvrtc", "cudart", "crt", "cccl", "curand", "nvjitlink", "nvcc", "cutlass")
        has = ", ".join(f"{p} {found['versions'][p]}" for p in parts if p in found["versions"])
        typed = [f"`{line}`" for line in environment.commands]
        typed += [f"`{name}={value}`" for name, value in environment.variables.items()]
        note = f"**{environment.name}**: {', then '.join(typed)}. Used: {has or 'nothing'}."
        if found["pip check"]:
            note += " In the end pip says that PyTorch asks for other versions."
        done = [a for a in found["advice"] if a["mends"]]
        notes += [note, "", *(f"{n}. `{a['command']}`" for n, a in enumerate(done, 1))]
        notes += [""] if done else []
    return "\n".join([*lines, "", "## What was typed", "", *notes])


def main(names: Sequence[str]) -> None:
    saved = ROOT / "benchmarks/results/environments.json"
    results = json.loads(saved.read_text())["results"] if names and saved.is_file() else {}
    scratch = Path(tempfile.mkdtemp(prefix="environments-"))
    try:
        dist = scratch / "dist"
        wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", dist, ROOT]
        subprocess.run(wheel, check=True)
        for version, requires in PYTORCH.items():
            requirements_only(dist, "torch", f"{version}+requirements", requires)
        for environment in ENVIRONMENTS:
            if names and environment.name not in names:
                continue
            folder = scratch / "environment"
            folder.mkdir()
            results[environment.name] = run(environment, folder)
            shutil.rmtree(folder)
            print(environment.name, json.dumps(results[environment.name], indent=1), flush=True)
            machine = f"{os.cpu_count()} shared processors"
            report = {"date": str(date.today()), "machine": machine, "results": results}
            saved.write_text(json.dumps(report, indent=1) + "\n")
            (ROOT / "docs/environments.md").write_text(markdown(report))
    finally:
        shutil.rmtree(scratch)


def requirements_only(folder: Path, name: str, version: str, requires: Sequence[str]) -> None:
    """Write a wheel that has nothing but requirements."""
    info = f"{name}-{version}.dist-info"
    lines = [f"Requires-Dist: {requirement}" for requirement in requires]
    head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, ""]
    tag = "Wheel-Version: 1.0\nGenerator: rtcompile\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "\n".join(head))
        wheel.writestr(f"{info}/WHEEL", tag)
        wheel.writestr(f"{info}/RECORD", "")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Ten builds in each of many environments, made from the package index as users make them.

``make environments`` installs each into a virtual environment of its own, one after the other,
compiles ten sources in it, types the commands that the failures name, compiles again what failed,
and writes ``results/environments.json`` and ``docs/environments.md``. Toolkits of this machine are
seen only by the environments that name one. No GPU is needed. Arguments: names of environments.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from benchmarks.ten_builds import BUILDS

ROOT = Path(__file__).parents[1]
SYSTEM = "/usr/local/cuda"


@dataclass(frozen=True)
class Environment:
    """What is typed to make an environment; `arrange` changes the files afterwards."""

    name: str
    commands: Sequence[str]
    variables: dict[str, str] = field(default_factory=dict)
    arrange: Callable[[Path], None] = lambda prefix: None


def conda_like(prefix: Path) -> None:
    """Lay the CUDA 13 wheels of an environment out as conda does."""
    (site,) = prefix.glob("lib/python*/site-packages")
    wheels = site / "nvidia/cu13"
    headers = prefix / "targets/x86_64-linux/include"
    shutil.move(wheels / "include", headers)
    for name in ("lib", "bin"):
        for file in (wheels / name).iterdir():
            shutil.move(file, prefix / name / file.name)
    shutil.move(wheels / "nvvm", prefix / "nvvm")
    profile = prefix / "bin/nvcc.profile"
    profile.write_text(
        profile.read_text().replace("$(TOP)/include", "$(TOP)/targets/x86_64-linux/include")
    )
    (prefix / "conda-meta").mkdir()
    packages = {"cuda-nvrtc": "13.0.88", "cuda-crt": "13.0.88", "cuda-nvcc": "13.0.88"}
    packages |= {"cuda-nvvm-tools": "13.0.88", "libnvjitlink": "13.0.88"}
    for package, version in packages.items():
        (prefix / f"conda-meta/{package}-{version}-0.json").write_text("{}")
    for info in site.glob("nvidia_*.dist-info"):
        shutil.rmtree(info)
    shutil.rmtree(site / "nvidia")


# PyTorch's own requirements, less the large libraries that no kernel is compiled with. A wheel
# without files carries them, so that pip resolves, keeps and complains as it does with PyTorch; by
# its local version it goes before the real one.
PYTORCH = {
    "2.10.0": [
        "cuda-bindings==12.9.4",
        "nvidia-cuda-nvrtc-cu12==12.8.93",
        "nvidia-cuda-runtime-cu12==12.8.90",
        "nvidia-curand-cu12==10.3.9.90",
        "nvidia-nvjitlink-cu12==12.8.93",
    ],
    "2.12.1": [
        "cuda-bindings<14,>=13.0.3",
        "cuda-toolkit[cudart,curand,nvjitlink,nvrtc,nvtx]==13.0.2",
    ],
    "2.15.0": [
        "cuda-bindings<14,>=13.0.3",
        "cuda-toolkit[cudart,nvjitlink,nvrtc,nvtx]==13.2.2",
    ],
}
ALL12 = "cccl,cudart,curand,nvcc,nvjitlink,nvrtc"
ALL13 = f"{ALL12},crt,nvvm"

CUPY13 = "pip install rtcompile cupy-cuda13x nvidia-cutlass"

ENVIRONMENTS = (
    Environment("cuda12", ["pip install rtcompile[cuda12]"]),
    Environment("cuda12,cutlass", ["pip install rtcompile[cuda12,cutlass]"]),
    Environment("cuda13", ["pip install rtcompile[cuda13]"]),
    Environment("cuda13,cutlass", ["pip install rtcompile[cuda13,cutlass]"]),
    *(
        Environment(
            f"cuda-toolkit {version}",
            [f"pip install rtcompile nvidia-cutlass cuda-toolkit[{parts}]=={version}.*"],
        )
        for version, parts in (("12.9", ALL12), ("13.0", ALL13), ("13.5", ALL13))
    ),
    *(
        Environment(
            f"PyTorch {version} {how}",
            [line.replace("TORCH", f"torch=={version}") for line in commands],
        )
        for version, how, commands in (
            ("2.10.0", "first", ["pip install TORCH", "pip install rtcompile[cuda12,cutlass]"]),
            ("2.10.0", "beside", ["pip install TORCH rtcompile[cuda12,cutlass]"]),
            (
                "2.10.0",
                "first, ours alone",
                ["pip install TORCH", "pip install rtcompile cupy-cuda12x nvidia-cutlass"],
            ),
            ("2.12.1", "first", ["pip install TORCH", "pip install rtcompile[cuda13,cutlass]"]),
            ("2.12.1", "first, ours alone", ["pip install TORCH", CUPY13]),
            ("2.15.0", "first", ["pip install TORCH", "pip install rtcompile[cuda13]"]),
        )
    ),
    Environment(
        "CuPy and a system toolkit", [f"{CUPY13} nvidia-cuda-nvrtc==13.0.*"], {"CUDA_HOME": SYSTEM}
    ),
    Environment(
        "the same, CCCL by a wheel",
        [f"{CUPY13} nvidia-cuda-nvrtc==13.0.* nvidia-cuda-cccl==13.0.*"],
        {"CUDA_HOME": SYSTEM},
    ),
    Environment(
        "wheels, CCCL of the system",
        [
            "pip install rtcompile nvidia-cutlass "
            "cuda-toolkit[cudart,crt,curand,nvjitlink,nvrtc]==13.0.*"
        ],
        {"CUDA_HOME": SYSTEM},
    ),
    Environment(
        "wheels, CCCL of CuPy",
        [f"{CUPY13} cuda-toolkit[cudart,crt,curand,nvcc,nvjitlink,nvrtc,nvvm]==13.0.*"],
    ),
    Environment(
        "parts of two versions",
        [
            "pip install rtcompile[cuda13,cutlass]",
            "pip install nvidia-cuda-crt==13.5.* nvidia-cuda-nvcc==13.5.*",
        ],
    ),
    Environment(
        "conda's layout",
        [f"pip install rtcompile nvidia-cutlass cuda-toolkit[{ALL13}]==13.0.*"],
        arrange=conda_like,
    ),
    Environment("no toolkit", ["pip install rtcompile"]),
    Environment(
        "cuda12 and a system's nvcc 13.0",
        ["pip install rtcompile[cuda12,cutlass]"],
        {"CUDA_HOME": SYSTEM},
    ),
)


class Venv:
    """A virtual environment that commands are typed in."""

    def __init__(self, environment: Environment, folder: Path) -> None:
        self.prefix = folder / "venv"
        self.system = bool(environment.variables)
        subprocess.run([sys.executable, "-m", "venv", self.prefix], check=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA", "CONDA", "RTCOM"))}
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
        """Run a command; return the end of what it says if it fails."""
        words = [word.strip("'\"") for word in command.split()]
        done = subprocess.run(
            [self.prefix / "bin/python", "-m", *words, "--quiet"],
            env=self.environ,
            capture_output=True,
            text=True,
        )
        return f"{done.stdout}{done.stderr}".strip()[-500:] if done.returncode else ""

    def build(self, names: Sequence[str]) -> dict[str, dict]:
        script = Path(__file__).with_name("ten_builds.py")
        command = [self.prefix / "bin/python", script, str(int(self.system)), *names]
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, cwd=self.prefix
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        return json.loads(done.stdout.splitlines()[-1])


def run(environment: Environment, folder: Path) -> dict[str, object]:
    """Make an environment, build in it, do what its failures say, and build again."""
    begin = time.monotonic()
    venv = Venv(environment, folder)
    for command in environment.commands:
        problem = venv.type(command)
        if problem:
            raise SystemExit(f"{environment.name}: {command}: {problem}")
    environment.arrange(venv.prefix)
    report = venv.build(list(BUILDS))
    report["pip check"] = venv.type("pip check")
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
        mended = [name for name in failed if "error" not in again["builds"][name]]
        report["advice"].append({"command": commands[0], "mends": mended, "problem": problem})
        failed = {name: again["builds"][name] for name in failed if name not in mended}
    report["left"] = {name: found["text"] for name, found in failed.items()}
    report["seconds"] = round(time.monotonic() - begin)
    return report


def markdown(results: dict[str, dict]) -> str:
    """Return the page of the docs."""
    lines = [
        "# Environments",
        "",
        f"Ten builds in {len(results)} environments, made from the package index on {date.today()}"
        " by `make environments` (Linux x86-64, no GPU). ✓: NVRTC built it; ✓ nvcc: NVCC did, which"
        " is what is expected of the host code in *CUB device* and *NVCC*; 1, 2, …: it failed, and"
        " the command of that number, which the error names, mends it; ✗: no wheel does. PyTorch"
        " stands for its exact requirements, without itself. *doctor* is its verdict before: 0 all is"
        " well, 1 a look is due, 2 something that kernels need does not work.",
        "",
        "| environment | " + " | ".join(BUILDS) + " | doctor |",
        "|---" * (len(BUILDS) + 2) + "|",
    ]
    notes = []
    for environment in ENVIRONMENTS:
        if environment.name not in results:
            continue
        found = results[environment.name]
        numbers = {
            name: str(number)
            for number, advice in enumerate(found["advice"], 1)
            for name in advice["mends"]
        }
        cells = []
        for name in BUILDS:
            backend = found["builds"][name].get("backend", "")
            good = "✓ nvcc" if backend == "nvcc" else "✓"
            cells.append(good if backend else numbers.get(name, "✗"))
        lines.append(f"| {environment.name} | {' | '.join(cells)} | {found['doctor']} |")
        parts = ("nvrtc", "cudart", "crt", "cccl", "curand", "nvjitlink", "nvcc", "cutlass")
        has = ", ".join(f"{p} {found['versions'][p]}" for p in parts if p in found["versions"])
        given = [*(f"`{k}={v}`" for k, v in environment.variables.items())]
        notes += [
            f"**{environment.name}**: {', then '.join([f'`{c}`' for c in environment.commands] + given)}."
            f" Used: {has or 'nothing'}.",
            *(f"{n}. `{a['command']}`" for n, a in enumerate(found["advice"], 1) if a["mends"]),
        ]
        if found["pip check"]:
            notes.append("pip then says that PyTorch asks for other versions.")
        notes.append("")
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
            report = {"date": str(date.today()), "results": results}
            saved.write_text(json.dumps(report, indent=1) + "\n")
        (ROOT / "docs/environments.md").write_text(markdown(results))
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

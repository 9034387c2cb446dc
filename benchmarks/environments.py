"""Ten builds in each of many environments, made from the package index as users make them.

``make environments`` installs each into a virtual environment of its own, one after the other,
compiles ten sources in it, types the commands that the failures name, compiles again what failed,
and writes ``results/environments.json`` and ``docs/environments.md``. Toolkits of this machine are
seen only by the environments that name one. No GPU is needed. Arguments: names of environments.
"""

from __future__ import annotations

import json
import os
import re
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

ROOT = Path(__file__).parents[1]
SYSTEM = "/usr/local/cuda"
REDUCE = "using R = cub::BlockReduce<int, 128>; __shared__ R::TempStorage s;"
TILE = "fragment<accumulator, 16, 16, 16, float> c; fill_fragment(c, 1.0f);"
KERNEL = "__global__ void k(int* x) { *x = 42; }"

# name -> source, and the other arguments of rtcompile.compile
BUILDS: dict[str, tuple[str, dict[str, object]]] = {
    "plain": (KERNEL, {}),
    "WMMA": (
        "#include <mma.h>\nusing namespace nvcuda::wmma;\n__global__ void k(float* x) {"
        f" {TILE} store_matrix_sync(x, c, 16, mem_row_major); }}",
        {},
    ),
    "CUB block": (
        "#include <cub/block/block_reduce.cuh>\n__global__ void k(int* x) {"
        f" {REDUCE} *x = R(s).Sum(threadIdx.x); }}",
        {},
    ),
    "CUB device": (f"#include <cub/device/device_reduce.cuh>\n{KERNEL}", {}),
    "std": (
        "#include <cstdint>\n#include <limits>\n__global__ void k(std::uint32_t* x) {"
        " *x = std::numeric_limits<std::uint32_t>::max(); }",
        {},
    ),
    "cuRAND": (
        "#include <curand_kernel.h>\n__global__ void k(float* x) { curandStatePhilox4_32_10_t s;"
        " curand_init(1, 2, 0, &s); *x = curand_uniform(&s); }",
        {},
    ),
    "CuTe": (
        "#include <cute/tensor.hpp>\n__global__ void k(float* x) { cute::clear(cute::make_tensor("
        "x, cute::make_shape(cute::Int<8>{}))); }",
        {},
    ),
    "NVCC": (
        f"#include <vector>\n{KERNEL}\nint main() {{ return std::vector<int>(1, 0)[0]; }}",
        {},
    ),
    "LTO link": (
        "extern __device__ int f(int);\n__global__ void k(int* x) { *x = f(*x); }",
        {"options": ("-dlto",), "link": ["__device__ int f(int x) { return x + 1; }"]},
    ),
    "device launch": (
        "__global__ void c(int* x) { *x = 1; }\n__global__ void k(int* x) { c<<<1, 1>>>(x); }",
        {},
    ),
}


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
# without files carries them, so that pip resolves, keeps and complains as it does with PyTorch.
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
    Environment(
        "PyTorch 2.10 first",
        ["pip install torch==2.10.0", "pip install rtcompile[cuda12,cutlass]"],
    ),
    Environment("PyTorch 2.10 beside", ["pip install torch==2.10.0 rtcompile[cuda12,cutlass]"]),
    Environment(
        "PyTorch 2.10, ours alone",
        ["pip install torch==2.10.0", "pip install rtcompile cupy-cuda12x nvidia-cutlass"],
    ),
    Environment(
        "PyTorch 2.12 first",
        ["pip install torch==2.12.1", "pip install rtcompile[cuda13,cutlass]"],
    ),
    Environment(
        "PyTorch 2.12, ours alone",
        ["pip install torch==2.12.1", "pip install rtcompile cupy-cuda13x nvidia-cutlass"],
    ),
    Environment(
        "PyTorch 2.15 first", ["pip install torch==2.15.0", "pip install rtcompile[cuda13]"]
    ),
    Environment(
        "CuPy and a system toolkit",
        ["pip install rtcompile cupy-cuda13x nvidia-cuda-nvrtc==13.0.* nvidia-cutlass"],
        {"CUDA_HOME": SYSTEM},
    ),
    Environment(
        "the same, CCCL by a wheel",
        [
            "pip install rtcompile cupy-cuda13x nvidia-cuda-nvrtc==13.0.* nvidia-cutlass "
            "nvidia-cuda-cccl==13.0.*"
        ],
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
        "CCCL of CuPy",
        [
            "pip install rtcompile cupy-cuda13x nvidia-cutlass "
            "cuda-toolkit[cudart,crt,curand,nvcc,nvjitlink,nvrtc,nvvm]==13.0.*"
        ],
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


# --- in an environment ---------------------------------------------------------------------------


def build(names: Sequence[str], system: bool) -> None:
    """Compile, and print what came of it as JSON. Runs in the environment."""
    import rtcompile
    from rtcompile.doctor import examine, verdict
    from rtcompile.toolkit import current, search

    if not system:
        search.find.__kwdefaults__.update(usual_roots=(), last_steps=())
    results = {}
    for name in names:
        source, arguments = BUILDS[name]
        try:
            built = rtcompile.compile(source, arch="sm_80", name="kernel.cu", **arguments)
            results[name] = {"backend": built.build.backend}
        except rtcompile.RtcompileError as error:
            text = str(error)
            said = re.findall(r"`((?:pip|conda) install [^`]+)`", " ".join(text.split()))
            results[name] = {"error": text.splitlines()[0], "commands": said, "text": text}
    toolchain = current()
    report = {
        "builds": results,
        "versions": dict(toolchain.versions),
        "problems": toolchain.problems,
        "doctor": verdict(examine(probes=False)),
    }
    print(json.dumps(report))


# --- around them ---------------------------------------------------------------------------------


class Venv:
    """A virtual environment that commands are typed in."""

    def __init__(self, environment: Environment, folder: Path) -> None:
        self.prefix = folder / "venv"
        self.system = bool(environment.variables)
        # The interpreter is not a virtual environment's: sys.prefix of that is no conda's either.
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
        command = [self.prefix / "bin/python", __file__, "--build", str(int(self.system)), *names]
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
            requirements_only(dist, "torch", version, requires)
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
    """Write a wheel without files, with PyTorch's name: pip takes it for the real one."""
    info = f"{name}-{version}.dist-info"
    lines = [f"Requires-Dist: {requirement}" for requirement in requires]
    head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, ""]
    tag = "Wheel-Version: 1.0\nGenerator: rtcompile\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "\n".join(head))
        wheel.writestr(f"{info}/WHEEL", tag)
        wheel.writestr(f"{info}/RECORD", "")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--build"]:
        build(sys.argv[3:], bool(int(sys.argv[2])))
    else:
        main(sys.argv[1:])

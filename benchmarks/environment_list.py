"""The environments that `environments` creates: the commands for each, and changes of files afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ENVIRONMENTS", "PYTORCH", "Environment"]

SYSTEM = "/usr/local/cuda"


@dataclass(frozen=True)
class Environment:
    """The commands that create an environment; `arrange` changes the files afterwards."""

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
    "2.13.0": [
        "cuda-bindings<14,>=13.0.3",
        "cuda-toolkit[cudart,curand,nvjitlink,nvrtc,nvtx]==13.0.3",
    ],
    "2.14.0": [
        "cuda-bindings<14,>=13.0.3",
        "cuda-toolkit[cudart,curand,nvjitlink,nvrtc,nvtx]==13.0.3",
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
        for version, parts in (
            *((version, ALL12) for version in ("12.4", "12.6", "12.9")),
            *((version, ALL13) for version in ("13.0", "13.2", "13.3", "13.5")),
        )
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
            ("2.13.0", "beside", ["pip install TORCH rtcompile[cuda13,cutlass]"]),
            ("2.14.0", "beside", ["pip install TORCH rtcompile[cuda13,cutlass]"]),
            ("2.15.0", "beside", ["pip install TORCH rtcompile[cuda13,cutlass]"]),
            ("2.15.0", "first", ["pip install TORCH", "pip install rtcompile[cuda13]"]),
            (
                "2.15.0",
                "and FlashInfer",
                [
                    "pip install TORCH rtcompile[cuda13]",
                    "pip install --no-deps flashinfer-python nvidia-cutlass",
                ],
            ),
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
        "conda's layout",
        [f"pip install rtcompile nvidia-cutlass cuda-toolkit[{ALL13}]==13.0.*"],
        arrange=conda_like,
    ),
    Environment("NVRTC alone", ["pip install rtcompile nvidia-cuda-nvrtc"]),
    Environment("minimal,cutlass", ["pip install rtcompile[minimal,cutlass]"]),
    Environment(
        "all but nvcc",
        [
            "pip install rtcompile[minimal,cutlass] "
            "cuda-toolkit[cudart,curand,nvjitlink,nvrtc]==13.5.*"
        ],
    ),
    Environment("no toolkit", ["pip install rtcompile"]),
    Environment(
        "cuda12 and a system's nvcc 13.0",
        ["pip install rtcompile[cuda12,cutlass]"],
        {"CUDA_HOME": SYSTEM},
    ),
)

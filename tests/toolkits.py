"""Fake toolkits on the disk: only the files that a search reads."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rtcompile.toolkit.model import Toolchain
from rtcompile.toolkit.roots import CUTLASS_PACKAGES
from rtcompile.toolkit.search import find

needs_host_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("c++")),
    reason="NVCC needs g++, which is not installed",
)

CUDART = "#define CUDART_VERSION  {number}\n"
CCCL = "#define CCCL_VERSION {number}\n"


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def program(path: Path, version: str) -> Path:
    write(path, f'#!/bin/sh\necho "Cuda compilation tools, release {version[:4]}, V{version}"\n')
    path.chmod(0o755)
    return path


def cudart_number(version: str) -> int:
    major, minor = map(int, version.split(".")[:2])
    return major * 1000 + minor * 10


def cccl_number(version: str) -> int:
    major, minor = map(int, version.split(".")[:2])
    return 2_000_000 + (minor - 1) * 1000 if major == 12 else 3_000_000 + minor * 1000


def include(root: Path, version: str, *, cccl: str = "", without: Sequence[str] = ()) -> None:
    """Write a toolkit's headers; `cccl` is the folder of CCCL under `root`."""
    if "cudart" not in without:
        write(root / "cuda_runtime_api.h", CUDART.format(number=cudart_number(version)))
    if "crt" not in without:
        write(root / "crt/mma.h")
    if "cccl" not in without:
        write(root / cccl / "cuda/std/version")
        text = CCCL.format(number=cccl_number(version))
        write(root / cccl / "cuda/std/__cccl/version.h", text)


def library(directory: Path, version: str) -> None:
    """Write NVRTC as the installer does: a link to the file whose name contains the version."""
    major, minor = version.split(".")[:2]
    real = write(directory / f"libnvrtc.so.{version}")
    (directory / f"libnvrtc.so.{major}").symlink_to(real.name)
    write(directory / f"libnvrtc-builtins.so.{major}.{minor}")


def cutlass_header(directory: Path, version: str) -> None:
    levels = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    lines = [f"#define CUTLASS_{level} {number}" for level, number in levels]
    write(directory / "cutlass/version.h", "\n".join(lines))


class Wheels:
    """A site-packages folder; each part may have its own version, or be absent (None)."""

    def __init__(self, site: Path) -> None:
        self.site = site
        self.site.mkdir(parents=True, exist_ok=True)

    def dist(self, name: str, version: str) -> None:
        (self.site / f"{name}-{version}.dist-info").mkdir()

    def cuda12(self, version: str = "12.9.86", **of_part: str | None) -> Wheels:
        nvidia = self.site / "nvidia"
        for part, package, directory in (
            ("nvrtc", "cuda_nvrtc", "cuda_nvrtc/lib"),
            ("cudart", "cuda_runtime", "cuda_runtime/include"),
            ("crt", "cuda_nvcc", "cuda_nvcc/include"),
            ("cccl", "cuda_cccl", "cuda_cccl/include"),
        ):
            own = of_part.get(part, version)
            if own is None:
                continue
            self.dist(f"nvidia_{package}_cu12", own)
            if part == "nvrtc":
                write(nvidia / directory / "libnvrtc.so.12")
                write(nvidia / directory / f"libnvrtc-builtins.so.{own[:4]}")
            else:
                rest = [p for p in ("cudart", "crt", "cccl") if p != part]
                include(nvidia / directory, own, without=rest)
        return self

    def cuda13(self, version: str = "13.0.88", nvcc: str = "", nvvm: str = "") -> Wheels:
        cuda = self.site / "nvidia/cu13"
        write(cuda / "lib/libnvrtc.so.13")
        write(cuda / f"lib/libnvrtc-builtins.so.{version[:4]}")
        include(cuda / "include", version, cccl="cccl")
        for name in ("nvrtc", "runtime", "crt", "cccl"):
            self.dist(f"nvidia_cuda_{name}", version)
        if nvcc:
            program(cuda / "bin/nvcc", nvcc)
            self.dist("nvidia_cuda_nvcc", nvcc)
        if nvvm:
            write(cuda / "nvvm/bin/cicc")
            self.dist("nvidia_nvvm", nvvm)
        return self

    def cutlass(self, version: str, package: str = "nvidia-cutlass") -> Wheels:
        cutlass_header(self.site / CUTLASS_PACKAGES[package], version)
        return self

    def cupy(self, package: str = "cupy_cuda12x", cccl: bool = True) -> Wheels:
        root = self.site / "cupy/_core/include"
        write(root / "cupy/carray.cuh")
        if cccl:
            include(root / "cupy/_cccl/libcudacxx", "13.1", without=("cudart", "crt"))
        self.dist(package, "14.2.0")
        return self


def toolkit(root: Path, version: str, *, without: Sequence[str] = ()) -> Path:
    library(root / "lib64", version)
    include(root / "include", version, without=without)
    return root


def bundle(folder: Path, version: str) -> Path:
    """Write the headers that NVRTC unpacks from its file; cuda_runtime_api.h is not among them."""
    include(folder / "include", version, cccl="cccl", without=["cudart"])
    write(folder / "include/math_constants.h")
    return folder


def conda(prefix: Path, version: str, target: str = "x86_64-linux") -> Path:
    library(prefix / "lib", version)
    include(prefix / "targets" / target / "include", version)
    write(prefix / "include/zlib.h")
    write(prefix / f"conda-meta/cuda-nvrtc-{version}-h0_0.json")
    return prefix


def search(
    *site_dirs: Path,
    environ: Mapping[str, str] | None = None,
    usual_roots: Sequence[str] = (),
    **others: object,
) -> Toolchain:
    """Search only fake trees: no PATH and nothing of this machine, unless the test passes it."""
    return find(
        {"PATH": "", **(environ or {})},
        [str(folder) for folder in site_dirs],
        usual_roots=usual_roots,
        **{"machine": "x86_64", **others},  # type: ignore[arg-type]
    )


def drifted(wheels: Wheels, name: str, version: str) -> Path:
    """Give a wheel of CUDA 13 another version than those beside it."""
    (own,) = wheels.site.glob(f"{name}-*.dist-info")
    own.rename(own.with_name(f"{name}-{version}.dist-info"))
    return wheels.site

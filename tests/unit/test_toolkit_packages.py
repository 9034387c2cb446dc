"""What this machine really has: the environment's toolkits, and the packages of their headers."""

from __future__ import annotations

import os
import site
from pathlib import Path

import pytest

from rtcompile.settings import Settings
from rtcompile.toolkit import Toolchain, current, find, missing_header

ONE_VERSION = ("nvrtc", "cudart", "crt")


def of_cuda13(prefix: Path) -> Toolchain:
    return find({"PATH": ""}, [str(prefix)], usual_roots=(), last_steps=())


@pytest.fixture(scope="module")
def environments() -> Toolchain:
    """The CUDA 12 wheels that the tests run beside."""
    folders = site.getsitepackages()
    if not any(Path(folder, "nvidia/cuda_nvrtc").is_dir() for folder in folders):
        pytest.skip("the CUDA 12 wheels are not installed here")
    return find({"PATH": os.environ["PATH"]}, folders, usual_roots=(), last_steps=())


def versions(toolchain: Toolchain) -> set[str]:
    return {".".join(toolchain.versions[part].split(".")[:2]) for part in ONE_VERSION}


def test_the_environments_cuda_12_is_complete_and_of_one_version(environments):
    assert environments.problems == ()
    assert versions(environments) == {"12.9"}
    assert environments.versions["cccl"].startswith("2.8.")
    assert environments.nvjitlink is not None
    assert Path(environments.require_cudadevrt()).name == "libcudadevrt.a"


def test_the_cuda_13_folder_is_complete_and_of_one_version(cuda13_prefix):
    toolchain = of_cuda13(cuda13_prefix)
    assert toolchain.problems == ()
    assert versions(toolchain) == {"13.0"}
    assert toolchain.versions["cccl"].startswith("3.0.")


def test_what_is_resolved_for_this_process_is_what_the_search_finds(environments):
    settings = Settings.from_environ()
    assert current(settings).require_nvrtc().path == environments.require_nvrtc().path


@pytest.mark.parametrize(
    ("header", "package"),
    [
        pytest.param("crt/mma.h", "nvidia-cuda-nvcc-cu12", id="crt"),
        pytest.param("mma.h", "nvidia-cuda-runtime-cu12", id="wmma"),
        pytest.param("cuda_fp16.h", "nvidia-cuda-runtime-cu12", id="fp16"),
        pytest.param("cooperative_groups.h", "nvidia-cuda-runtime-cu12", id="cooperative-groups"),
        pytest.param("cooperative_groups/reduce.h", "nvidia-cuda-runtime-cu12", id="cg-reduce"),
        pytest.param("cuda/std/array", "nvidia-cuda-cccl-cu12", id="libcu++"),
        pytest.param("cub/block/block_reduce.cuh", "nvidia-cuda-cccl-cu12", id="cub"),
        pytest.param("thrust/complex.h", "nvidia-cuda-cccl-cu12", id="thrust"),
        pytest.param("cute/tensor.hpp", "nvidia-cutlass", id="cute"),
        pytest.param("cutlass/cutlass.h", "nvidia-cutlass", id="cutlass"),
        pytest.param("cupy/complex.cuh", "cupy-cuda12x", id="cupy"),
    ],
)
def test_a_header_comes_with_the_package_that_the_table_names(header, package):
    import importlib.metadata

    assert f"`pip install {package}`" in (missing_header(header) or "")
    files = importlib.metadata.files(package) or []
    assert any(str(file).endswith(f"/{header}") for file in files)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        pytest.param("curand_kernel.h", "nvidia-curand-cu12", id="curand"),
        pytest.param("nvtx3/nvtx3.hpp", "nvidia-nvtx-cu12", id="nvtx"),
        pytest.param("cufftdx.hpp", "nvidia-mathdx", id="mathdx"),
    ],
)
def test_packages_that_are_not_installed_here_are_named_too(header, said):
    assert said in (missing_header(header) or "")


@pytest.mark.parametrize("header", ["mine.h", "vector", "stdlib.h", "sub/cuda.h"])
def test_nothing_is_said_of_a_header_that_no_package_is_known_for(header):
    assert missing_header(header) is None

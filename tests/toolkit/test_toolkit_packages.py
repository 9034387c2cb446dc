"""What this machine really has: the environment's toolkits, and the packages of their headers."""

from __future__ import annotations

import os
import re
import shutil
import site
from pathlib import Path

import pytest

from rtcompile import styling
from rtcompile.diagnostic import Diagnostic
from rtcompile.messages import rendering
from rtcompile.settings import Settings
from rtcompile.toolkit.advice import missing_header, wheel_version
from rtcompile.toolkit.model import Toolchain
from rtcompile.toolkit.remembered import current
from rtcompile.toolkit.search import find
from tests.toolkits import Wheels, program, write

ONE_VERSION = ("nvrtc", "cudart", "crt")


def of_cuda13(prefix: Path) -> Toolchain:
    return find({"PATH": ""}, [str(prefix)], usual_roots=(), last=lambda _: ())


@pytest.fixture(scope="module")
def environments() -> Toolchain:
    """The CUDA 12 wheels that the tests run beside."""
    folders = site.getsitepackages()
    if not any(Path(folder, "nvidia/cuda_nvrtc").is_dir() for folder in folders):
        pytest.skip("the CUDA 12 wheels are not installed here")
    return find({"PATH": os.environ["PATH"]}, folders, usual_roots=(), last=lambda _: ())


def versions(toolchain: Toolchain) -> set[str]:
    return {".".join(toolchain.versions[part].split(".")[:2]) for part in ONE_VERSION}


@pytest.mark.needs_compiler
def test_the_environments_cuda_12_is_complete_and_of_one_version(environments):
    # An nvcc on PATH may be of another CUDA: no wheel of CUDA 12 has one.
    assert [each for each in environments.problems if not each.startswith("nvcc")] == []
    assert versions(environments) == {"12.9"}
    assert environments.versions["cccl"].startswith("2.8.")
    assert environments.nvjitlink is not None
    assert Path(str(environments.cudadevrt)).name == "libcudadevrt.a"


@pytest.mark.needs_compiler
def test_the_cuda_13_folder_is_complete_and_of_one_version(cuda13_prefix):
    toolchain = of_cuda13(cuda13_prefix)
    assert toolchain.problems == ()
    assert versions(toolchain) == {"13.0"}
    assert toolchain.versions["cccl"].startswith("3.0.")


@pytest.mark.needs_compiler
def test_what_is_resolved_for_this_process_is_what_the_search_finds(environments):
    settings = Settings.from_environ()
    assert current(settings).require_nvrtc().path == environments.require_nvrtc().path


@pytest.mark.needs_compiler
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

    advice = missing_header(header)
    assert advice is not None
    assert f"`pip install {package}`" in advice.step
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
    advice = missing_header(header)
    assert advice is not None
    assert said in advice.step


@pytest.mark.parametrize("header", ["mine.h", "vector", "stdlib.h", "sub/cuda.h"])
def test_nothing_is_said_of_a_header_that_no_package_is_known_for(header):
    assert missing_header(header) is None


# --- of this build -------------------------------------------------------------------------------


def advice_for(header: str, site: Path, backend: str = "nvrtc", path: str = "") -> str:
    toolchain = find({"PATH": path}, [str(site)], usual_roots=(), last=lambda _: ())
    advice = missing_header(header, toolchain, backend)
    assert advice is not None
    return f"{advice.what}, {advice.why}. {advice.step}"


def test_what_is_installed_in_another_version_is_not_called_missing(tmp_path):
    said = advice_for("crt/mma.h", Wheels(tmp_path).cuda12("12.8.93", crt="12.9.86").site)
    assert "not installed" not in said
    assert "version 12.9.86" in said
    assert "NVRTC 12.8.93" in said
    assert '`pip install "nvidia-cuda-nvcc-cu12==12.8.*"`' in said


def test_one_command_brings_all_that_lacks(tmp_path):
    said = advice_for("cub/cub.cuh", Wheels(tmp_path).cuda12("12.8.93", crt=None, cccl=None).site)
    command = '`pip install "nvidia-cuda-nvcc-cu12==12.8.*" "nvidia-cuda-cccl-cu12==12.8.*"`'
    assert command in said


def test_headers_that_only_nvrtc_is_given_are_not_called_missing(tmp_path):
    wheels = Wheels(tmp_path / "site").cuda12()
    write(wheels.site / "nvidia/curand/include/curand_kernel.h")
    wheels.dist("nvidia_curand_cu12", "10.3.10.19")
    nvcc = program(tmp_path / "cuda/bin/nvcc", "12.9.86")
    said = advice_for("curand_kernel.h", wheels.site, "nvcc", f"{nvcc.parent}:/usr/bin:/bin")
    assert "not installed" not in said
    assert f"nvcc 12.9.86 ({nvcc}) reads the headers of its own toolkit" in said
    assert f"-I{wheels.site}/nvidia/curand/include" in said


def test_what_nvcc_of_wheels_lacks_is_a_wheel_of_its_version(tmp_path):
    wheels = Wheels(tmp_path).cuda13("13.0.88", nvcc="13.0.88", nvvm="13.0.88").cupy("cupy_cuda13x")
    shutil.rmtree(wheels.site / "nvidia/cu13/include/cccl")
    assert '`pip install "nvidia-cuda-cccl==13.0.*"`' in advice_for(
        "cub/cub.cuh", wheels.site, "nvcc"
    )


def test_a_file_that_an_installed_package_lacks_is_not_answered_by_installing_it(tmp_path):
    said = advice_for("cuda_fp4.h", Wheels(tmp_path).cuda12().site)
    assert "which is installed, 12.9.86" in said
    assert "pip install" not in said


# --- the extras ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extras", "allowed"),
    [
        pytest.param(["cuda12"], "12.8.2 12.9.2", id="cuda12"),
        pytest.param(["cuda13"], "13.0.2 13.2.2 13.5.0", id="cuda13"),
        pytest.param(["cuda12", "cutlass"], "12.8.2 12.9.2", id="cuda12-cutlass"),
        pytest.param(["cuda13", "cutlass"], "13.0.2 13.2.2 13.5.0", id="cuda13-cutlass"),
    ],
)
def test_the_extras_take_what_pytorch_pins_and_cutlass_bounds_no_cuda(extras, allowed):
    from packaging.requirements import Requirement

    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    listed = text.partition("[project.optional-dependencies]")[2]
    wanted = []
    for extra in extras:
        (entries,) = re.findall(rf"^{extra} = \[(.*?)\]$", listed, re.DOTALL | re.MULTILINE)
        lines = [Requirement(entry) for entry in re.findall(r'"([^"]+)"', entries)]
        wanted += [each.specifier for each in lines if each.name == "cuda-toolkit"]
        # A part beside the metapackage would drift away from it.
        assert not [each.name for each in lines if each.name.startswith("nvidia-cuda-")]
    versions = ["12.6.3", "12.8.2", "12.9.2", "13.0.2", "13.2.2", "13.5.0"]
    assert [v for v in versions if all(v in each for each in wanted)] == allowed.split()


def test_a_command_in_a_hint_is_not_broken_into_lines():
    command = '`pip install "one==12.8.*" "another-package==12.8.*"`'
    diagnostic = Diagnostic("error", "cannot open", hint=f"It is not installed. {command}.")
    assert command in styling.as_text(rendering.render([diagnostic], width=40))


@pytest.mark.parametrize(
    ("part", "cuda", "wheel"),
    [
        ("crt", (12, 8), "12.8"),
        ("curand", (12, 8), "10.3.9"),
        ("curand", (13, 2), "10.4.2"),
        ("cccl", (13, 2), "13.2"),
        ("cccl", (13, 5), "13.3.5"),
    ],
)
def test_a_wheel_is_named_by_its_own_number(part, cuda, wheel):
    assert wheel_version(part, *cuda) == wheel

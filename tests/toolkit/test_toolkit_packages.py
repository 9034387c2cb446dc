"""Tests with this machine's toolkits, and of the packages of their headers."""

import importlib.metadata
import os
import re
import shutil
import site
import sys
from pathlib import Path

import pytest

from rtcompile import styling
from rtcompile.diagnostic import Diagnostic
from rtcompile.messages import rendering
from rtcompile.messages.available import missing_header
from rtcompile.toolkit import current
from rtcompile.toolkit.catalogue import wheel_version
from rtcompile.toolkit.model import Toolchain
from rtcompile.toolkit.search import find
from tests.processes import ran
from tests.tables import from_table
from tests.toolkits import Wheels, program, search, write

ROOT = Path(__file__).parents[2]
ONE_VERSION = ("nvrtc", "cudart", "crt")


def of_cuda13(prefix: Path) -> Toolchain:
    return find({"PATH": ""}, [str(prefix)], usual_roots=())


@pytest.fixture(scope="module")
def environments() -> Toolchain:
    """The CUDA 12 wheels of the test environment."""
    folders = site.getsitepackages()
    if not any(Path(folder, "nvidia/cuda_nvrtc").is_dir() for folder in folders):
        pytest.skip("the CUDA 12 wheels are not installed here")
    return find({"PATH": os.environ["PATH"]}, folders, usual_roots=())


def versions(toolchain: Toolchain) -> set[str]:
    return {".".join(toolchain.versions[part].split(".")[:2]) for part in ONE_VERSION}


@pytest.mark.needs_compiler
def test_the_environments_cuda_12_is_complete_and_consistent(environments):
    # No wheel of CUDA 12 has nvcc, so an nvcc on PATH may be of another CUDA.
    assert [each for each in environments.problems if not each.startswith("nvcc")] == []
    assert versions(environments) == {"12.9"}
    assert environments.versions["cccl"].startswith("2.8.")
    assert environments.nvjitlink is not None
    assert Path(str(environments.cudadevrt)).name == "libcudadevrt.a"
    found = current().require_nvrtc()
    assert found.path == environments.require_nvrtc().path


def test_a_python_without_site_packages_names_what_is_missing(tmp_path):
    program = """if True:
        import rtcompile
        try:
            rtcompile.compile("__global__ void k() {}", arch="sm_80", fallback="never")
        except rtcompile.ToolkitNotFound as error:
            print(error)
    """
    environ = {"PATH": "", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    done = ran(sys.executable, "-S", "-c", program, env=environ)
    assert "NVRTC" in done.stdout, done.stderr


@pytest.mark.needs_compiler
def test_the_cuda_13_folder_is_complete_and_consistent(cuda13_prefix):
    toolchain = of_cuda13(cuda13_prefix)
    assert toolchain.problems == ()
    assert versions(toolchain) == {"13.5"}
    assert toolchain.versions["cccl"].startswith("3.5.")


@pytest.mark.needs_compiler
@from_table
def test_the_table_names_the_package_of_a_header(header, package):
    assert f"`pip install {package}`" in missing_header(header)["step"]
    files = importlib.metadata.files(package) or []
    assert any(str(file).endswith(f"/{header}") for file in files)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("curand_kernel.h", "nvidia-curand-cu12"),
        ("nvtx3/nvtx3.hpp", "nvidia-nvtx-cu12"),
        ("cufftdx.hpp", "nvidia-mathdx"),
        *((header, None) for header in ("mine.h", "vector", "stdlib.h", "sub/cuda.h")),
    ],
)
def test_packages_that_are_not_installed_are_named_if_they_are_known(header, text):
    advice = missing_header(header)
    assert advice is None if text is None else text in advice["step"]


# --- advice for a build -------------------------------------------------------------------------------


def advice_for(header: str, site: Path, backend: str = "nvrtc", path: str = "") -> str:
    toolchain = search(site, environ={"PATH": path})
    advice = missing_header(header, toolchain, backend)
    return "{what}, {why}. {step}".format(**advice)


def test_a_package_of_another_version_is_not_reported_as_missing(tmp_path):
    step = advice_for("crt/mma.h", Wheels(tmp_path).cuda12("12.8.93", crt="12.9.86").site)
    assert "not installed" not in step
    assert "version 12.9.86" in step
    assert "NVRTC 12.8.93" in step
    assert '`pip install "nvidia-cuda-nvcc-cu12==12.8.*"`' in step


def test_one_command_installs_all_missing_packages(tmp_path):
    step = advice_for("cub/cub.cuh", Wheels(tmp_path).cuda12("12.8.93", crt=None, cccl=None).site)
    command = '`pip install "nvidia-cuda-nvcc-cu12==12.8.*" "nvidia-cuda-cccl-cu12==12.8.*"`'
    assert command in step


def test_headers_searched_only_by_nvrtc_are_not_reported_as_missing(tmp_path):
    wheels = Wheels(tmp_path / "site").cuda12()
    write(wheels.site / "nvidia/curand/include/curand_kernel.h")
    wheels.dist("nvidia_curand_cu12", "10.3.10.19")
    nvcc = program(tmp_path / "cuda/bin/nvcc", "12.9.86")
    step = advice_for("curand_kernel.h", wheels.site, "nvcc", f"{nvcc.parent}:/usr/bin:/bin")
    assert "not installed" not in step
    assert f"nvcc 12.9.86 ({nvcc}) reads the headers of its own toolkit" in step
    assert f"-I{wheels.site}/nvidia/curand/include" in step


def test_a_part_missing_for_nvcc_of_wheels_is_a_wheel_of_its_version(tmp_path):
    wheels = Wheels(tmp_path).cuda13("13.0.88", nvcc="13.0.88", nvvm="13.0.88").cupy("cupy_cuda13x")
    shutil.rmtree(wheels.site / "nvidia/cu13/include/cccl")
    step = advice_for("cuda/std/version", wheels.site, "nvcc")
    assert '`pip install "nvidia-cuda-cccl==13.0.*"`' in step
    step = advice_for("cuda/std/vector", wheels.site, "nvcc")  # nobody has such a header
    assert "without this file. Compare the name" in step


def test_no_advice_to_install_a_package_that_is_already_installed(tmp_path):
    step = advice_for("cuda_fp4.h", Wheels(tmp_path).cuda12().site)
    assert "which is installed, 12.9.86" in step
    assert "pip install" not in step


# --- the extras ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cutlass", [[], ["cutlass"]])
@pytest.mark.parametrize(
    ("cuda", "allowed"), [("cuda12", "12.8.2 12.9.2"), ("cuda13", "13.0.2 13.2.2 13.5.0")]
)
def test_the_extras_accept_pytorchs_pins_and_cutlass_limits_no_cuda(cuda, cutlass, allowed):
    from packaging.requirements import Requirement

    text = (ROOT / "pyproject.toml").read_text()
    listed = text.partition("[project.optional-dependencies]")[2]
    wanted = []
    for extra in (cuda, *cutlass):
        (entries,) = re.findall(rf"^{extra} = \[(.*?)\]$", listed, re.DOTALL | re.MULTILINE)
        lines = [Requirement(entry) for entry in re.findall(r'"([^"]+)"', entries)]
        wanted += [each.specifier for each in lines if each.name == "cuda-toolkit"]
        # A part beside the metapackage could get another version.
        assert not [each.name for each in lines if each.name.startswith("nvidia-cuda-")]
    versions = ["12.6.3", "12.8.2", "12.9.2", "13.0.2", "13.2.2", "13.5.0"]
    assert [v for v in versions if all(v in each for each in wanted)] == allowed.split()


def test_a_command_in_a_hint_is_not_broken_into_lines():
    command = '`pip install "one==12.8.*" "another-package==12.8.*"`'
    diagnostic = Diagnostic("error", "cannot open", hint=f"It is not installed. {command}.")
    assert command in styling.as_text(rendering.render([diagnostic], width=40))


@from_table
def test_a_wheel_is_pinned_by_its_own_numbering(part, cuda, wheel):
    assert wheel_version(part, *cuda) == wheel

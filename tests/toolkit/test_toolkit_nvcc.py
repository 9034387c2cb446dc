"""Tests of the search for nvcc, and of reports about missing parts."""

from pathlib import Path

import pytest

from rtcompile.errors import ToolkitNotFound
from rtcompile.files.headers import lies_below
from rtcompile.toolkit import model
from rtcompile.toolkit.model import Toolchain
from tests.toolkits import Wheels, drifted, program, search, write


def test_nvcc_of_nvrtcs_version_is_preferred_to_one_that_comes_first(tmp_path):
    site = Wheels(tmp_path / "site").cuda12("12.9.86").site
    on_path = program(tmp_path / "bin/nvcc", "13.0.88")
    environ = {"PATH": f"{on_path.parent}:/usr/bin:/bin"}
    # One of another CUDA is better than none, with a report.
    toolchain = search(site, environ=environ)
    assert toolchain.require_nvcc().version == "13.0.88"
    assert toolchain.found_via["nvcc"] == "PATH"
    (problem,) = toolchain.problems
    assert f"nvcc 13.0.88 ({on_path}) is of another CUDA than NVRTC 12.9.86" in problem
    assert "CUDA toolkit 12.9" in problem
    matching = program(tmp_path / "cuda-12.9/bin/nvcc", "12.9.86")
    toolchain = search(site, environ=environ, usual_roots=[str(tmp_path / "cuda-*")])
    assert toolchain.require_nvcc().path == str(matching)


@pytest.mark.parametrize(
    ("nvvm", "text"),
    [
        pytest.param("13.5.37", "nvidia-nvvm 13.5.37", id="of-another-version"),
        pytest.param("", "lacks nvidia-nvvm", id="missing"),
    ],
)
def test_pips_nvcc_without_the_nvvm_of_its_version_is_not_used(tmp_path, nvvm, text):
    toolchain = search(Wheels(tmp_path).cuda13("13.0.88", nvcc="13.0.88", nvvm=nvvm).site)
    assert toolchain.nvcc is None
    assert any(text in problem and "13.0.88" in problem for problem in toolchain.problems)


def test_pips_nvcc_on_runtime_headers_of_another_version_is_not_used(tmp_path):
    wheels = Wheels(tmp_path).cuda13("13.0.88", nvcc="13.5.37", nvvm="13.5.37")
    site = drifted(wheels, "nvidia_cuda_crt", "13.5.37")
    toolchain = search(site)
    assert toolchain.nvcc is None
    (problem,) = [p for p in toolchain.problems if p.startswith("nvcc 13.5.37")]
    assert '"nvidia-cuda-nvcc==13.0.*"' in problem
    assert "13.5.*" not in str(toolchain.problems)


def test_for_a_missing_nvcc_only_extras_with_nvcc_are_named():
    missing = search().missing["nvcc"]
    assert "rtcompile[cuda12]" not in missing
    assert '"rtcompile[cuda13]"' in missing
    assert "For CUDA 12 no wheel" in missing


def test_the_identity_of_a_wrapped_nvcc_is_that_of_its_binary(tmp_path):
    real = write(tmp_path / "cuda/bin/nvcc")
    wrapper = program(tmp_path / "bin/nvcc", "13.0.88")
    wrapper.write_text(wrapper.read_text() + f'echo "#\\$ _HERE_={real.parent}"\n')
    found = search(environ={"PATH": f"{wrapper.parent}:/usr/bin:/bin"}).require_nvcc()
    before = model.of_nvcc(found, None)
    real.write_text("upgraded")
    assert found.path == str(wrapper)
    assert model.of_nvcc(found, None) != before


@pytest.mark.parametrize("variable", ["NVCC_CCBIN", "CUDAHOSTCXX"])
def test_the_named_host_compiler_is_used(tmp_path, variable):
    named = program(tmp_path / "g++-12", "12")
    program(tmp_path / "bin/g++", "14")
    environ = {"PATH": str(tmp_path / "bin"), variable: str(named)}
    assert search(environ=environ).host_compiler == str(named)


# --- missing parts ---------------------------------------------------------------------------


def test_a_useless_cuda_path_is_ignored_and_reported(tmp_path):
    site = Wheels(tmp_path / "site").cuda12().site
    for named, state in (("nowhere", "is not there"), ("site", "contains no CUDA toolkit")):
        toolchain = search(site, environ={"CUDA_PATH": str(tmp_path / named)})
        assert toolchain.require_nvrtc().version == "12.9.86"
        (problem,) = toolchain.problems
        assert f"CUDA_PATH={tmp_path / named} {state}" in problem


def test_without_any_toolkit_the_error_lists_searched_folders_and_packages():
    toolchain = search(environ={"CUDA_PATH": "/opt/nocuda"}, usual_roots=["/opt/cuda"])
    with pytest.raises(ToolkitNotFound) as error:
        toolchain.require_nvrtc()
    for evidence in ("site-packages", "CUDA_PATH=/opt/nocuda", "/opt/cuda", "pip install"):
        assert evidence in str(error.value)


@pytest.mark.parametrize(
    ("part", "command"),
    [
        ("nvjitlink", "nvidia-nvjitlink-cu12==12.9.*"),
        ("nvcc", "CUDA toolkit 12.9"),
        ("cudadevrt", "CUDA toolkit 12.9"),
        ("host_compiler", "apt install g++"),
    ],
)
def test_an_optional_part_is_an_error_only_when_needed(tmp_path, part, command):
    toolchain = search(Wheels(tmp_path).cuda12().site)
    assert toolchain.problems == ()
    with pytest.raises(ToolkitNotFound) as error:
        getattr(toolchain, f"require_{part}", lambda: toolchain.not_found(part))()
    assert command in str(error.value)


def _is_toolkits(nvcc: Path, host: Path | None = None):
    toolchain = Toolchain(
        nvcc=model.Executable(str(nvcc), "13.0.88", str(nvcc)),
        host_compiler=None if host is None else str(host),
    )
    return lies_below(toolchain.header_folders())


def test_headers_of_a_wheels_nvcc_are_the_toolkits_and_those_beside_it_the_users(tmp_path):
    site = Wheels(tmp_path / "site").cuda13("13.0.88", nvcc="13.0.88", nvvm="13.0.88").site
    (tmp_path / "link").symlink_to(site)
    is_toolkits = _is_toolkits(site / "nvidia/cu13/bin/nvcc")

    assert is_toolkits(f"{site}/nvidia/cu13/bin/../include/cub/block")
    assert is_toolkits(f"{tmp_path}/link/nvidia/cu13/include")
    assert not is_toolkits(f"{site}/nvidia/cu13/include/../../../package/include")
    assert not is_toolkits(f"{site}/package/include")


def test_condas_folder_of_all_packages_headers_is_the_users(tmp_path):
    nvcc = program(tmp_path / "bin/nvcc", "13.0.88")
    host = write(tmp_path / "bin/x86_64-conda-linux-gnu-g++")
    (tmp_path / "conda-meta").mkdir()
    sysroot = tmp_path / "x86_64-conda-linux-gnu/sysroot"
    sysroot.mkdir(parents=True)
    is_toolkits = _is_toolkits(nvcc, host)

    assert is_toolkits(f"{tmp_path}/targets/x86_64-linux/include")
    assert is_toolkits(f"{tmp_path}/lib/gcc/x86_64-conda-linux-gnu/15/include/c++")
    assert is_toolkits(f"{sysroot}/usr/include")
    assert not is_toolkits(f"{tmp_path}/include")
    assert not is_toolkits(f"{tmp_path}/lib/python3.12/site-packages/package/include")

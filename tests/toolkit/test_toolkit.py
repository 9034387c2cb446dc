"""Tests of the toolkit search in fake trees: it finds one consistent set, whatever else is installed."""

from pathlib import Path

import pytest

from rtcompile.toolkit.model import Toolchain
from rtcompile.toolkit.roots import CUTLASS_PACKAGES
from tests.tables import from_table
from tests.toolkits import Wheels, conda, cutlass_header, drifted, program, search, toolkit, write

NEWER_CRT = ("nvidia_cuda_crt", "13.5.37")


def directories(toolchain: Toolchain) -> dict[str, str]:
    return {directory.label: directory.path for directory in toolchain.search}


# --- each layout ---------------------------------------------------------------------------------


LAYOUTS = {
    "site": lambda at, version: Wheels(at).cuda12(version).site,
    "site 13": lambda at, version: Wheels(at).cuda13(version).site,
    "CONDA_PREFIX": conda,
    "CUDA_PATH": toolkit,
    "CUDA_HOME": toolkit,
    "usual": lambda at, version: toolkit(at / f"cuda-{version}", version).parent / "cuda-*",
}


def search_layouts(made):
    """Search toolkits by the names of their layouts."""
    sites = [path for name, path in made.items() if name.startswith("site")]
    environ = {name: str(path) for name, path in made.items() if name.isupper()}
    usual = [str(path) for name, path in made.items() if name == "usual"]
    return search(*sites, environ=environ, usual_roots=usual)


@from_table
def test_a_complete_toolkit_is_found_in_every_layout(tmp_path, layout, found_via, version, cccl):
    toolchain = search_layouts({layout: LAYOUTS[layout](tmp_path, version)})
    assert toolchain.problems == ()
    assert toolchain.require_nvrtc().version == version
    assert set(toolchain.found_via.values()) == {found_via}
    found = [d.path for d in toolchain.search if d.label not in ("rtcompile", "shims")]
    assert str(tmp_path / cccl) in found
    assert str(tmp_path / "include") not in found or "CUDA" in layout  # of other conda packages


def test_nvrtc_has_the_path_of_its_builtins_and_without_them_is_a_problem(tmp_path):
    site = Wheels(tmp_path).cuda12().site
    nvrtc, folder = search(site).require_nvrtc(), tmp_path / "nvidia/cuda_nvrtc/lib"
    assert nvrtc.path == str(folder / "libnvrtc.so.12")
    assert nvrtc.preload == (str(folder / "libnvrtc-builtins.so.12.9"),)
    (folder / "libnvrtc-builtins.so.12.9").unlink()
    assert any("libnvrtc-builtins is not beside" in p for p in search(site).problems)


def test_the_target_of_an_arm_server_is_called_sbsa(tmp_path):
    prefix = conda(tmp_path, "12.9.86", target="sbsa-linux")
    toolchain = search(environ={"CONDA_PREFIX": str(prefix)}, machine="aarch64")
    assert directories(toolchain)["cudart"] == str(prefix / "targets/sbsa-linux/include")


def test_a_folder_with_the_hosts_headers_is_never_searched(tmp_path):
    root = toolkit(tmp_path, "12.9.86")
    write(root / "include/stdlib.h")
    toolchain = search(environ={"CUDA_PATH": str(root)})
    assert str(root / "include") not in directories(toolchain).values()
    assert "cudart" in toolchain.missing


@pytest.mark.parametrize("variable", ["CUDA_PATH", "CUDA_HOME", "PATH"])
def test_a_toolkit_with_a_link_and_two_dots_is_resolved_by_the_system(tmp_path, variable):
    (tmp_path / "real/bin").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/bin")
    for folder, version in ((tmp_path / "real", "12.8.93"), (tmp_path, "12.9.86")):
        program(toolkit(folder, version) / "bin/nvcc", version)
    below = "/bin" if variable == "PATH" else ""
    toolchain = search(environ={variable: f"{tmp_path}/link/..{below}"})
    assert toolchain.require_nvrtc().version == "12.8.93"


def test_rtcompiles_headers_are_searched_last_and_nvcc_gets_no_cuda_headers_and_no_shims(tmp_path):
    site = Wheels(tmp_path).cuda12().cupy().site
    write(site / "cutlass_library/source/include/cutlass/version.h")
    found = search(site)
    labels = [d.label for d in found.search]
    assert labels == ["forward", "cudart", "crt", "cccl", "cutlass", "cupy", "rtcompile", "shims"]
    assert cccl_directories(found) == [str(site / "nvidia/cuda_cccl/include")]
    assert [d.label for d in found.nvcc_search] == ["cutlass", "cupy", "rtcompile"]


# --- one set -------------------------------------------------------------------------------------


def test_the_first_complete_toolkit_is_used(tmp_path):
    order = {"site": "12.9.86", "CONDA_PREFIX": "12.8.93", "CUDA_PATH": "12.6.85"}
    order |= {"CUDA_HOME": "12.5.82", "usual": "12.4.131"}
    made = {name: LAYOUTS[name](tmp_path / name, version) for name, version in order.items()}
    for name, version in order.items():
        toolchain = search_layouts(made)
        assert (name, toolchain.require_nvrtc().version) == (name, version)
        assert len(set(toolchain.found_via.values())) == 1
        del made[name]


def test_the_newest_of_the_systems_toolkits_is_tried_first(tmp_path):
    for version in ("12.9.86", "12.10.1", "12.4.131"):
        toolkit(tmp_path / f"cuda-{version}", version)
    toolchain = search(usual_roots=[str(tmp_path / "cuda-*")])
    assert toolchain.require_nvrtc().version == "12.10.1"


@pytest.mark.parametrize(
    "wheels",
    [
        pytest.param(lambda at: Wheels(at).cuda12("12.9.86", crt=None).site, id="incomplete"),
        pytest.param(lambda at: drifted(Wheels(at).cuda13("13.0.88"), *NEWER_CRT), id="mixed"),
    ],
)
def test_a_complete_toolkit_is_preferred_to_incomplete_wheels(tmp_path, wheels):
    root = toolkit(tmp_path / "cuda", "12.6.85")
    toolchain = search(wheels(tmp_path / "site"), environ={"CUDA_PATH": str(root)})
    assert toolchain.require_nvrtc().version == "12.6.85"
    assert set(toolchain.found_via.values()) == {"CUDA_PATH"}
    assert toolchain.problems == ()


def test_a_missing_part_is_taken_from_a_toolkit_of_the_same_minor(tmp_path):
    site = Wheels(tmp_path / "site").cuda12("12.9.86", crt=None).site
    root = toolkit(tmp_path / "cuda", "12.9.41", without=("cccl",))
    # No NVRTC there: it cannot be chosen as a whole.
    for file in (root / "lib64").iterdir():
        file.unlink()
    toolchain = search(site, environ={"CUDA_PATH": str(root)})
    assert toolchain.problems == ()
    assert toolchain.found_via["crt"] == "CUDA_PATH"
    assert toolchain.found_via["cudart"] == "site-packages"


def test_a_part_of_another_version_is_not_used_and_both_versions_are_named(tmp_path):
    site = Wheels(tmp_path).cuda12("12.9.86", cudart="12.6.77").site
    toolchain = search(site)
    assert "cudart" not in directories(toolchain)
    (problem,) = toolchain.problems
    assert "12.6.77" in problem
    assert str(site / "nvidia/cuda_runtime/include/cuda_runtime_api.h") in problem
    assert "12.9.86" in problem
    assert toolchain.require_nvrtc().path in problem
    assert 'pip install "nvidia-cuda-runtime-cu12==12.9.*"' in problem


def test_an_unused_toolkit_of_another_version_is_not_reported(tmp_path):
    site = Wheels(tmp_path / "site").cuda12().site
    root = toolkit(tmp_path / "cuda-13.0", "13.0.88")
    write(root / "lib64/libnvJitLink.so.13.0.88")
    (root / "lib64/libnvJitLink.so.13").symlink_to("libnvJitLink.so.13.0.88")
    toolchain = search(site, usual_roots=[str(tmp_path / "cuda-*")])
    assert toolchain.problems == ()
    assert "version 13.0.88" in toolchain.missing["nvjitlink"]


@pytest.mark.parametrize(
    ("part", "wheel"), [("crt", "nvcc"), ("cudart", "runtime"), ("cccl", "cccl")]
)
def test_missing_headers_are_reported_with_the_command_to_install_them(tmp_path, part, wheel):
    (problem,) = search(Wheels(tmp_path).cuda12(**{part: None}).site).problems
    assert f'pip install "nvidia-cuda-{wheel}-cu12==12.9.*"' in problem


def test_a_folder_with_a_part_of_another_version_is_not_searched(tmp_path):
    site = drifted(Wheels(tmp_path).cuda13("13.0.88"), *NEWER_CRT)
    toolchain = search(site)
    assert str(site / "nvidia/cu13/include") not in directories(toolchain).values()
    assert "crt headers" in toolchain.missing["cudart"]
    for part in ("cudart", "crt"):
        assert "version 13.5.37" in toolchain.missing[part]
        assert '`pip install "nvidia-cuda-crt==13.0.*"`' in toolchain.missing[part]


def test_a_newer_nvjitlink_of_the_major_version_links_and_an_older_one_does_not(tmp_path):
    for version, good in (("13.5.37", True), ("13.0.88", False), ("12.9.86", False)):
        wheels = Wheels(tmp_path / version).cuda13("13.2.86")
        write(wheels.site / "nvidia/cu13/lib/libnvJitLink.so.13")
        wheels.dist("nvidia_nvjitlink", version)
        assert (search(wheels.site).nvjitlink is not None) is good


def test_this_pythons_conda_environment_precedes_the_active_one(tmp_path):
    own = conda(tmp_path / "kernel", "12.9.86")
    active = conda(tmp_path / "jupyter", "12.6.85")
    environ = {"CONDA_PREFIX": str(active)}
    assert search(environ=environ, prefix=str(own)).require_nvrtc().version == "12.9.86"
    assert search(environ=environ, prefix=str(tmp_path)).require_nvrtc().version == "12.6.85"


@pytest.mark.parametrize(
    ("cuda", "wheel", "part", "version"),
    [
        pytest.param(
            "13.0.88", ("nvidia_cuda_runtime", "12.6.77"), "cudart", "13.0", id="outdated"
        ),
        pytest.param("13.5.37", ("nvidia_cuda_cccl", "13.3.5.0.6"), "cccl", "3.5.0", id="its own"),
    ],
)
def test_a_header_counts_and_not_the_number_of_its_wheel(tmp_path, cuda, wheel, part, version):
    toolchain = search(drifted(Wheels(tmp_path).cuda13(cuda), *wheel))
    assert toolchain.problems == ()
    assert toolchain.versions[part] == version


def test_the_cuda_of_cupys_major_version_is_preferred(tmp_path):
    site = Wheels(tmp_path).cuda12().cuda13().site
    assert search(site).require_nvrtc().version_pair == (13, 0)
    Wheels(tmp_path).cupy("cupy_cuda12x")
    assert search(site).require_nvrtc().version_pair == (12, 9)


# --- CCCL: exactly one ---------------------------------------------------------------------------


def cccl_directories(toolchain: Toolchain) -> list[str]:
    return [d.path for d in toolchain.search if (Path(d.path) / "cuda/std/version").exists()]


def test_wheels_that_lack_only_cccl_are_complete_with_cupys(tmp_path):
    site = Wheels(tmp_path / "site").cuda12("12.9.86", cccl=None).cupy().site
    environ = {"CUDA_PATH": str(toolkit(tmp_path / "cuda", "12.6.85"))}
    toolchain = search(site, environ=environ)
    root = site / "cupy/_core/include/cupy/_cccl"
    assert toolchain.problems == ()
    assert toolchain.require_nvrtc().version == "12.9.86"
    assert toolchain.found_via["cccl"] == "cupy"
    assert cccl_directories(toolchain) == [str(root / "libcudacxx")]
    assert directories(toolchain)["cccl-cub"] == str(root / "cub")
    assert directories(toolchain)["cccl-thrust"] == str(root / "thrust")


def test_a_cccl_of_another_version_is_reported_and_cupys_used(tmp_path):
    toolchain = search(Wheels(tmp_path).cuda12(cccl="12.6.77").cupy().site)
    assert toolchain.found_via["cccl"] == "cupy"
    (problem,) = toolchain.problems
    assert "12.6.77" in problem
    assert "CuPy's own copy" in problem


def test_a_second_cccl_beside_the_runtime_headers_is_not_searched(tmp_path):
    site = Wheels(tmp_path / "site").cuda12("12.9.86", cudart=None, crt=None).site
    root = toolkit(tmp_path / "cuda", "12.9.41")
    for file in (root / "lib64").iterdir():
        file.unlink()
    toolchain = search(site, environ={"CUDA_PATH": str(root)})
    assert directories(toolchain)["cudart"] == str(root / "include")
    assert cccl_directories(toolchain) == [str(root / "include")]


def test_curands_wheel_is_searched_despite_its_own_numbering(tmp_path):
    wheels = Wheels(tmp_path).cuda12()
    write(tmp_path / "nvidia/curand/include/curand_kernel.h")
    wheels.dist("nvidia_curand_cu12", "10.3.10.19")
    toolchain = search(wheels.site)
    assert directories(toolchain)["curand"] == str(tmp_path / "nvidia/curand/include")
    assert toolchain.problems == ()


# --- CUTLASS, CuPy -------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["RTCOMPILE_CUTLASS_PATH", "CUTLASS_PATH"])
@pytest.mark.parametrize("below", ["include", ""], ids=["checkout", "include-folder"])
def test_a_named_cutlass_precedes_the_wheel(tmp_path, variable, below):
    site = Wheels(tmp_path / "site").cuda12().site
    write(site / "cutlass_library/source/include/cutlass/version.h")
    cutlass_header(tmp_path / "mine" / below, "4.3.1")
    toolchain = search(site, environ={variable: str(tmp_path / "mine")})
    assert directories(toolchain)["cutlass"] == str(tmp_path / "mine" / below).rstrip("/")
    assert toolchain.versions["cutlass"] == "4.3.1"
    assert toolchain.found_via["cutlass"] == variable


@pytest.mark.parametrize("variable", ["RTCOMPILE_CUTLASS_PATH", "CUTLASS_PATH"])
def test_a_missing_folder_in_a_cutlass_variable_is_reported_and_in_the_common_one_ignored(
    tmp_path, variable
):
    site = Wheels(tmp_path).cuda12().site
    write(site / "cutlass_library/source/include/cutlass/version.h")
    toolchain = search(site, environ={variable: str(tmp_path / "no")})
    (problem,) = toolchain.problems
    assert f"{variable}={tmp_path / 'no'} names no CUTLASS" in problem
    assert str(tmp_path / "no/include/cutlass/version.h") in problem
    assert ("cutlass" in directories(toolchain)) is (variable == "CUTLASS_PATH")
    assert toolchain.missing.get("cutlass", problem) == problem


@from_table
def test_cutlass_is_searched_after_the_shims_that_it_needs(tmp_path, cuda, version, labels, fits):
    site = Wheels(tmp_path).cuda13(cuda).cutlass(version).site
    toolchain = search(site)
    assert [d.label for d in toolchain.search if d.label.startswith("cutlass")] == labels
    assert fits == (toolchain.problems == ())
    assert fits or f"CUTLASS {version} ({site}" in toolchain.problems[0]
    assert fits or f"CUDA {cuda} (CCCL 3.5.0)" in toolchain.problems[0]
    assert fits or "`pip install nvidia-cutlass`" in toolchain.problems[0]


@pytest.mark.parametrize(
    "packages", [["nvidia-cutlass", "flashinfer-python"], ["vllm", "tilelang"]]
)
def test_the_newest_cutlass_of_any_package_is_used(tmp_path, packages):
    wheels = Wheels(tmp_path).cuda13("13.5.37").cutlass("4.2.0", packages[0])
    toolchain = search(wheels.cutlass("4.5.0", packages[1]).site)
    assert directories(toolchain)["cutlass"] == str(tmp_path / CUTLASS_PACKAGES[packages[1]])
    assert toolchain.versions["cutlass"] == "4.5.0"
    reason = f"{packages[1]}, the newest that goes with CUDA 13.5.37 (there is 4.2.0 of {packages[0]} too)"
    assert toolchain.found_via["cutlass"] == reason


def test_where_no_cutlass_fits_the_newest_is_used_and_that_is_said(tmp_path):
    wheels = Wheels(tmp_path).cuda12("12.4.131").cutlass("4.8.0")
    toolchain = search(wheels.cutlass("4.7.0", "flashinfer-python").site)
    assert toolchain.versions["cutlass"] == "4.8.0"
    assert "the newest, though none goes with CUDA 12.4.131" in toolchain.found_via["cutlass"]
    assert "CUTLASS 4.8.0" in toolchain.problems[0]


def test_a_newer_incompatible_cutlass_is_skipped(tmp_path):
    wheels = Wheels(tmp_path).cuda12("12.4.131").cutlass("4.2.0")
    toolchain = search(wheels.cutlass("4.7.0", "flashinfer-python").site)
    assert toolchain.versions["cutlass"] == "4.2.0"
    assert toolchain.problems == ()


def test_a_named_incompatible_cutlass_is_used_with_advice_to_replace_it(tmp_path):
    site = Wheels(tmp_path / "site").cuda12("12.4.131").cutlass("4.2.0").site
    Wheels(tmp_path / "mine").cutlass("4.7.0")
    checkout = tmp_path / "mine" / CUTLASS_PACKAGES["nvidia-cutlass"]
    toolchain = search(site, environ={"CUTLASS_PATH": str(checkout)})
    assert toolchain.versions["cutlass"] == "4.7.0"
    assert "unset CUTLASS_PATH and `pip install nvidia-cutlass`" in toolchain.problems[0]


def test_condas_cutlass_is_searched_after_all_others(tmp_path):
    prefix = conda(tmp_path, "12.9.86")
    cutlass_header(prefix / "include", "4.3.1")
    toolchain = search(environ={"CONDA_PREFIX": str(prefix)})
    assert toolchain.search[-1] == ("cutlass", str(prefix / "include"))
    write(prefix / "include/stdlib.h")
    assert "cutlass" in search(environ={"CONDA_PREFIX": str(prefix)}).missing

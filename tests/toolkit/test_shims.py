"""Tests of the std shims: which headers can be included, and that they match other compilers'."""

from __future__ import annotations

import importlib.util
import site
from collections.abc import Sequence
from pathlib import Path

import pytest

from rtcompile.files.headers import SearchDir
from rtcompile.toolkit.search import find

pytestmark = pytest.mark.needs_compiler

SHIMS = Path(__file__).parents[2] / "include_shims/std"

# Headers that libcu++ 2.8 (CUDA 12.9) lacks, although the shims exist.
LATER = {"charconv", "linalg", "numbers", "random", "string_view"}
HEADERS = sorted(path.name for path in SHIMS.iterdir() if not path.name.startswith("rtcompile_"))
# Most shims are these three lines, which include libcu++'s header of the same name.
FORWARD = '#pragma once\n#include <cuda/std/{0}>\n#include "rtcompile_std.h"\n'
FORWARDS = [name for name in HEADERS if (SHIMS / name).read_text() == FORWARD.format(name)]

KERNEL = 'extern "C" __global__ void k(float* a, uint32_t* b, int n) {{\n{body}\n}}\n'

USED = Path(__file__).with_name("uses_std.inc").read_text()
TOGETHER = [name for name in HEADERS if name not in LATER]

CHECKS = Path(__file__).with_name("types_of_std.cuh").read_text()

LIBRARIES = {
    "cute": (
        "#include <cute/tensor.hpp>\n",
        "a[0] = cute::make_tensor(cute::make_gmem_ptr(a), cute::make_layout(cute::Int<8>{}))(1);",
    ),
    "cub": (
        "#include <cub/block/block_reduce.cuh>\n#include <cub/warp/warp_scan.cuh>\n",
        "__shared__ typename cub::BlockReduce<float, 128>::TempStorage scratch;\n"
        "a[0] = cub::BlockReduce<float, 128>(scratch).Sum(a[threadIdx.x]);",
    ),
    "cupy": (
        "#include <cupy/complex.cuh>\n#include <cupy/carray.cuh>\n#include <cupy/atomics.cuh>\n"
        "#include <cupy/cuda_workaround.h>\n#include <cuda.h>\n",
        "::complex<float> z(1, 2);\na[0] = abs(z * z) + real(exp(z)) + sizeof(CUtensorMap);",
    ),
}


def including(headers: Sequence[str]) -> str:
    return "".join(f"#include <{header}>\n" for header in headers)


class Compiler:
    """An NVRTC and the headers of its version."""

    def __init__(self, nvrtc, search: Sequence[SearchDir]) -> None:
        self.nvrtc = nvrtc
        self.search = search

    def errors(self, source: str, *options: str, arch: str = "sm_90a", std: str = "c++17") -> str:
        """Return the errors, and warnings about rtcompile's own headers."""
        folders = [f"-I{directory.path}" for directory in self.search]
        fixed = (f"-arch={arch}", f"-std={std}", "-default-device", "-DNDEBUG")
        outcome = self.nvrtc.compile(source, *fixed, *options, *folders)
        return outcome.log if outcome.code is None or "include_shims" in outcome.log else ""

    def without(self, *labels: str) -> Compiler:
        return Compiler(self.nvrtc, [d for d in self.search if d.label not in labels])


@pytest.fixture(scope="session")
def compiler12(nvrtc12) -> Compiler:
    return Compiler(nvrtc12, find({"PATH": ""}, site.getsitepackages(), usual_roots=()).search)


@pytest.fixture(scope="session")
def compiler13(nvrtc13, cuda13_prefix, tmp_path_factory) -> Compiler:
    # The folder may contain only NVIDIA's wheels, so CUTLASS and CuPy's headers are this environment's.
    extra = tmp_path_factory.mktemp("site-packages")
    for name in ("cutlass_library", "cupy"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            (extra / name).symlink_to(Path(spec.origin).parent)
    folders = [str(cuda13_prefix), str(extra)]
    return Compiler(nvrtc13, find({"PATH": ""}, folders, usual_roots=()).search)


@pytest.fixture(params=["compiler12", "compiler13"], ids=["cuda12", "cuda13"])
def compiler(request: pytest.FixtureRequest) -> Compiler:
    made: Compiler = request.getfixturevalue(request.param)
    return made


@pytest.mark.some(6)
@pytest.mark.parametrize(
    "header",
    [
        pytest.param(header, marks=[pytest.mark.slow] * (header in FORWARDS[1:]))
        for header in TOGETHER
    ],
)
def test_each_header_compiles_on_its_own(compiler12, header):
    assert compiler12.errors(including([header])) == ""


@pytest.mark.slow
def test_headers_that_forward_compile_in_the_other_order(compiler12):
    names = [name for name in FORWARDS if name not in LATER]
    assert len(names) > 20
    assert compiler12.errors(including(names[::-1])) == ""


@pytest.mark.parametrize(
    ("compiler", "arch", "std"),
    [
        pytest.param("compiler12", "sm_80", "c++17", marks=pytest.mark.slow),
        ("compiler13", "sm_90a", "c++20"),
        pytest.param("compiler13", "sm_120a", "c++17", marks=pytest.mark.slow),
    ],
)
def test_a_program_that_includes_them_all_and_uses_std_compiles(compiler, arch, std, request):
    source = including(TOGETHER) + CHECKS + KERNEL.format(body=USED)
    assert request.getfixturevalue(compiler).errors(source, arch=arch, std=std) == ""


# CUDA 12 has all libraries at once, and CUDA 13 the one that compiles fastest in the other order.
@pytest.mark.parametrize(
    ("compiler", "std_first", "libraries"),
    [
        pytest.param(
            compiler,
            std_first,
            libraries,
            id=f"{compiler}-{std_first}-{'+'.join(libraries)}",
            marks=[pytest.mark.slow]
            * (
                (compiler, std_first, *libraries)
                not in [("compiler12", False, *LIBRARIES), ("compiler13", True, "cupy")]
            ),
        )
        for compiler in ("compiler12", "compiler13")
        for std_first in (False, True)
        for libraries in ([*LIBRARIES], *([name] for name in LIBRARIES))
    ],
)
def test_std_can_be_combined_with_device_libraries_in_either_order(
    libraries, compiler, std_first, request
):
    includes, bodies = zip(*(LIBRARIES[name] for name in libraries), strict=True)
    std = including(["algorithm", "cfloat", "cmath", "complex", "cstdint", "tuple", "utility"])
    use = "a[1] = std::max(std::floor(a[2]), std::abs(std::complex<float>(1, 2)));"
    parts = (std, *includes) if std_first else (*includes, std)
    source = "".join(parts) + KERNEL.format(
        body="".join(f"{{ {body} }}" for body in (*bodies, use))
    )
    assert request.getfixturevalue(compiler).errors(source) == ""


def test_cupys_headers_compile_with_the_cccl_inside_cupy(compiler12, tmp_path):
    for name in ("nvidia/cuda_nvrtc", "nvidia/cuda_runtime", "nvidia/cuda_nvcc", "cupy"):
        origin = next(Path(folder, name) for folder in site.getsitepackages())
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(origin)
    search = find({"PATH": ""}, [str(tmp_path)], usual_roots=()).search
    includes, body = LIBRARIES["cupy"]
    with_cupys = Compiler(compiler12.nvrtc, search)
    assert with_cupys.errors("#include <cstdint>\n" + includes + KERNEL.format(body=body)) == ""


def test_the_toolkits_own_cuda_h_compiles(compiler):
    use = "CUtensorMap m; CUdeviceptr p = 0; a[0] = sizeof(m) + p + CUDA_VERSION;"
    assert compiler.errors("#include <cuda.h>\n" + KERNEL.format(body=use)) == ""


@pytest.mark.some(1)
def test_using_namespace_std_leaves_math_unambiguous(compiler):
    source = including(["cmath", "algorithm", "cstdint"]) + "using namespace std;\n"
    use = (
        "a[0] = sqrt(a[1]) + floor(a[2]) + pow(a[3], 2.f) + abs(a[4]) + max(a[5], 1.f) + min(n, 2);"
    )
    assert compiler.errors(source + KERNEL.format(body=use)) == ""


BUILDER = "#include <cutlass/epilogue/collective/collective_builder.hpp>\n"


@pytest.mark.some(1)
def test_the_prelude_declares_names_of_std(compiler):
    names = "std::min(1, 2); std::floor(1.f); std::int8_t(1); std::numeric_limits<int>::max(); "
    names += "std::make_tuple(1); std::is_same<int, int>(); std::make_pair(1, 2);"
    kernel = f"__global__ void k() {{ {names} }}"
    assert compiler.errors(kernel, "-include=rtcompile_prelude.h") == ""


@pytest.mark.slow
def test_the_prelude_declares_the_names_of_std_that_cutlass_uses(compiler):
    assert compiler.errors(BUILDER, "-include=rtcompile_prelude.h") == ""


@pytest.mark.slow  # it shows that the prelude is still needed
def test_without_the_prelude_cutlass_lacks_names_of_std(compiler):
    assert 'namespace "std" has no member' in compiler.errors(BUILDER)


@pytest.mark.parametrize("header", ["vector", "map", "thread", "no_such_header"])
def test_a_header_that_no_device_supports_is_missing_by_name(compiler12, header):
    assert f'"{header}"' in compiler12.errors(including([header]))


@pytest.mark.parametrize("header", sorted(LATER))
def test_a_header_that_this_libcuxx_lacks_is_missing_by_name(compiler12, header):
    assert f'open source file "{header}"' in compiler12.errors(including([header]))


@pytest.mark.parametrize(
    ("header", "use"),
    [("iostream", "std::cout << n;"), ("string", "std::string s;"), ("cstdio", "std::fopen;")],
)
def test_a_name_that_an_empty_shim_lacks_is_an_error_that_names_it(compiler12, header, use):
    errors = compiler12.errors(including([header, "cstdint"]) + KERNEL.format(body=use))
    assert 'namespace "std" has no member' in errors


def test_without_cccl_the_error_names_libcuxxs_header(compiler12):
    errors = compiler12.without("cccl").errors(including(["array"]))
    assert 'open source file "cuda/std/array"' in errors


def test_shims_are_found_after_headers_of_other_packages(compiler12, tmp_path):
    (tmp_path / "vector").write_text("#define MINE\n")
    (tmp_path / "cmath").write_text("#define MINE\n")
    source = "#include <cmath>\n#ifndef MINE\n#error not mine\n#endif\n"
    mine = Compiler(compiler12.nvrtc, [SearchDir("user0", str(tmp_path)), *compiler12.search])
    assert mine.errors(source) == ""


# --- <cccl/X> ------------------------------------------------------------------------------------

CCCL_SHIMS = Path(__file__).parents[2] / "include_shims/cccl"


def test_every_public_header_of_libcuxx_and_cubs_collectives_is_forwarded(compiler):
    (root,) = (Path(d.path) for d in compiler.search if d.label == "cccl")
    public = [
        path.relative_to(root)
        for folder in ("cuda/std", "cuda", "cub/block", "cub/warp", "cub/device")
        for path in (root / folder).iterdir()
        if path.is_file()
        and "_" not in (path.name[0], path.name[-1])
        # CCCL 3.5 splits <cuda/std/algorithm> into headers such as <cuda/std/algorithm.copy.h>.
        and (path.suffix == ".cuh" or not path.suffix)
    ]
    assert len(public) > 60
    assert [name for name in public if not (CCCL_SHIMS / "cccl" / name).is_file()] == []


def test_cccl_includes_find_the_chosen_version(compiler12, tmp_path):
    other = tmp_path / "cccl/cuda/std/cstddef"
    other.parent.mkdir(parents=True)
    other.write_text("#error a CCCL that was not chosen\n")
    first, *rest = compiler12.search
    mixed = Compiler(compiler12.nvrtc, [first, SearchDir("cudart", str(tmp_path)), *rest])
    source = "#include <cccl/cuda/std/cstddef>\nstatic_assert(sizeof(cuda::std::size_t) == 8);\n"
    assert mixed.errors(source) == ""
    assert "a CCCL that was not chosen" in mixed.without("forward").errors(source)

"""Tests of the shims that let CUTLASS compile with a newer CCCL than its own."""

from pathlib import Path

import pytest

from rtcompile.toolkit.search import find
from tests.toolkits import write

pytestmark = pytest.mark.needs_compiler

SHIMS = Path(__file__).parents[2] / "include_shims/cutlass"

# Declarations of CCCL 3.2 (CUDA 13.2): templates of one type; declaring their names again is an error.
STRUCTURED_BINDINGS = """
#ifndef _LIBCUDACXX___TUPLE_STRUCTURED_BINDINGS_H
#define _LIBCUDACXX___TUPLE_STRUCTURED_BINDINGS_H
#include <cuda/std/cstddef>
namespace std {
template <class T> struct tuple_size;
template <cuda::std::size_t I, class T> struct tuple_element;
}
#endif
"""
# Additions of CCCL 3.5 (CUDA 13.5).
GET = """
#include <cuda/std/utility>
namespace cuda::std {
template <size_t I, class T, T... Is>
__host__ __device__ constexpr T get(integer_sequence<T, Is...>) noexcept { return T(I); }
}
"""

USE = Path(__file__).with_name("uses_cute.cu").read_text()


@pytest.fixture(scope="session")
def errors(nvrtc13, cuda13_prefix, tmp_path_factory):
    """Compile with the CCCL of CUDA 13, optionally with the declarations of 13.2."""
    cutlass = Path(pytest.importorskip("cutlass_library").__file__).parent / "source/include"
    newer = tmp_path_factory.mktemp("newer")
    write(newer / "cuda/std/__tuple_dir/structured_bindings.h", STRUCTURED_BINDINGS)
    found = find({"PATH": ""}, [str(cuda13_prefix)], usual_roots=()).search

    def compile(source: str, *first: str) -> str:
        named = {"newer": newer, "shims": SHIMS}
        folders = [*(named[name] for name in first), cutlass, *(d.path for d in found)]
        fixed = ("-arch=compute_90", "-std=c++17", "-default-device", "-DNDEBUG")
        outcome = nvrtc13.compile(source, *fixed, *(f"-I{folder}" for folder in folders))
        return outcome.log if "error" in outcome.log else ""

    return compile


def test_tuple_size_comes_from_cccl_and_get_from_cute(errors):
    assert errors(GET + USE, "newer", "shims") == ""


@pytest.mark.slow  # these show that the shims are still needed
def test_without_the_shims_each_change_of_cccl_is_an_error(errors):
    assert "declaration is incompatible" in errors(USE, "newer")
    assert "more than one instance" in errors(GET + USE)

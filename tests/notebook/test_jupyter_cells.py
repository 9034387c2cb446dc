"""Tests of what is read in a cell's text: its kernels and its variables."""

import pytest

pytest.importorskip("IPython", reason="IPython is not installed: it is in the extra `test`")

from rtcompile.cubin import cpp_name
from rtcompile.extras.notebook import kernels
from rtcompile.extras.notebook.kernels import own_variables
from rtcompile.request import cxx
from tests.tables import from_table

TWO = """\
#include "common.cuh"
constexpr int N = 4;

__global__ void one(float* x) { x[0] = N; }

template <class T>
__global__ void __launch_bounds__(128, 2) two(T* x, int n) {
    if (n) x[0] = 2;
}
"""


# --- definitions ---------------------------------------------------------------------------------


@from_table
def test_a_kernel_is_found(text, qualified, parameters, template):
    (kernel,) = kernels.find(text)
    assert (kernel.qualified, kernel.parameters, kernel.template) == (
        qualified,
        parameters,
        template,
    )


def test_a_template_and_its_specialisation_are_one_kernel():
    text = (
        "template <class T> __global__ void k(T x) {}\ntemplate <> __global__ void k<int>(int x) {}"
    )
    (kernel,) = kernels.find(text)
    assert kernel.template == ("T",)


@from_table
def test_unusual_text_hides_no_following_kernel(before):
    text = before + "__global__ void b(int* x) {}\n"
    assert [kernel.name for kernel in kernels.find(text)][-1] == "b"


@pytest.mark.parametrize(
    "text", ["__global__ void k(int);", "struct S { friend __global__ void k(S); };", ""]
)
def test_a_declaration_is_not_a_kernel(text):
    assert kernels.find(text) == ()


def test_a_source_that_takes_too_long_to_read_has_no_kernels():
    assert [kernel.name for kernel in kernels.find(TWO)] == ["one", "two"]
    assert kernels.find(f"/* {'x' * cxx.MOST_READ} */ {TWO}") == ()


# --- variables -----------------------------------------------------------------------------------


@from_table
def test_a_cells_own_variables_are_known(symbol, text, own):
    assert own_variables([cpp_name(symbol)], text, ["k"]) == ({own} if own else set())

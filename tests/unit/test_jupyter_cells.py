"""Cells taken apart: what an edit changes for the compiler, and where its messages point to."""

from __future__ import annotations

import pytest

from rtcompile.messages.diagnostics import Diagnostic
from rtcompile.notebook import cells, definitions
from rtcompile.notebook.cells import PROGRAM

TWO = """\
#include "common.cuh"
constexpr int N = 4;

__global__ void one(float* x) { x[0] = N; }

template <class T>
__global__ void __launch_bounds__(128, 2) two(T* x, int n) {
    if (n) x[0] = 2;
}
"""


def sources(text: str) -> dict[str, str]:
    """The compiler's sources, by the kernels that are in each."""
    units = cells.read(text).units()
    return {" ".join(kernel.name for kernel in unit.kernels): unit.source for unit in units}


# --- what a compiler is given --------------------------------------------------------------------


def test_each_kernel_has_its_own_unit_with_all_that_is_no_kernel():
    assert sources(TWO) == {
        "one": '#include "common.cuh"\nconstexpr int N = 4;\n'
        "__global__ void one(float* x) { x[0] = N; }\n",
        "two": '#include "common.cuh"\nconstexpr int N = 4;\ntemplate <class T>\n'
        "__global__ void __launch_bounds__(128, 2) two(T* x, int n) {\n    if (n) x[0] = 2;\n}\n",
    }


@pytest.mark.parametrize(
    "edited",
    [
        pytest.param("// a note\n\n" + TWO, id="a line of comment before"),
        pytest.param(TWO.replace("4;", "4;  // how many"), id="a comment behind"),
        pytest.param(TWO.replace("float* x)", "float* x /* out */)"), id="a comment inside"),
        pytest.param(TWO.replace("x[0] = 2", "/* two\nlines */ x[0] = 2"), id="comment over lines"),
        pytest.param(TWO.replace("\n\n", "\n\n\n\n"), id="blank lines"),
        pytest.param(TWO.replace(";\n", ";   \n"), id="blanks at the end"),
    ],
)
def test_a_comment_changes_no_unit(edited: str):
    def without_blanks(units: dict[str, str]) -> dict[str, str]:
        # A comment inside a line leaves the one blank that C++ reads it as.
        return {name: source.replace(" ", "") for name, source in units.items()}

    assert without_blanks(sources(edited)) == without_blanks(sources(TWO))


def test_another_text_of_a_comment_changes_no_unit():
    assert sources(TWO + "/* a */ // b") == sources(TWO + "/* other */ // text")


@pytest.mark.parametrize(
    ("edit", "changed"),
    [
        pytest.param(("x[0] = N", "x[1] = N"), {"one"}, id="one kernel"),
        pytest.param(("x[0] = 2;", "x[0] = 2;\n    x[1] = 3;"), {"two"}, id="with a line more"),
        pytest.param(("N = 4", "N = 5"), {"one", "two"}, id="what they share"),
    ],
)
def test_an_edit_changes_only_the_units_it_touches(edit: tuple[str, str], changed: set[str]):
    before, after = sources(TWO), sources(TWO.replace(*edit))
    assert {name for name in before if before[name] != after[name]} == changed


def test_a_new_kernel_changes_no_other():
    more = TWO + 'extern "C" __global__ void three(int* x) { *x = 3; }\n'
    assert {**sources(more), "three": ""} == {**sources(TWO), "three": ""}


@pytest.mark.parametrize(
    "text",
    [
        'const char* s = "// no comment";',
        'const char* s = R"x(  \n// no comment  \n\n)x";',
        "char c = '\"'; // comment",
        "#define A(x) \\\n    x\n",
    ],
)
def test_literals_and_macros_stay_what_they_are(text: str):
    (source,) = sources(text).values()
    assert source.rstrip("\n") == text.replace(" // comment", "").rstrip("\n")


def test_a_blank_line_that_ends_a_macro_stays():
    (source,) = sources("#define A 1 \\\n\nint x;\n").values()
    assert source.startswith("#define A 1 \\\n\nint x;")


@pytest.mark.parametrize("word", ["assert(n);", "int l = __LINE__;"])
def test_where_a_lines_number_matters_it_stays(word: str):
    text = TWO.replace("    if (n)", f"    {word}\n    if (n)")
    assert sources(text)["two"].split("\n").index(f"    {word}") == text.split("\n").index(
        f"    {word}"
    )


def test_a_headers_lines_stay_where_they_are():
    header = "// one\nint a; // two\n/* three\nfour */ int b;\n"
    assert cells.without_comments(header) == "\nint a;\n\n int b;\n"


# --- kernels that must stay together -------------------------------------------------------------

A, B = "__global__ void a(int* x) { *x = 1; }\n", "__global__ void b(int* x) { *x = 2; }\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(A, id="one kernel"),
        pytest.param("__global__ void b(int*);\n" + A + B, id="one declares the other"),
        pytest.param(A + B.replace("*x = 2", "a<<<1, 1>>>(x)"), id="one launches the other"),
        pytest.param(
            "#if X\n__global__ void a(int n) {\n#else\n__global__ void a(long n) {\n#endif\n}\n"
            + B,
            id="a branch within a kernel",
        ),
        pytest.param("template <int N>\n#pragma once\n" + A + B, id="a directive within"),
        pytest.param(A + B + "}", id="one brace too many"),
        pytest.param(A + "__global__ void b(int* x) { ", id="one brace too few"),
        pytest.param("__global__ KERNEL { }\n" + A + B, id="a name made by a macro"),
    ],
)
def test_what_cannot_be_told_apart_is_compiled_as_one(text: str):
    (unit,) = cells.read(text).units()
    assert unit.source.replace("\n", "") == text.replace("\n", "").rstrip()


@pytest.mark.parametrize(
    ("shared", "name", "may_change"),
    [
        ("__device__ int n;", "n", True),
        ("int n = 3;", "n", True),
        ("__constant__ float table[4];", "table", True),
        ("constexpr int n = 3;", "n", False),
        ("__device__ const int n = 3;", "n", False),
        ("int other;", "n", False),
    ],
)
def test_a_variable_that_kernels_share_is_known(shared: str, name: str, may_change: bool):
    assert (name in cells.read(f"{shared}\n{A}{B}").may_change()) is may_change


# --- definitions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "qualified", "parameters", "template"),
    [
        ("__global__ void k(float* x, int n) {}", "k", "float* x, int n", None),
        ("__global__ void k(\n    float* x,\n    int n)\n{\n}", "k", "float* x, int n", None),
        ("void __global__ k(float*) {}", "k", "float*", None),
        ('extern "C" __global__ void k() {}', "k", "", None),
        ('extern "C" {\n__global__ void k() {}\n}', "k", "", None),
        ("namespace a { namespace b { __global__ void k() {} } }", "a::b::k", "", None),
        ("namespace a::b { __global__ void k() {} }", "a::b::k", "", None),
        ("namespace { __global__ void k() {} }", "k", "", None),
        ("static __global__ void k(int (&x)[3]) {}", "k", "int (&x)[3]", None),
        ("__global__ __launch_bounds__(f(1), 2) void k() {}", "k", "", None),
        ("__global__ void __cluster_dims__(2, 1) k() {}", "k", "", None),
        ("template <class T> __global__ void k(T x) {}", "k", "T x", ("T",)),
        (
            "template <class T, int N = 4, template <class> class V = W> __global__ void k(T x) {}",
            "k",
            "T x",
            ("T", "N", "V"),
        ),
        ("struct S { int x; };\n__global__ void k(S s) {}", "k", "S s", None),
        ("enum { A };\n__device__ void f() { }\n__global__ void k() {}", "k", "", None),
    ],
)
def test_a_kernel_is_found(text, qualified, parameters, template):
    (kernel,) = definitions.find(text, text.replace('"C"', "   ")) or ()
    assert (kernel.qualified, kernel.parameters, kernel.template) == (
        qualified,
        parameters,
        template,
    )
    start, end = kernel.spans[0]
    assert text[start:end].endswith("}")


def test_a_template_and_its_specialisation_are_one_kernel():
    text = (
        "template <class T> __global__ void k(T x) {}\ntemplate <> __global__ void k<int>(int x) {}"
    )
    (kernel,) = definitions.find(text, text) or ()
    assert kernel.template == ("T",)
    assert len(kernel.spans) == 2


@pytest.mark.parametrize(
    "text", ["__global__ void k(int);", "struct S { friend __global__ void k(S); };", ""]
)
def test_a_declaration_is_no_kernel(text: str):
    assert definitions.find(text, text) == ()


# --- places --------------------------------------------------------------------------------------


def test_a_place_in_a_unit_is_turned_into_the_cells():
    text = "// a\n\n__global__ void one() {}\n// b\n__global__ void two() { /* c */ int z = y; }\n"
    two = cells.read(text).units()[1]
    line = next(i for i, t in enumerate(two.source.split("\n"), 1) if "y;" in t)
    column = two.source.split("\n")[line - 1].index("y") + 1
    note = Diagnostic("note", "see", PROGRAM, line, 1)
    there = two.in_cell(Diagnostic("error", "no y", PROGRAM, line, column, notes=(note,)))
    assert (there.line, there.column) == (5, text.split("\n")[4].index("y") + 1)
    assert there.notes[0].line == 5


def test_a_place_in_a_header_stays():
    there = cells.read(TWO).whole().in_cell(Diagnostic("error", "x", "common.cuh", 3, 1))
    assert (there.file, there.line) == ("common.cuh", 3)

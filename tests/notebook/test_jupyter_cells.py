"""Tests of the source that a cell gives the compiler: effects of edits, and lines in messages."""

import pytest

from rtcompile.diagnostic import Diagnostic
from rtcompile.extras.notebook import cells
from rtcompile.extras.notebook.cells import PROGRAM, own_variables
from rtcompile.inspect.symbols import cpp_name
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


def source(text: str) -> str:
    return cells.read(text).source


def test_a_cell_is_one_unit_without_its_comments():
    text = '#include "a.h"  // one\n\n/* two\n lines */\n__global__ void k() {}\n'
    assert cells.read(text).source == '#include "a.h"\n__global__ void k() {}\n'


def test_a_long_cell_is_compiled_unchanged(monkeypatch):
    """Its comments are kept, since reading them one by one takes too long."""
    monkeypatch.setattr(cxx, "Text", None)
    text = f"/* {'x' * cxx.MOST_READ} */ // two\n\n{TWO}"
    cell = cells.read(text)
    assert (cell.source, [kernel.name for kernel in cell.kernels]) == (text, ["one", "two"])
    error = Diagnostic("error", "wrong at line 4", PROGRAM, 7, 3, excerpt="x\n^")
    assert cell.in_cell(error) == error
    assert cells.read(16 * text).kernels == ()


@from_table
def test_a_comment_does_not_reach_the_compiler(edited):
    # A comment inside a line becomes one blank, as in C++.
    assert source(edited).replace(" ", "") == source(TWO).replace(" ", "")


def test_an_edited_comment_does_not_reach_the_compiler():
    assert source(TWO + "/* a */ // b") == source(TWO + "/* other */ // text")


@from_table
def test_literals_and_macros_are_unchanged(text):
    assert source(text).rstrip("\n") == text.replace(" // comment", "").rstrip("\n")


def test_a_blank_line_that_ends_a_macro_stays():
    assert source("#define A 1 \\\n\nint x;\n").startswith("#define A 1 \\\n\nint x;")


@pytest.mark.parametrize("word", ["assert(n);", "int l = __LINE__;"])
def test_line_numbers_are_kept_if_they_matter(word):
    text = f"// a\n\n/* b\n c */\n{word}  // d\n"
    assert source(text).split("\n").index(word) == 4


def test_with_line_information_every_line_stays():
    kept = cells.read("// a\n\nint x;\n", keep_lines=True)
    assert kept.source == "\n\nint x;\n"


def test_a_headers_raw_string_keeps_its_blanks():
    header = 'const char* s = R"(a  \n\nb)";\n'
    kept = cells.read(header, keep_lines=True).source
    assert kept == header


def test_the_lines_of_a_header_are_kept():
    header = "// one\nint a; // two\n/* three\nfour */ int b;\n"
    assert cells.read(header, keep_lines=True).source == "\nint a;\n\n  int b;\n"


# --- definitions ---------------------------------------------------------------------------------


@from_table
def test_a_kernel_is_found(text, qualified, parameters, template):
    (kernel,) = cells.find(text, text.replace('"C"', "   "))
    assert (kernel.qualified, kernel.parameters, kernel.template) == (
        qualified,
        parameters,
        template,
    )


def test_a_template_and_its_specialisation_are_one_kernel():
    text = (
        "template <class T> __global__ void k(T x) {}\ntemplate <> __global__ void k<int>(int x) {}"
    )
    (kernel,) = cells.find(text, text)
    assert kernel.template == ("T",)


@from_table
def test_unusual_text_hides_no_following_kernel(before):
    text = before + "__global__ void b(int* x) {}\n"
    assert [kernel.name for kernel in cells.find(text, text)][-1] == "b"


@pytest.mark.parametrize(
    "text", ["__global__ void k(int);", "struct S { friend __global__ void k(S); };", ""]
)
def test_a_declaration_is_not_a_kernel(text):
    assert cells.find(text, text) == ()


# --- lines --------------------------------------------------------------------------------------


def test_a_line_in_the_source_is_turned_into_the_cells():
    text = "// a\n\n__global__ void one() {}\n// b\n__global__ void two() { /* c */ int z = y; }\n"
    cell = cells.read(text)
    note = Diagnostic("note", "see", PROGRAM, 2, 1)
    column = cell.source.split("\n")[1].index("y;") + 1
    there = cell.in_cell(Diagnostic("error", "no y", PROGRAM, 2, column, notes=(note,)))
    assert (there.line, there.column) == (5, text.split("\n")[4].index("y;") + 1)
    assert there.notes[0].line == 5


def test_a_line_behind_a_comment_over_lines_is_on_its_own_line():
    there = cells.read("/* a\n b */ int x = y;").in_cell(Diagnostic("error", "", PROGRAM, 1, 11))
    assert (there.line, there.column) == (2, 15)


def test_a_line_in_a_message_is_turned_into_the_cells():
    cell = cells.read("// a\n\n__global__ void k() {}\n__global__ void k() {}\n")
    there = cell.in_cell(Diagnostic("error", "(previous one at line 1)", PROGRAM, 2, 17))
    assert there.message == "(previous one at line 3)"
    other = "declared at line 1 of header.h"
    assert cell.in_cell(Diagnostic("error", other, PROGRAM, 2, 17)).message == other


def test_a_line_in_a_header_is_unchanged():
    there = cells.read(TWO).in_cell(Diagnostic("error", "x", "common.cuh", 3, 1))
    assert (there.file, there.line) == ("common.cuh", 3)


# --- variables -----------------------------------------------------------------------------------


@from_table
def test_a_cells_own_variables_are_known(symbol, text, own):
    assert own_variables([cpp_name(symbol)], text, ["k"]) == ({own} if own else set())

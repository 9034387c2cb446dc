"""Name expressions for NVCC: whatever an expression holds, the lines after it keep their numbers."""

from __future__ import annotations

from rtcompile.compilers.nvcc import Markers


def test_an_expression_with_blank_lines_around_it_takes_one():
    text = Markers.of("", ["\nk<int>\n", "z"]).text()
    assert "\n k<int>\n" in text
    assert text.count('#line 3 "__nv_name_map"') == 3


def test_an_error_on_a_line_that_is_no_expressions_is_left_as_it_is():
    log = "__nv_name_map(9): error: expected a type\n  k\n  ^\n"
    assert Markers.of("", ["k<int>"]).named_in(log) == log

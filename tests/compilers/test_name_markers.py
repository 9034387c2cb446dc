"""Tests of name expressions for NVCC: no expression changes the numbers of the lines after it."""

from __future__ import annotations

from rtcompile.compilers.nvcc import Markers


def test_an_expression_with_blank_lines_around_it_takes_one():
    text = Markers("", ["\nk<int>\n", "z"]).text()
    assert "\n k<int>\n" in text
    assert text.count('#line 3 "__nv_name_map"') == 3


def test_an_error_outside_the_expressions_is_unchanged():
    log = "__nv_name_map(9): error: expected a type\n  k\n  ^\n"
    assert Markers("", ["k<int>"]).named_in(log) == log

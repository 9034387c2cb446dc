"""The Kernel Tuner recipe compiles exactly what Kernel Tuner will ask for."""

from __future__ import annotations

import pytest

from examples import kernel_tuner_space as recipe

ONE = {"block_size_x": 64, "LOADS": 2, "ALGORITHM": "BLOCK_REDUCE_RAKING"}


def test_the_space_is_what_the_restrictions_allow() -> None:
    variants = recipe.space({"a": [1, 2], "b": [1, 2]}, ["a * b <= 2"])
    assert variants == [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 1}]


def test_variants_compile_and_are_found_again() -> None:
    variants = [ONE, {**ONE, "LOADS": 4}, {**ONE, "ALGORITHM": "NO_SUCH"}]
    first = recipe.compile_space(variants, arch="sm_90")
    assert [hasattr(code, "code") for code in first] == [True, True, False]
    again = recipe.compile_space(variants[:2], arch="sm_90")
    assert all(code.build.hit for code in again)


def test_the_space_is_kernel_tuners() -> None:
    searchspace = pytest.importorskip("kernel_tuner.searchspace")
    theirs = searchspace.Searchspace(recipe.TUNABLES, recipe.RESTRICTIONS, 1024)
    ours = recipe.space(recipe.TUNABLES, recipe.RESTRICTIONS)
    assert sorted(theirs.list) == sorted(tuple(variant.values()) for variant in ours)


def test_the_source_is_kernel_tuners() -> None:
    core = pytest.importorskip("kernel_tuner.core")
    util = pytest.importorskip("kernel_tuner.util")
    kernel = core.KernelSource(recipe.NAME, recipe.source, "cupy", {})
    names = util.default_block_size_names
    threads, grid = util.setup_block_and_grid(4096, ([], [], []), ONE, names)
    name, theirs, _ = kernel.prepare_list_of_files(recipe.NAME, ONE, grid, threads, names)
    assert (name, theirs) == (recipe.NAME, recipe.source(ONE))

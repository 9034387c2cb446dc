"""The page on the architecture shows the code as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import pictures, walks

PAGE = pictures.PAGE.read_text()
ROOT = Path(__file__).parents[2]


def test_the_picture_is_of_todays_imports():
    """`python -m docs.pictures` draws it anew."""
    assert pictures.drawn_in(PAGE) == PAGE


def test_every_folder_is_described():
    described = set(re.findall(r"`(\w+)`", PAGE.partition("| Part |")[2].partition("## One")[0]))
    assert {
        name.partition(".")[0] for name in pictures.module_imports() if "." in name
    } <= described


def test_the_files_that_the_page_names_are_there():
    named = re.findall(r"`([\w/]+/\w+\.py)`", PAGE)
    assert named
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "rtcompile" / name).exists(), name


@pytest.mark.parametrize("kind", walks.KINDS)
def test_the_walk_on_the_page_is_what_runs(kind):
    """`python -m docs.walks` writes it anew."""
    named = walks.names_in(PAGE, kind)
    assert 6 <= len(named) <= walks.MAX_LINES
    passed = iter(call.name for top in walks.profiled(kind) for call in (top, *top.below()))
    assert [name for name in named if name not in passed] == []  # each after the one before

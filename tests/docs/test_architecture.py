"""The page on the architecture matches the code."""

import re
from pathlib import Path

import pytest

from docs import pictures
from rtcompile.build import pipeline

PAGE = pictures.PAGE.read_text()
ROOT = Path(__file__).parents[2]


@pytest.mark.takes_seconds
def test_the_picture_shows_the_current_imports():
    """`python -m docs.pictures` redraws it."""
    assert pictures.drawn_in(PAGE) == PAGE


def test_the_picture_is_small_and_has_no_cycle():
    boxes = pictures.imports()
    assert len(boxes) <= 16
    assert not [box for box, others in pictures.closure(boxes).items() if box in others]


@pytest.mark.takes_seconds
def test_every_folder_is_described():
    described = set(re.findall(r"`(\w+)`", PAGE.partition("| Part |")[2].partition("## One")[0]))
    rooms = {name.partition(".")[0] for name in pictures.module_imports() if "." in name}
    assert rooms <= described


def test_it_has_the_table_of_levels():
    rows = PAGE.partition("| `LEVELS` |")[2].partition("\n3. ")[0].splitlines()[2:]
    assert [row.split(" | ")[3] for row in rows] == [need for _, _, need in pipeline.LEVELS]


def test_it_fits_on_two_screens_and_the_files_that_it_names_exist():
    assert len(PAGE.splitlines()) <= 80
    named = re.findall(r"`([\w/]+/\w+\.py)`", PAGE)
    assert named
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "rtcompile" / name).exists(), name

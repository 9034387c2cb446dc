"""The page on the architecture matches the code."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from docs import pictures
from docs.scripts.pictures import flowchart

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


def test_every_box_is_inside_the_picture_and_every_arrow_has_a_head():
    drawn = flowchart(PAGE.partition("```mermaid")[2].partition("```")[0])
    _, _, width, height = map(int, re.search(r'viewBox="([^"]*)"', drawn)[1].split())
    boxes = [
        [int(number) for number in box]
        for box in re.findall(r'<rect x="(-?\d+)" y="(-?\d+)" width="(\d+)" height="(\d+)"', drawn)
    ]
    assert len(boxes) == len(pictures.imports())
    assert all(x >= 0 and x + w <= width and y >= 0 and y + h <= height for x, y, w, h in boxes)
    rows = [[(x, x + w) for x, top, w, _ in boxes if top == y] for y in {box[1] for box in boxes}]
    for row in map(sorted, rows):
        assert all(left[1] < right[0] for left, right in pairwise(row))
    arrows = re.findall(r'<path class="arrow" [^>]*marker-end="url\(#head\)"', drawn)
    assert len(arrows) == len(re.findall(r"(?:-->|&) b\d", PAGE))


@pytest.mark.takes_seconds
def test_every_folder_is_described():
    described = set(re.findall(r"`(\w+)`", PAGE.partition("| Part |")[2].partition("## One")[0]))
    rooms = {name.partition(".")[0] for name in pictures.module_imports() if "." in name}
    assert rooms <= described


def test_it_fits_on_two_screens_and_the_files_that_it_names_exist():
    assert len(PAGE.splitlines()) <= 80
    named = re.findall(r"`([\w/]+/\w+\.py)`", PAGE)
    assert named
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "rtcompile" / name).exists(), name

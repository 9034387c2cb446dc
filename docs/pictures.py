"""Draws the import picture of docs/architecture.md from the code: ``python -m docs.pictures``.

Each box is a room of the package, or a few that lie side by side; each arrow leads from it to what it
imports. Arrows that follow from others are left out. A test compares the page with the code.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TypeVar

from tests.house.test_imports import MODULES, imported_by, module_of

PAGE = Path(__file__).parent / "architecture.md"
BEGIN, END = "<!-- drawn by docs/pictures.py -->\n", "<!-- end of the picture -->\n"
_LEFT_OUT = ("__main__", "types")  # `types` has names of other modules
# The rooms that have one box together.
_JOINED = (
    "api, frontends",
    "cli, checkup, cache",
    "errors, diagnostic, styling, forks, named",
)
_SHARED = {room: box for box in _JOINED for room in box.split(", ")}

_Node = TypeVar("_Node", bound=Hashable)


def closure(edges: Mapping[_Node, set[_Node]]) -> dict[_Node, set[_Node]]:
    """Return everything that each node leads to."""
    reached = {node: set(others) for node, others in edges.items()}
    grown = True
    while grown:
        grown = False
        for others in reached.values():
            more = others.union(*(reached.get(other, set()) for other in others))
            grown = grown or more != others
            others |= more
    return reached


@functools.cache  # parsing every module takes a second
def module_imports() -> dict[str, set[str]]:
    """Return each module, without the package's name, with the modules that it imports."""
    short = {module_of(file).partition(".")[2]: imported_by(file) for file in MODULES}
    return {
        name: {other.partition(".")[2] for other in others} & set(short) - set(_LEFT_OUT)
        for name, others in short.items()
        if name not in _LEFT_OUT
    }


def box_imports(boxes: Mapping[str, str], edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return each box with the boxes that its modules import."""
    found: dict[str, set[str]] = {box: set() for box in sorted(set(boxes.values()))}
    for module, others in edges.items():
        found[boxes[module]] |= {boxes[other] for other in others} - {boxes[module]}
    return found


def imports() -> dict[str, set[str]]:
    """Return each box with the boxes that it imports."""
    edges = module_imports()
    rooms = {module: module.partition(".")[0] for module in edges}
    return box_imports({module: _SHARED.get(room, room) for module, room in rooms.items()}, edges)


def picture() -> str:
    """Return the picture as a Mermaid diagram."""
    edges = imports()
    leads_to = closure(edges)
    number = {box: f"b{index}" for index, box in enumerate(edges)}
    lines = []
    for box, others in edges.items():
        direct = [
            number[other]
            for other in sorted(others)
            if not any(other in leads_to[between] for between in others - {other})
        ]
        arrows = f" --> {' & '.join(direct)}" if direct else ""
        lines.append(f'    {number[box]}["{box}"]{arrows}')
    return "\n".join(("```mermaid", "flowchart TD", *lines, "```", ""))


def drawn_in(page: str) -> str:
    """Return the page with the picture of today's code."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + picture() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(drawn_in(PAGE.read_text()))

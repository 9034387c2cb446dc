"""Draws the import picture of docs/architecture.md from the code: ``python -m docs.pictures``.

Each box is a folder or module of the package, each arrow leads from it to what it imports. Arrows
that follow from others are left out. No module imports itself by way of others, but folders would: the
modules of a folder that use what uses the rest of the folder have a box of their own, with their
names. A test compares the page with the code.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TypeVar

from tests.house.test_imports import MODULES, imported_by, module_of

PAGE = Path(__file__).parent / "architecture.md"
BEGIN, END = "<!-- drawn by docs/pictures.py -->\n", "<!-- end of the picture -->\n"
_LEFT_OUT = ("_version", "__main__")

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
    """Return each box with the boxes that it imports, in no circle."""
    edges = module_imports()
    reached = closure(edges)
    boxes = {module: module.partition(".")[0] for module in edges}
    while True:
        found = box_imports(boxes, edges)
        leads_to = closure(found)
        circle = {box for box in found if box in leads_to[box]}
        if not circle:
            return found
        # The split is made that leaves the fewest circles, then the one that moves fewest modules.
        choices = []
        for box in sorted(circle):
            others = {b for b in circle if b != box and box in leads_to[b] and b in leads_to[box]}
            own = {module for module, its in boxes.items() if its == box}
            upper = {m for m in own if {boxes[other] for other in reached[m]} & others}
            if upper != own:
                split = {**boxes, **_named(upper), **(_named(own - upper) if ":" in box else {})}
                leads = closure(box_imports(split, edges))
                choices.append((sum(b in leads[b] for b in leads), len(upper), box, split))
        boxes = min(choices, key=lambda choice: choice[:3])[3]


def _named(modules: set[str]) -> dict[str, str]:
    """Return a box of their own for some modules of a folder."""
    folder = min(modules).partition(".")[0]
    names = ", ".join(sorted(module.rpartition(".")[2] for module in modules))
    return dict.fromkeys(modules, f"{folder}: {names}")


def picture() -> str:
    """Return the picture as a Mermaid diagram."""
    edges = imports()
    leads_to = closure(edges)
    number = {box: f"b{index}" for index, box in enumerate(edges)}
    lines = [f'    {number[box]}["{box}"]' for box in edges]
    for box, others in edges.items():
        for other in sorted(others):
            if not any(other in leads_to[between] for between in others - {other}):
                lines.append(f"    {number[box]} --> {number[other]}")
    return "\n".join(("```mermaid", "flowchart TD", *lines, "```", ""))


def drawn_in(page: str) -> str:
    """Return the page with the picture of today's code."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + picture() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(drawn_in(PAGE.read_text()))

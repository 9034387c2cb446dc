"""Draws the import picture of docs/architecture.md from the code: ``python -m docs.pictures``.

Each box is a folder or module of the package, each arrow leads from it to what it imports. Arrows
that follow from others are left out. A test compares the page with the code.
"""

from __future__ import annotations

from pathlib import Path

from tests.unit.test_imports import MODULES, imported_by, module_of

PAGE = Path(__file__).parent / "architecture.md"
BEGIN, END = "<!-- drawn by docs/pictures.py -->\n", "<!-- end of the picture -->\n"

# cluster/ stands on three floors: stores below `building`, executors above it, warming above `many`.
_CLUSTER = {"executors": "executors", "dask": "warming", "ray": "warming", "warming": "warming"}
_LEFT_OUT = {"_version", "__main__", ""}


def _box(module: str) -> str:
    """Return the box that a module is drawn in."""
    parts = module.split(".")[1:]
    if parts[:1] == ["cluster"]:
        return f"cluster: {_CLUSTER.get(parts[-1], 'stores')}"
    return (
        {"lazy_code": "kernels", "code_arguments": "kernels"}.get(parts[0], parts[0])
        if parts
        else ""
    )


def imports() -> dict[str, set[str]]:
    """Return each box with the boxes that it imports."""
    found: dict[str, set[str]] = {}
    for file in MODULES:
        box = _box(module_of(file))
        found.setdefault(box, set()).update(_box(name) for name in imported_by(file))
    return {
        box: others - {box} - _LEFT_OUT
        for box, others in sorted(found.items())
        if box not in _LEFT_OUT
    }


def without_detours(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the edges that do not follow from others: an arrow from a to c goes where a-b-c is."""

    def reached(start: str, seen: frozenset[str] = frozenset()) -> set[str]:
        if start in seen:
            raise ValueError(f"{start} imports itself, by way of {', '.join(sorted(seen))}")
        others = edges.get(start, set())
        return others.union(*(reached(other, seen | {start}) for other in others))

    return {
        box: {other for other in others if not any(other in reached(o) for o in others - {other})}
        for box, others in edges.items()
    }


def picture() -> str:
    """Return the picture as a Mermaid diagram."""
    edges = without_detours(imports())
    names = {box: box.replace(": ", "_") for box in edges}
    lines = [f'    {names[box]}["{box}"]' for box in edges]
    lines += [
        f"    {names[a]} --> {names[b]}" for a, others in edges.items() for b in sorted(others)
    ]
    return "\n".join(("```mermaid", "flowchart TD", *lines, "```", ""))


def drawn_in(page: str) -> str:
    """Return the page with the picture of today's code."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + picture() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(drawn_in(PAGE.read_text()))

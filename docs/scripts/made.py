"""Replace ``<!-- made: NAME -->`` in a page by what is written from the code and the results.

Links to files of the repository lead to where they can be read: the site has only the pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts import benchmarks, command, messages, notebook, pictures, reference

ROOT = Path(__file__).resolve().parents[2]
# pyproject.toml is the one file that states the repository's address.
REPOSITORY = re.search(r'^Source = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]  # type: ignore[index]

_MARKER = re.compile(r"^<!-- made: ([\w ./]+) -->$", re.MULTILINE)
_CHART = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((\.\.?/[\w./-]+)(#[\w-]*)?\)")


_EXTERNAL = re.compile(r"(?:\]\(|<)(https?://[^)>\s]+)")
external_links: dict[str, list[str]] = {}  # by page


def list_external_links(app: Any, error: Exception | None) -> None:
    """Write what leads away from the site, which no build can check, to external-links.txt."""
    if error is None and external_links:
        lines = [
            f"{page}: {link}" for page, links in sorted(external_links.items()) for link in links
        ]
        Path(app.outdir, "external-links.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")


def text(name: str) -> str:
    """Return what a marker stands for, in Markdown."""
    kind, _, rest = name.partition(" ")
    return _KINDS[kind](rest)


def fill_in(app: Any, page: str, source: list[str]) -> None:
    """Fill in a page, as Sphinx reads it."""
    whole = _MARKER.sub(lambda marker: text(marker[1]), source[0])
    whole = _CHART.sub(lambda chart: pictures.flowchart(chart[1]), whole)
    folder = (ROOT / "docs" / page).parent
    source[0] = _LINK.sub(lambda link: _to_repository(link, folder), whole)
    external_links[page] = sorted(set(_EXTERNAL.findall(source[0])))


def _to_repository(link: re.Match[str], folder: Path) -> str:
    """Return a link of a page in `folder` as it is if it leads to a page, else to the repository."""
    target = (folder / link[1]).resolve()
    if target.is_relative_to(ROOT / "docs"):
        return link[0]
    return f"]({REPOSITORY}/blob/main/{target.relative_to(ROOT)}{link[2] or ''})"


def _changelog(_: str) -> str:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n")[2]
    return text.replace("\n## ", "\n### ")


def _architectures(_: str) -> str:
    """Return a row for each NVRTC that changed what there is to compile for."""
    from rtcompile.request.arch import supported

    rows = ["| NVRTC | compiles for |", "|---|---|"]
    before: tuple[object, ...] = ()
    for version in ((12, 0), (12, 8), (12, 9), (13, 0), (13, 4)):
        known = supported(version)
        if known != before:
            names = ", ".join(f"`{arch}`" for arch in known)
            rows.append(f"| {version[0]}.{version[1]} and newer | {names} |")
        before = known
    return "\n".join(rows)


def _example(name: str) -> str:
    """Return the kernels of an example: the text of its SOURCE."""
    program = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    source = re.search(r'^SOURCE \+?= r"""\n(.*?)"""\n', program, re.MULTILINE | re.DOTALL)[1]
    return f"```cuda\n{source.rstrip()}\n```"


_KINDS: dict[str, Callable[[str], str]] = {
    "architectures": _architectures,
    "benchmarks": benchmarks.table,
    "otherbenchmarks": benchmarks.others,
    "changelog": _changelog,
    "command": command.reference,
    "example": _example,
    "messages": messages.page,
    "notebook": notebook.executed,
    "picture": pictures.draw,
    "reference": reference.directives,
}

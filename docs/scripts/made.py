"""Replace ``<!-- made: NAME -->`` in a page by what is written from the code and the results.

Links to files of the repository lead to where they can be read: the site has only the pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts import benchmarks, command, messages, pictures, reference

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://github.com/rtcompile/rtcompile/blob/main/"

_MARKER = re.compile(r"^<!-- made: ([\w ]+) -->$", re.MULTILINE)
_CHART = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_LINK = re.compile(r"\]\((?:\.\./)+([\w./-]+)(#[\w-]*)?\)")


def text(name: str) -> str:
    """Return what a marker stands for, in Markdown."""
    kind, _, rest = name.partition(" ")
    return _KINDS[kind](rest)


def fill_in(app: Any, page: str, source: list[str]) -> None:
    """Fill in a page, as Sphinx reads it."""
    whole = _MARKER.sub(lambda marker: text(marker[1]), source[0])
    whole = _CHART.sub(lambda chart: pictures.flowchart(chart[1]), whole)
    source[0] = _FILE_LINK.sub(_to_repository, whole)


def _to_repository(link: re.Match[str]) -> str:
    return f"]({REPOSITORY}{link[1]}{link[2] or ''})"


def _changelog(_: str) -> str:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n")[2]
    return text.replace("\n## ", "\n### ")


def _variables(_: str) -> str:
    """Return the README's table of environment variables."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return readme.partition("## Environment variables\n")[2].partition("\n\n## ")[0].strip()


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
    "picture": pictures.draw,
    "reference": reference.directives,
    "variables": _variables,
}

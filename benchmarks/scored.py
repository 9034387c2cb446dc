"""Prints what a user sees of a folder of mistakes, for scoring.

`python -m benchmarks.scored FOLDER` compiles each `NAME.cu` and prints its source, the message, and `NAME.txt`, in which
its author says the line, the cause and the fix. Lines of the `.cu` that begin with `//!` are arguments:
`//! options: -std=c++17 -DN=3`, `//! names: scale<float>`, `//! arch: sm_90`.
"""

from __future__ import annotations

import re
import shlex
import sys
import warnings
from pathlib import Path

import rtcompile


def shown(path: Path) -> str:
    """Return the message of a mistake, or the warnings of a build that succeeds."""
    source = path.read_text(encoding="utf-8")
    given = dict(re.findall(r"^//! *(options|names|arch): *(.*)$", source, re.MULTILINE))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        text = _message(source, path, given)
    own = [f"RtcompileWarning: {each.message}" for each in caught]
    return "\n".join([text, *own])


def _message(source: str, path: Path, given: dict[str, str]) -> str:
    try:
        built = rtcompile.compile(
            source,
            name=path.name,
            arch=given.get("arch", "sm_80"),
            options=tuple(shlex.split(given.get("options", ""))),
            name_expressions=[
                each.strip() for each in given.get("names", "").split(";") if each.strip()
            ],
        )
    except rtcompile.RtcompileError as error:
        return str(error)
    found = "".join(
        f"\n{each}" + (f"\n  hint: {each.hint}" if each.hint else "")
        for each in built.build.warnings
    )
    return f"built without an error, {built.kind}{found}"


def main() -> None:
    for number, path in enumerate(sorted(Path(sys.argv[1]).glob("*.cu")), 1):
        expected = path.with_suffix(".txt")
        lines = [
            f"=== {number}. {path.stem}",
            path.read_text(encoding="utf-8").rstrip(),
            "--- shown",
            shown(path),
        ]
        lines += [
            "--- expected",
            expected.read_text(encoding="utf-8").rstrip() if expected.is_file() else "(nothing)",
        ]
        print("\n".join(lines), end="\n\n")


if __name__ == "__main__":
    main()

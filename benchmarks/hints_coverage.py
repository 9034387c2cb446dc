"""Print how each row of the message catalogue is tested, and write docs/hints.md from the same data.

python benchmarks/hints_coverage.py
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rtcompile.messages.catalogue import MESSAGES
from tests.provoked import coverage

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "hints.md"


def document(tested: dict[str, str]) -> str:
    """Return docs/hints.md."""
    counts = Counter(tested.values())
    lines = [
        "# Messages that rtcompile explains",
        "",
        "Written by `python -m benchmarks.hints_coverage` from `rtcompile/messages/catalogue`.",
        f"{len(MESSAGES)} messages; {counts['provoked']} are provoked from a real compiler or linker "
        f"by the tests, {counts['as reported']} are recognised as others reported them.",
        "Names in braces are filled in from the build: the architecture, the versions and folders "
        "found.",
    ]
    for known in MESSAGES:
        lines += [
            "",
            f"## {known.id}",
            "",
            f"`{known.pattern.pattern}`",
            "",
            f"{known.cause} *{known.fix}*",
            "",
            f"Seen with {known.since} and later. Tested: {tested[known.id]}.",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    tested = coverage()
    DOCUMENT.write_text(document(tested), encoding="utf-8")
    width = max(len(known.id) for known in MESSAGES)
    for known in MESSAGES:
        print(f"{known.id:{width}}  {tested[known.id]:12}  {known.since}")
    counts = Counter(tested.values())
    print(f"provoked {counts['provoked']} of {len(MESSAGES)}; as reported {counts['as reported']}")


if __name__ == "__main__":
    main()

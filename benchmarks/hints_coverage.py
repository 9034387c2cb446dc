"""Prints how each row of the message catalogue is tested, as the documentation's page of errors also does.

python benchmarks/hints_coverage.py
"""

from __future__ import annotations

from collections import Counter

from rtcompile.messages.catalogue import MESSAGES
from tests.provoked import coverage


def main() -> None:
    tested = coverage()
    width = max(len(known.id) for known in MESSAGES)
    for known in MESSAGES:
        print(f"{known.id:{width}}  {tested[known.id]:12}  {known.since}")
    counts = Counter(tested.values())
    print(f"provoked {counts['provoked']} of {len(MESSAGES)}; as reported {counts['as reported']}")


if __name__ == "__main__":
    main()

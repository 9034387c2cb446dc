"""The table of `make trials`: ``python -m tests.trials.table COUNTS [--save] [--join]``.

With ``--save`` the table is written to ``benchmarks/results/trials.json``, with the machine and the versions,
and to the page on security. With ``--join`` existing rows that this run did not try are kept.
"""

import json
import sys
from pathlib import Path

from benchmarks import _machine

RESULTS = Path(_machine.__file__).parent / "results" / "trials.json"
PAGE = Path(__file__).parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- trials: written by `make trials` -->", "<!-- end of trials -->"


def read(lines: list[str]) -> list[dict[str, object]]:
    """Add up the records of each kind."""
    sums: dict[str, list[int]] = {}
    for line in lines:
        noted = json.loads(line)
        counts = sums.setdefault(noted["kind"], [0, 0])
        counts[0] += noted["count"]
        counts[1] += noted["bad"]
    return [{"kind": kind, "count": n, "bad": bad} for kind, (n, bad) in sorted(sums.items())]


def joined(
    before: list[dict[str, object]], rows: list[dict[str, object]]
) -> list[dict[str, object]]:
    """Return the rows of a run, and the previous rows that it did not try."""
    tried = {row["kind"] for row in rows}
    kept = [row for row in before if row["kind"] not in tried]
    return sorted([*kept, *rows], key=lambda row: str(row["kind"]))


def markdown(rows: list[dict[str, object]]) -> str:
    """Return the table in the page's form."""
    lines = ["| Tried | Times | Wrong |", "| --- | ---: | ---: |"]
    lines += [f"| {row['kind']} | {row['count']:,} | {row['bad']} |" for row in rows]
    return "\n".join(lines)


def within(page: str, table: str) -> str:
    """Return the page with its table replaced by `table`."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    rows = read(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines())
    if "--join" in sys.argv:
        rows = joined(json.loads(RESULTS.read_text(encoding="utf-8"))["results"], rows)
    _machine.save("trials", rows)
    print(markdown(rows))
    if "--save" in sys.argv:
        PAGE.write_text(within(PAGE.read_text(encoding="utf-8"), markdown(rows)), encoding="utf-8")


if __name__ == "__main__":
    main()

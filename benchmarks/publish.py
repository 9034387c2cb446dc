"""Writes the measured figures of README and of pages of the docs from benchmarks/results.

A page marks what comes from here: ``<!-- published: NAME -->`` before it, ``<!-- end -->`` behind it. All results
in one page's marks have to be of one commit, which the page names. Run it after ``--save``:
``python -m benchmarks.publish``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/all-of-cupy.md", "docs/security.md")
MARKED = re.compile(r"(<!-- published: ([\w ]+) -->).*?(<!-- end -->)", re.DOTALL)
ALONE, OURS = "CuPy alone", "rtcompile"

# The rows of README's table: what was measured, the result, its row, and the contenders' names there.
WHOLE, AHEAD = ("whole_process_gpu", "whole process ms"), ("ahead_gpu", "seconds")
ALL, SHIPPED = ("everywhere_gpu", "seconds"), ("everywhere_shipped", "seconds")
ROWS = (
    ("1 small kernel, cached", WHOLE, "warm, 1 kernel, default options", ALONE, OURS),
    ("20 small kernels, cached", WHOLE, "warm, 20 kernels, default options", ALONE, OURS),
    (
        "20 small kernels with options of their own, cached",
        WHOLE,
        "warm, 20 kernels, options of their own",
        ALONE,
        OURS,
    ),
    ("1 small kernel, compiled at its first use", AHEAD, "after, 16 cores", ALONE, OURS),
    (
        "1 small kernel, constructed at the program's top, compiled",
        AHEAD,
        "top, 16 cores",
        ALONE,
        OURS,
    ),
    (
        "20 small kernels, compiled one after the other",
        WHOLE,
        "cold, 20 kernels, default options",
        ALONE,
        OURS,
    ),
    (
        "20 small kernels, constructed at the program's top, compiled",
        AHEAD,
        "top 20, 16 cores",
        ALONE,
        OURS,
    ),
    (
        "100 small kernels at the top, after an edit of a shared header",
        AHEAD,
        "headers 100, 16 cores",
        ALONE,
        OURS,
    ),
    (
        "8 CuTe kernels, constructed at the top, compiled (CuPy's NVRTC in process)",
        AHEAD,
        "CuTe 8, 16 cores",
        ALONE,
        OURS,
    ),
    (
        "31 everyday operations of CuPy, compiled (`rtcompile run`)",
        ALL,
        "whole process",
        f"{ALONE}, cold",
        f"{OURS}, cold",
    ),
    (
        "the same, the first time after `rtcompile warm cupy` (no GPU needed)",
        SHIPPED,
        "whole process",
        f"{ALONE}, cold",
        f"{OURS}, the first after warm cupy",
    ),
    ("the same, cached", ALL, "whole process", f"{ALONE}, warm", f"{OURS}, warm"),
)

# The rows of the table of CuPy's operations: what was measured, and its name in the result.
OPERATIONS = (
    ("CuPy alone, nothing cached", f"{ALONE}, cold"),
    ("rtcompile, nothing cached", f"{OURS}, cold"),
    ("rtcompile, only precompiled headers there", f"{OURS}, cold, headers precompiled"),
    ("`rtcompile warm`, no GPU", "rtcompile warm (no GPU needed)"),
    ("rtcompile, warmed before", f"{OURS}, warmed before"),
    ("rtcompile, empty caches and a bundle", f"{OURS}, fresh container with a bundle"),
    ("CuPy alone, cached", f"{ALONE}, warm"),
    ("rtcompile, cached", f"{OURS}, warm"),
)


class Results:
    """Reads results, and notes the commit of each that was read."""

    def __init__(self, folder: Path = ROOT / "benchmarks/results") -> None:
        self.folder = folder
        self.commits: dict[str, str] = {}
        self.machine: dict[str, str] = {}

    def __getitem__(self, name: str) -> dict[str, Any]:
        report = json.loads((self.folder / f"{name}.json").read_text())
        self.commits[name] = report.get("commit") or "unknown"
        self.machine = report["machine"]
        return dict(report["results"])

    @property
    def commit(self) -> str:
        """The commit that all results read so far measured."""
        if len(set(self.commits.values())) != 1 or "unknown" in self.commits.values():
            raise ValueError(
                f"the results of one page are not of one commit: {self.commits}; measure them anew in one run"
            )
        return next(iter(self.commits.values()))


def figure(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.1f}"


def ratio(of: float, to: float) -> str:
    found = f"{of / to:.2f}"
    return f"**{found}**" if of / to > 1.005 else found


def whole_processes(results: Results) -> str:
    """README's table; CuPy's time is lower in the bold rows."""
    lines = [
        "| whole process, seconds (lower is better) | CuPy alone | rtcompile | ratio |",
        "|---|---|---|---|",
    ]
    for label, (name, unit), row, alone, ours in ROWS:
        found = results[name][row]
        scale = 1e-3 if unit.endswith("ms") else 1
        theirs, own = (found[who][unit] * scale for who in (alone, ours))
        lines.append(f"| {label} | {figure(theirs)} | {figure(own)} | {ratio(own, theirs)} |")
    return "\n" + "\n".join(lines) + "\n"


def conditions(results: Results) -> str:
    """Where and with which code README's figures were measured."""
    for _, (name, _), *_ in ROWS:
        results[name]
    machine = results.machine
    return (
        f"one {machine['gpu'].split(',')[0]} with {machine['cores']} cores, NVRTC {machine['nvrtc']}, CuPy "
        f"{machine['cupy-cuda13x']}, commit {results.commit[:8]}"
    )


def import_and_hit(results: Results) -> str:
    """The milliseconds of the import and the first look-ups when everything is cached."""
    rows = [found[OURS] for name, found in results[WHOLE[0]].items() if name.startswith("warm, 1 ")]
    spent = sorted(row["import ms"] + row["first ms"] for row in rows)
    return f"{spent[0]:.0f} to {spent[-1]:.0f} ms"


def noise(results: Results) -> str:
    """How far rounds of one row differ."""
    found = results[AHEAD[0]]["after, 16 cores"]
    pairs = sorted(
        ours / alone for alone, ours in zip(found[ALONE]["all"], found[OURS]["all"], strict=True)
    )
    return f"{pairs[0]:.2f} to {pairs[-1]:.2f}"


def operations(results: Results) -> str:
    """The table of CuPy's operations."""
    found = results[ALL[0]]
    whole, part = found["whole process"], found["operations"]
    lines = [
        "| | whole process | operations | to CuPy alone, nothing cached (the operations) |",
        "|---|---|---|---|",
    ]
    first = OPERATIONS[0][1]
    for label, name in OPERATIONS:
        times = [f"{figure(of[name]['seconds'])} s" if name in of else "—" for of in (whole, part)]
        share = f"{whole[name]['seconds'] / whole[first]['seconds']:.2f}"
        if name in part:
            share += f" ({part[name]['seconds'] / part[first]['seconds']:.2f})"
        lines.append(f"| {label} | {' | '.join(times)} | {share} |")
    return "\n" + "\n".join(lines) + "\n"


def shipped(results: Results) -> str:
    """What `warm cupy` gives, in a sentence."""
    found = results[SHIPPED[0]]["whole process"]
    seconds = {name: of["seconds"] for name, of in found.items()}
    cold, warm = seconds[f"{ALONE}, cold"], seconds[f"{ALONE}, warm"]
    first = seconds[f"{OURS}, the first after warm cupy"]
    return (
        f"the first process after\n`warm cupy` took {figure(first)} s where CuPy alone took {figure(cold)} s with nothing "
        f"cached and {figure(warm)} s cached:\n{first / cold:.2f} and {first / warm:.2f}; with empty caches and the bundle "
        f"of `bundle --cupy`, {figure(seconds[f'{OURS}, empty caches and a bundle'])} s. A cached\nprocess through "
        f"rtcompile took {figure(seconds[f'{OURS}, warm'])} s."
    )


def cached(results: Results) -> str:
    """What a cached process takes, of CuPy's time."""
    found = results[ALL[0]]
    of = {
        (part, name): found[part][name]["to CuPy alone, warm"]
        for part in ("whole process", "operations")
        for name in (f"{OURS}, warm", f"{OURS}, warmed before")
    }
    whole, alone, again, operation = of.values()
    return (
        f"a whole process takes {whole:.2f} of CuPy's time and its operations {again:.2f}; warmed before, "
        f"{alone:.2f} and {operation:.2f}"
    )


def lives(results: Results) -> str:
    """The table of what stays in a process."""
    kinds = ("threads", "descriptors", "children", "temporary files", "resident MB")
    lines = [f"| life | {' | '.join(kinds)} |", "|---" * 6 + "|"]
    for life, moments in results["lives"].items():
        during = [state for moment, state in moments.items() if moment != "after its end"]
        cells = [", ".join(str(state[kind]) for state in during) for kind in kinds]
        lines.append(f"| {life} | {' | '.join(cells)} |")
    return "\n" + "\n".join(lines) + "\n"


def lives_conditions(results: Results) -> str:
    """When, where and with which code the states of that table were taken."""
    _, early, late, _ = next(iter(results["lives"].values()))
    machine = results.machine
    return (
        f"before any build, {early} and {late}, on {machine['cores']} cores with\nPython {machine['python']}, "
        f"commit {results.commit[:8]}"
    )


def lives_growth(results: Results) -> str:
    """By how much memory grows from the second state to the third."""
    of = [[*moments.values()] for moments in results["lives"].values()]
    return f"{max(late['resident MB'] - early['resident MB'] for _, early, late, _ in of)} MB"


PARTS: dict[str, Callable[[Results], str]] = {
    "whole processes": whole_processes,
    "conditions": conditions,
    "import and first hit": import_and_hit,
    "noise": noise,
    "operations": operations,
    "operations conditions": conditions,
    "shipped": shipped,
    "cached": cached,
    "lives": lives,
    "lives conditions": lives_conditions,
    "lives growth": lives_growth,
}


def written(text: str, results: Results) -> str:
    """Return a page's text with the figures of the results."""
    found = MARKED.sub(lambda mark: f"{mark[1]}{PARTS[mark[2]](results)}{mark[3]}", text)
    if results.commits:
        results.commit  # noqa: B018  # raises if they are of several
    return found


def main() -> None:
    for page in PAGES:
        path = ROOT / page
        before = path.read_text()
        after = written(before, Results())
        path.write_text(after)
        print(page, "is unchanged" if after == before else "is written", file=sys.stderr)


if __name__ == "__main__":
    main()

"""Runs random cases of every example, some under compute-sanitizer, and records the findings.

``python -m benchmarks.examples_random --save``, on a machine with a GPU. Each example runs in its
own processes, so an example that ends its context does not affect others.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks._machine import save
from tests.gpu import random_cases, sanitizer

COUNT, UNDER_SANITIZER = 200, 40


def column(tool: str) -> dict[str, Any]:
    """Run all examples under a tool, eight at a time."""
    count, timeout = (COUNT, 240) if tool == "none" else (UNDER_SANITIZER, 150)
    with ThreadPoolExecutor(8) as pool:
        reports = pool.map(lambda example: timed(tool, example, count, timeout), random_cases.CASES)
        results: dict[str, Any] = {report.pop("example"): report for report in reports}
    if tool in sanitizer.PLANTED:
        results["a planted error"] = {"found": sanitizer.planted(tool)}
    return results


def timed(tool: str, example: str, count: int, timeout: float) -> dict[str, Any]:
    start = time.perf_counter()
    report = sanitizer.run(tool, example, count, timeout=timeout)
    report["seconds"] = round(time.perf_counter() - start, 1)
    log = report.pop("log", None)
    if log and os.environ.get("OUT"):
        Path(os.environ["OUT"], f"{tool}_{example}.log").write_text(log[-200_000:])
    return report


if __name__ == "__main__":
    tools = [name for name in sys.argv[1:] if not name.startswith("-")] or ["none"]
    if tools == ["none"] and sanitizer.program():
        tools += sanitizer.TOOLS
    # One cache for all, so that what runs under the sanitizer compiles nothing there.
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("RTCOMPILE_CACHE_DIR", folder)
        save(
            "examples_random",
            {"random cases" if tool == "none" else tool: column(tool) for tool in tools},
        )

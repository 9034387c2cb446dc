"""Runs random cases of every example, some under compute-sanitizer, and records the findings.

``python -m benchmarks.examples_random --save``, on a machine with a GPU. Each example runs in its
own processes, so an example that ends its context does not affect others. It fails if a case fails, if a tool finds
something, or if it does not find a planted error.

memcheck does not detect stores of the TMA unit (that of CUDA 13.0 missed an overrun of 14 bytes). Only the guards of
`tests.gpu.guarded` detect them, and they are also checked in these runs where they exist.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks._machine import save
from tests.gpu import random_cases

ROOT = Path(__file__).parents[1]
COUNT, UNDER_SANITIZER = 200, 40
TOOLS = ("memcheck", "racecheck")
FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")
# Errors that each tool must find to be trusted: a write behind an array, and a race.
PLANTED = {
    "memcheck": "x[64] = 1;",
    "racecheck": "__shared__ int s[64]; s[threadIdx.x] = x[0]; x[threadIdx.x] = s[63 - threadIdx.x];",
}
PROGRAM = """
import cupy, sys
cupy.cuda.set_allocator(None)
code = 'extern "C" __global__ void planted(volatile int* x) { %s }' % sys.argv[1]
cupy.RawKernel(code, "planted")((1,), (64,), (cupy.zeros(64, "i4"),))
cupy.cuda.runtime.deviceSynchronize()
"""
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) .*")


def program() -> str | None:
    """Return compute-sanitizer's path, or None where there is none."""
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=os.pathsep.join(FOLDERS)
    )


def planted(tool: str, *, timeout: float = 100.0) -> int:
    """Return how many errors the tool finds in a kernel that has one."""
    command = [*_command(tool), sys.executable, "-c", PROGRAM, PLANTED[tool]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    return sum(map(int, SUMMARY.findall(done.stdout + done.stderr)))


def _command(tool: str) -> list[str]:
    options = ["--target-processes=application-only", "--error-exitcode=99"]
    # CuPy makes calls of the driver that may fail; such errors are ignored.
    options += ["--report-api-errors=no"] if tool == "memcheck" else ["--racecheck-report=all"]
    return [str(program()), f"--tool={tool}", *options]


def run(tool: str, example: str, count: int, *, timeout: float) -> dict[str, Any]:
    """Run `count` small cases under `tool` (``"none"`` for no tool); return the findings.

    Each array is an allocation of the driver, so the tool knows its end.
    """
    command = [sys.executable, "-m", "tests.gpu.random_cases", example]
    environment = dict(os.environ)
    if tool == "none":
        command += ["--count", str(count)]
    else:
        command += ["--count", str(count), "--largest", "150", "--seed", "2"]
        environment["RTCOMPILE_TEST_EXACT_MEMORY"] = "1"
        command = [*_command(tool), *command]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode(errors="replace")
        return {"example": example, "failures": [f"no end after {timeout:.0f} s"], "log": output}
    log = done.stdout + done.stderr
    reports = [line for line in done.stdout.splitlines() if line.startswith('{"example"')]
    report = json.loads(reports[-1]) if reports else {"example": example, "failures": ["no report"]}
    if tool != "none":
        found = SUMMARY.findall(log)
        report["found"] = int(found[-1]) if found else None
        if found != ["0"]:
            report["failures"].append(f"{tool}: {found or 'no summary'}")
    if done.returncode and not report["failures"]:
        report["failures"].append(f"exit status {done.returncode}")
    if report["failures"]:
        report["log"] = log
    return report


def column(tool: str) -> dict[str, Any]:
    """Run all examples under a tool, eight at a time."""
    count, timeout = (COUNT, 240) if tool == "none" else (UNDER_SANITIZER, 150)
    with ThreadPoolExecutor(8) as pool:
        reports = pool.map(lambda example: timed(tool, example, count, timeout), random_cases.CASES)
        results: dict[str, Any] = {report.pop("example"): report for report in reports}
    if tool in PLANTED:
        results["a planted error"] = {"found": planted(tool)}
    return results


def timed(tool: str, example: str, count: int, timeout: float) -> dict[str, Any]:
    start = time.perf_counter()
    report = run(tool, example, count, timeout=timeout)
    report["seconds"] = round(time.perf_counter() - start, 1)
    log = report.pop("log", None)
    if log and os.environ.get("OUT"):
        Path(os.environ["OUT"], f"{tool}_{example}.log").write_text(log[-200_000:])
    return report


if __name__ == "__main__":
    tools = [name for name in sys.argv[1:] if not name.startswith("-")] or ["none"]
    if tools == ["none"] and program():
        tools += TOOLS
    # One cache for all, so that what runs under the sanitizer compiles nothing there.
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("RTCOMPILE_CACHE_DIR", folder)
        columns = {"random cases" if tool == "none" else tool: column(tool) for tool in tools}
        save("examples_random", columns)
    reports = [report for results in columns.values() for report in results.values()]
    sys.exit(any(each.get("failures") or each == {"found": 0} for each in reports))

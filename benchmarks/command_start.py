"""How long the command takes to start: fresh processes, median; `--save` keeps the result."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks import _machine

ROUNDS = 15
COMMANDS = {
    "python itself": ["-c", "pass"],
    "--version": ["-m", "rtcompile", "--version"],
    "explain crash": ["-m", "rtcompile", "explain", "crash"],
    "cache info": ["-m", "rtcompile", "cache", "info"],
    "doctor --no-probes": ["-m", "rtcompile", "doctor", "--no-probes"],
}


def milliseconds(arguments: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True)
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    medians = {
        name: round(statistics.median(milliseconds(arguments) for _ in range(ROUNDS)), 1)
        for name, arguments in COMMANDS.items()
    }
    _machine.save("command_start", {"milliseconds, median": medians})


if __name__ == "__main__":
    main()

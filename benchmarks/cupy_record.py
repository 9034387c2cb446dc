"""Makes the record of CuPy's own kernels that the wheel has for one minor version of CuPy.

``python -m benchmarks.cupy_record [--jobs 16] [--seconds 240] [-o FILE]`` runs the operations of
benchmarks/cupy_operations.py in several processes, and writes the kernels that they requested. Needs a
GPU and that CuPy. Without ``-o`` the file in the package is replaced. An operation that this CuPy does not
have, or not for a dtype, is counted and skipped. One that ends the CUDA context ends its process, and
another process continues with the rest.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from rtcompile.extras.record import recording

MOST_BYTES = 1 << 20
SECONDS_EACH = 30
LOST = ("IllegalAddress", "LaunchFailure", "ILLEGAL_ADDRESS", "LAUNCH_FAILED", "ContextIsDestroyed")
MODULES = """
fft interpolate linalg ndimage signal sparse sparse.csgraph sparse.linalg spatial spatial.distance
special stats
"""


# --- a process, which runs its share -------------------------------------------------------------


def run_share(share: int, shares: int, notes: Path, first: int) -> None:
    """Run each `shares`-th operation from the number `first` on; note kernels, failures and progress."""
    import importlib

    import cupy as cp
    import cupyx
    from cupyx.scipy import special

    import rtcompile
    from benchmarks import cupy_operations

    warnings.simplefilter("ignore")
    for module in MODULES.split():
        with suppress(ImportError):  # its operations fail, and are counted
            importlib.import_module(f"cupyx.scipy.{module}")
    assert rtcompile.install().active
    with notes.open("a") as file:

        def note(line: Any) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        from rtcompile.lookup.find import listeners

        seen: set[Any] = set()
        current = ["", ""]

        def heard(request: Any, outcome: Any) -> None:
            key = (request.source, request.options, request.name_expressions)
            if key in seen or isinstance(outcome, Exception):
                return
            seen.add(key)
            kernel = {"name": request.name, "source": request.source}
            kernel["names"] = list(request.name_expressions)
            own = own_options(request.options)
            if own is None or request.backend == "nvcc":
                note({"left out": request.name, "options": request.options})
                return
            milliseconds = round(outcome.build.compiled_in)
            note(
                {"kernel": {**kernel, "options": own, "milliseconds": milliseconds}, "of": current}
            )

        listeners.append(heard)
        todo = list(cupy_operations.tasks(cp, special))
        random.Random(0).shuffle(todo)  # neighbours take equally long, and shares would not
        signal.signal(signal.SIGALRM, _too_long)
        names = {"cp": cp, "cupyx": cupyx, "scipy": cupyx.scipy}
        for number in range(first, len(todo)):
            if number % shares != share:
                continue
            note({"began": number})
            expression, code = current[:] = todo[number]
            signal.alarm(SECONDS_EACH)
            try:
                eval(expression, {**names, **cupy_operations.arrays(cp, code)})
                cp.cuda.Device().synchronize()
            except Exception as error:
                note({"failed": [expression, code, f"{type(error).__name__}: {error}"[:200]]})
                if any(sign in repr(error) for sign in LOST):
                    os._exit(3)
    os._exit(0)  # nothing is left to write, and the end of a context takes time


def _too_long(*_: object) -> None:
    raise TimeoutError(f"it took {SECONDS_EACH} s")


def own_options(options: tuple[str, ...]) -> list[str] | None:
    """Return the options that CuPy's generator gave, to which CuPy adds its own; None if unknown."""
    from cupy._core import core

    own = [each for each in options if not each.startswith("-I") and each != "-ftz=true"]
    for each in ([option for option in own if option != "--std=c++17"], own):
        if (*core.assemble_cupy_compiler_options(tuple(each)), "-ftz=true") == tuple(options):
            return each
    return None


# --- the parent -----------------------------------------------------------------------------------


def run_all(folder: Path, jobs: int, seconds: float) -> list[dict[str, Any]]:
    """Return the notes of all processes."""
    deadline = time.monotonic() + seconds

    def run(share: int) -> None:
        notes, first = folder / f"{share}.notes", 0
        notes.touch()
        while (left := deadline - time.monotonic()) > 1:
            command = [sys.executable, "-m", "benchmarks.cupy_record", "--share", str(share)]
            command += ["--jobs", str(jobs), "--notes", str(notes), "--first", str(first)]
            try:
                if not subprocess.run(command, timeout=left, check=False).returncode:
                    return
            except subprocess.TimeoutExpired:
                return
            began = [line["began"] for line in lines_of(notes) if "began" in line]
            first = max(began, default=len(began)) + 1

    threads = [threading.Thread(target=run, args=(share,)) for share in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [line for share in range(jobs) for line in lines_of(folder / f"{share}.notes")]


def lines_of(notes: Path) -> list[dict[str, Any]]:
    """Return the notes of a process, without a last line that it did not finish."""
    text = notes.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def packed(kernels: list[dict[str, Any]]) -> bytes:
    """Return the file of a record, the same for the same kernels."""
    import cupy

    kept = sorted(
        kernels, key=lambda kernel: (kernel["source"], kernel["options"], kernel["names"])
    )
    for kernel in kept:  # which builds begin first depends on it, to the tenth of a second
        kernel["milliseconds"] = round(kernel["milliseconds"], -2)
    document = {"format": "rtcompile kernels of CuPy 1", "cupy": cupy.__version__, "kernels": kept}
    text = json.dumps(document, separators=(",", ":"))
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--notes", type=Path, help="what each process noted; kept if given")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.share is not None:
        run_share(given.share, given.jobs, given.notes, given.first)

    with tempfile.TemporaryDirectory() as name:
        notes = run_all(Path(name), given.jobs, given.seconds)
    if given.notes:
        given.notes.write_bytes(lzma.compress("\n".join(map(json.dumps, notes)).encode(), preset=1))
    kernels = {}
    for line in notes:
        if kernel := line.get("kernel"):
            kernels.setdefault(
                json.dumps([kernel["source"], kernel["options"], kernel["names"]]), kernel
            )
    failed = Counter(line["failed"][0] for line in notes if "failed" in line)
    for expression, times in failed.most_common():
        print(f"failed for {times} dtypes: {expression}")
    for line in notes:
        if "left out" in line:
            print(f"left out: {line['left out']} {line['options']}")
    data = packed([*kernels.values()])
    output = given.output or Path(recording.KERNELS)
    output.write_bytes(data)
    began = sum("began" in line for line in notes)
    print(f"{began} operations, {len(kernels)} kernels, {len(data)} bytes: {output}")
    assert len(data) <= MOST_BYTES


if __name__ == "__main__":
    main()

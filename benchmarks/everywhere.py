"""Measures 31 everyday operations of CuPy in a new process, with CuPy alone and with `rtcompile run`.

Needs a GPU. Whole processes, each with its own caches: cold, cold with existing precompiled headers,
warm, and a fresh container (empty caches) with a bundle; and of each the part from the device's context
up to the last result, which leaves out interpreter, imports and context. ``rtcompile warm`` of the
record is also timed. Contenders take turns; medians. ``--save`` writes
benchmarks/results/everywhere.json. ROUNDS sets the number of rounds.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import _machine

ROUNDS = int(os.environ.get("ROUNDS", "5"))

PROGRAM = r"""
import time
import cupy as cp
cp.cuda.Device().synchronize()  # the context is there
begin = time.perf_counter()
a = cp.arange(1, 4097, dtype=cp.float32).reshape(64, 64)
b = (a * 2 + 1).astype(cp.float64)
i = cp.arange(4096, dtype=cp.int32) % 97
z = a + 1j * a
results = [
    a + b, a * a, cp.sqrt(a), cp.exp(-a), cp.sin(a), a > 3, cp.where(a > 3, a, b), a.sum(),
    a.mean(axis=0), a.max(axis=1), a.argmax(), a.std(), cp.prod(b[:2]), cp.cumsum(a), cp.sort(i),
    cp.argsort(i), cp.unique(i), cp.histogram(a, bins=10)[0], cp.bincount(i), z * z, cp.abs(z),
    cp.angle(z), a @ a.T, a.T.copy(), cp.concatenate([a, a]), cp.clip(a, 2, 5), cp.nonzero(a > 9)[0],
    cp.random.random(100), cp.random.normal(size=100), cp.random.randint(0, 9, 100), cp.linspace(0, 1, 9),
]
cp.cuda.Device().synchronize()
assert len(results) == 31
assert int(a.sum()) == 4096 * 4097 // 2
print("operations", time.perf_counter() - begin)
"""


def run(command: list[str], caches: Path, **more: str) -> tuple[float, float]:
    """Return the seconds of the whole process, and of its operations if it has some."""
    environ = {
        **os.environ,
        "RTCOMPILE_CACHE_DIR": str(caches / "rtcompile"),
        "CUPY_CACHE_DIR": str(caches / "cupy"),
        "CUDA_CACHE_PATH": str(caches / "driver"),
        **more,
    }
    begin = time.perf_counter()
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    assert done.returncode == 0, done.stderr
    _, _, operations = done.stdout.partition("operations ")
    return seconds, float(operations or 0)


def forget_builds(caches: Path) -> Path:
    """Leave only the precompiled headers in a cache."""
    for part in ("index", "objects", "records"):
        shutil.rmtree(caches / "rtcompile" / part, ignore_errors=True)
    return caches


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        script, record, bundle = here / "program.py", here / "kernels.json", here / "kernels.rtc"
        script.write_text(PROGRAM)
        alone = [sys.executable, str(script)]
        rtcompile = [sys.executable, "-m", "rtcompile"]
        ours = [*rtcompile, "run", str(script)]
        times: dict[str, list[tuple[float, float]]] = {}

        def note(name: str, seconds: tuple[float, float]) -> None:
            times.setdefault(name, []).append(seconds)

        def fresh(name: str) -> Path:
            shutil.rmtree(here / name, ignore_errors=True)
            return here / name

        run([*rtcompile, "run", "--record", str(record), str(script)], fresh("recording"))
        run([*rtcompile, "bundle", str(record), "-o", str(bundle)], here / "recording")
        for _ in range(
            2
        ):  # a prefix that few kernels share has its header made beside the second build
            run(ours, forget_builds(here / "headers"))
        for _ in range(ROUNDS):
            note("CuPy alone, cold", run(alone, fresh("alone")))
            note("CuPy alone, warm", run(alone, here / "alone"))
            note("rtcompile, cold", run(ours, fresh("ours")))
            note("rtcompile, warm", run(ours, here / "ours"))
            headers = forget_builds(here / "headers")
            note("rtcompile, cold, headers precompiled", run(ours, headers))
            warmed = fresh("warmed")
            note("rtcompile warm (no GPU needed)", run([*rtcompile, "warm", str(record)], warmed))
            note("rtcompile, warmed before", run(ours, warmed))
            note(
                "rtcompile, fresh container with a bundle",
                run(ours, fresh("bundled"), RTCOMPILE_BUNDLES=str(bundle)),
            )
        results = {}
        for part, index in (("whole process", 0), ("operations", 1)):
            seconds = {
                name: round(statistics.median(each[index] for each in of), 3)
                for name, of in times.items()
                if of[0][index]
            }
            cold, warm = seconds["CuPy alone, cold"], seconds["CuPy alone, warm"]
            results[part] = {
                name: {
                    "seconds": of,
                    "to CuPy alone, cold": round(of / cold, 3),
                    "to CuPy alone, warm": round(of / warm, 3),
                }
                for name, of in seconds.items()
            }
        _machine.save("everywhere", results)


if __name__ == "__main__":
    main()

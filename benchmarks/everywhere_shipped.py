"""The everyday operations of benchmarks/everywhere.py after `rtcompile warm cupy`. Needs a GPU.

``python -m benchmarks.everywhere_shipped [--save]``. Whole processes: CuPy alone, cold and warm; through
rtcompile, warm; the first after ``warm cupy`` with the record in the package; and with empty caches and
the bundle of ``rtcompile bundle --cupy``. Contenders take turns; medians. ROUNDS sets the number of rounds.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import _machine
from benchmarks.everywhere import PROGRAM, run

ROUNDS = int(os.environ.get("ROUNDS", "5"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        script, bundle, warmed = here / "program.py", here / "cupy.rtcb", here / "warmed"
        script.write_text(PROGRAM)
        alone = [sys.executable, str(script)]
        rtcompile = [sys.executable, "-m", "rtcompile"]
        ours = [*rtcompile, "run", "--check", str(script)]  # which fails if a kernel is missing
        environ = {**os.environ, "RTCOMPILE_CACHE_DIR": str(warmed)}
        made = {}
        for name, command in (
            ("warm cupy", [*rtcompile, "warm", "cupy", "--json"]),
            ("bundle --cupy", [*rtcompile, "bundle", "--cupy", "-o", str(bundle), "--json"]),
        ):
            arch = ["--arch", f"sm_{_capability()}"]
            done = subprocess.run(
                [*command, *arch], env=environ, check=True, capture_output=True, text=True
            )
            made[name] = json.loads(done.stdout)
            print(name, str(made[name])[:200], file=sys.stderr, flush=True)
        times: dict[str, list[tuple[float, float]]] = {}

        def fresh(name: str) -> Path:
            shutil.rmtree(here / name, ignore_errors=True)
            return here / name

        run([*rtcompile, "run", str(script)], here / "ours")
        for _ in range(ROUNDS):
            shutil.copytree(warmed, fresh("first") / "rtcompile", symlinks=True)
            for name, command, caches, more in (
                ("CuPy alone, cold", alone, fresh("alone"), {}),
                ("CuPy alone, warm", alone, here / "alone", {}),
                ("rtcompile, warm", ours, here / "ours", {}),
                ("rtcompile, the first after warm cupy", ours, here / "first", {}),
                (
                    "rtcompile, empty caches and a bundle",
                    ours,
                    fresh("bundled"),
                    {"RTCOMPILE_BUNDLES": str(bundle)},
                ),
            ):
                times.setdefault(name, []).append(run(command, caches, **more))
                print(name, *times[name][-1], file=sys.stderr, flush=True)
        results: dict[str, object] = {
            "warm cupy": made["warm cupy"]["records"][0],
            "bundle, bytes": made["bundle --cupy"]["bytes"],
        }
        for part, index in (("whole process", 0), ("operations", 1)):
            seconds = {
                name: statistics.median(each[index] for each in of) for name, of in times.items()
            }
            results[part] = {
                name: {
                    "seconds": round(of, 3),
                    "to CuPy alone, cold": round(of / seconds["CuPy alone, cold"], 3),
                    "to rtcompile, warm": round(of / seconds["rtcompile, warm"], 3),
                }
                for name, of in seconds.items()
            }
        _machine.save("everywhere_shipped", results)


def _capability() -> str:
    import cupy

    return str(cupy.cuda.Device().compute_capability)


if __name__ == "__main__":
    main()

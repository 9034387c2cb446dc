"""Measures hits of a record's kernels as CuPy requests them. Needs no GPU.

``python -m benchmarks.everywhere_warm kernels.json [--save]``: a record of ``rtcompile run --record``,
whose kernels are recorded again for the CuPy and CUDA that are here. CuPy alone with its cache filled;
rtcompile with its cache filled by an earlier run; the first run after ``rtcompile warm``; and an empty
cache with a bundle of the record. Every contender is a fresh process, they take turns; code is not
loaded, since there is no device. Besides the milliseconds, the processor's time of the whole process, and
what the kernels add to a process without kernels: system calls on files (``strace``).
ROUNDS sets the number of rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import _machine
from benchmarks.everywhere_cold import builds_of

ROUNDS = int(os.environ.get("ROUNDS", "9"))

CHILD = r"""
import json, sys, time
with open(sys.argv[1]) as file:
    builds = json.load(file)
# What a CuPy without a device needs to get as far as its compiler.
from cupy.cuda import compiler, function
class Module:
    def load(self, code): pass
    def _set_mapping(self, mapping): pass
function.Module = Module
compiler._get_arch_for_options_for_nvrtc = lambda arch=None: ("-arch=sm_" + arch, "cubin")
who, record = sys.argv[2:4]
if who != "CuPy":
    import rtcompile
    assert rtcompile.install().active
if record:
    from rtcompile.extras.record import program
    recorder = program.Recorder.create(record)
    recorder.start()
begin = time.perf_counter()
for b in builds:
    compiler._compile_module_with_cache(b["source"], tuple(b["options"]), arch=b["arch"])
took = time.perf_counter() - begin
if record:
    recorder.finish()
print(json.dumps({"kernels": took, "modules": len(sys.modules)}))
"""
OPENS = ("open", "openat")
LOOKS = ("stat", "newfstatat", "lstat", "fstat", "statx", "access", "faccessat", "faccessat2")


class Contender:
    """A process that requests the kernels of a task, and its preparation before each run."""

    def __init__(self, here: Path, task: Path, who: str, name: str, bundle: str = "") -> None:
        self.cache = here / name
        self.kept = here / f"{name} kept"
        self.command = [sys.executable, "-c", CHILD, str(task), who, ""]
        self.environ = {
            **os.environ,
            "RTCOMPILE_CACHE_DIR": str(self.cache),
            "CUPY_CACHE_DIR": str(self.cache / "cupy"),
            "RTCOMPILE_BUNDLES": bundle,
        }

    def keep(self) -> None:
        """Have every run begin with the cache as it is now."""
        shutil.rmtree(self.kept, ignore_errors=True)
        self.cache.mkdir(exist_ok=True)
        shutil.copytree(self.cache, self.kept, symlinks=True)

    def run(self, *before: str, task: Path | None = None) -> dict[str, float]:
        """Run a process; return its seconds, its processor seconds, and its output."""
        shutil.rmtree(self.cache, ignore_errors=True)
        shutil.copytree(self.kept, self.cache, symlinks=True)
        command = list(self.command)
        if task is not None:
            command[3] = str(task)
        used, begin = _processor_seconds(), time.perf_counter()
        done = subprocess.run(
            [*before, *command], env=self.environ, capture_output=True, text=True, check=True
        )
        whole, used = time.perf_counter() - begin, _processor_seconds() - used
        return {"whole": whole, "processor": used, **json.loads(done.stdout)}


def _processor_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def counts(contender: Contender, nothing: Path, folder: Path) -> dict[str, int | None]:
    """Return what the kernels add to a process that requests none."""
    found: dict[str, int | None] = {}
    if shutil.which("strace"):
        calls = []
        for task in (None, nothing):
            log = folder / "strace"
            contender.run("strace", "-f", "-o", str(log), "-e", "trace=file,fstat", task=task)
            names = re.findall(r"^\d+ +(\w+)\(", log.read_text(errors="replace"), re.MULTILINE)
            calls.append([sum(name in kind for name in names) for kind in (OPENS, LOOKS)])
        for name, here, base in zip(("opens", "stats and accesses"), *calls, strict=True):
            found[name] = here - base
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record")
    parser.add_argument("--save", action="store_true")
    builds = builds_of(parser.parse_args().record)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        task, nothing = here / "task.json", here / "nothing.json"
        task.write_text(json.dumps(builds))
        nothing.write_text("[]")
        record, bundle = str(here / "kernels.json"), str(here / "kernels.rtc")
        contenders = {
            "CuPy alone, cached": Contender(here, task, "CuPy", "alone"),
            "rtcompile, cached": Contender(here, task, "rtcompile", "second"),
            "rtcompile, warmed before": Contender(here, task, "rtcompile", "warmed"),
            "rtcompile, empty cache and a bundle": Contender(
                here, task, "rtcompile", "bundled", bundle
            ),
        }
        alone, second, warmed, _ = contenders.values()
        for each, more in ((second, record), (second, ""), (alone, "")):
            subprocess.run([*each.command[:-1], more], env=each.environ, check=True)
        rtcompile = [sys.executable, "-m", "rtcompile"]
        # The working directory is another one, and so is the first entry of sys.path.
        subprocess.run([*rtcompile, "warm", record], env=warmed.environ, check=True)
        subprocess.run(
            [*rtcompile, "bundle", record, "-o", bundle],
            env={**second.environ, "RTCOMPILE_BUNDLES": ""},
            check=True,
        )
        for each in contenders.values():
            each.keep()
            each.run()  # nothing is byte-compiled or read from disk for the first time any more
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
        for _ in range(ROUNDS):
            for name, each in contenders.items():
                runs[name].append(each.run())
        results: dict[str, object] = {"kernels": len(builds)}
        parts = {"whole": "whole process", "processor": "its processor", "kernels": "all kernels"}
        base: dict[str, float] = {}
        for name, each in contenders.items():
            row: dict[str, object] = {}
            for part, title in parts.items():
                seconds = statistics.median(run[part] for run in runs[name])
                row[f"{title}, ms"] = round(1e3 * seconds, 1)
                row[f"{title}, to CuPy alone"] = round(seconds / base.setdefault(part, seconds), 3)
            row["modules"] = runs[name][0]["modules"]
            results[name] = {**row, **counts(each, nothing, here)}
        _machine.save("everywhere_warm_cpu", results)


if __name__ == "__main__":
    main()

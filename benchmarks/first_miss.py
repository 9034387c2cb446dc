"""Measures the steps of a program's first compile.

Each round is a fresh process with an empty cache that knows its toolchain, as in
`whole_process`. The times are milliseconds since the kernel was requested, medians over the rounds.
Without a GPU the device and the launch are fakes, and the code is not loaded. ``--save`` writes
benchmarks/results/first_miss.json. ROUNDS sets the number of rounds.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from benchmarks import _machine

ROUNDS = int(os.environ.get("ROUNDS", "15"))

CHILD = r"""
import json, sys, time
import cupy
if len(sys.argv) > 2:  # no GPU
    from types import SimpleNamespace
    cupy.cuda.runtime = SimpleNamespace(
        getDevice=lambda: 0,
        deviceGetAttribute=lambda which, device: 9 if which == 75 else 0,
        CUDARuntimeError=cupy.cuda.runtime.CUDARuntimeError,
    )
    memoize = cupy.memoize
    cupy.memoize = lambda for_each_device=False: memoize()
else:
    x = cupy.arange(64, dtype=cupy.float32)
    x += 1
    cupy.cuda.Device().synchronize()
from rtcompile import RawKernel
from rtcompile.frontends import lazy_code
if len(sys.argv) > 2:
    lazy_code._load = lambda code, names: SimpleNamespace(get_function=lambda name: name)

steps = {}
def note(step, when=None):
    steps.setdefault(step, ((when or time.monotonic()) - begin) * 1e3)

sent = 0
def watch(event, given):
    global sent
    if event == "os.posix_spawn":
        note("worker started")
    elif event == "socket.sendmsg":
        sent += 1
        note("worker told what to load" if sent == 1 else "job sent")
        if sent == 2:
            from rtcompile.workers import system
            receive = system.receive
            def received(socket, *flags):
                note("what is done meanwhile done")
                found = receive(socket, *flags)
                note("reply")
                value = found[0][1]
                if "spans" in value:  # of commits before November 2026
                    _, since, until = value["spans"][0]
                else:
                    since = value["began"]
                    until = since + sum(value["milliseconds"].values()) / 1e3
                note("worker ready, compiler begins", since)
                note("compiler ends", until)
                return found
            system.receive = received

sys.addaudithook(watch)
source = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] += %s.0f; }' % sys.argv[1]
begin = time.monotonic()
RawKernel(source, "k").kernel
note("kernel there")
json.dump(steps, sys.stdout)
"""


def main() -> None:
    gpu = _machine.describe()["gpu"] != "none"
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        cache, keep = os.path.join(folder, "cache"), os.path.join(folder, "keep")
        environ = {**os.environ, "RTCOMPILE_CACHE_DIR": cache}

        def run(number: int) -> dict[str, float]:
            done = subprocess.run(
                [sys.executable, "-c", CHILD, str(number), *([] if gpu else ["no GPU"])],
                env=environ,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return dict(json.loads(done.stdout))

        run(0)
        for kind in ("objects", "records"):
            shutil.rmtree(os.path.join(cache, kind), ignore_errors=True)
        os.rename(cache, keep)
        for number in range(1, ROUNDS + 1):
            shutil.rmtree(cache, ignore_errors=True)
            shutil.copytree(keep, cache)
            rounds.append(run(number))
    steps = {step: statistics.median(r[step] for r in rounds if step in r) for step in rounds[0]}
    ordered = sorted(steps.items(), key=lambda item: item[1])
    _machine.save("first_miss", {step: round(ms, 1) for step, ms in ordered})


if __name__ == "__main__":
    main()

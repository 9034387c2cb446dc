"""Trials of threads without the GIL, in a free-threaded Python (3.13t, 3.14t).

``RTCOMPILE_TEST_FREE_THREADED`` names the interpreter, if none of them is on PATH. It has to import nothing but the
standard library: rtcompile and its pure dependencies come from this environment.
"""

import os
import shutil
import sysconfig
from pathlib import Path

import pytest

from tests.processes import ran
from tests.trials.record import record, times

ROOT = Path(__file__).parents[2]
# Read at import, since a fixture removes the developer's settings for each test.
PYTHON = os.environ.get("RTCOMPILE_TEST_FREE_THREADED") or next(
    filter(None, map(shutil.which, ("python3.14t", "python3.13t"))), ""
)

PROGRAM = """if True:
    import random, sys, threading
    import rtcompile
    assert not sys._is_gil_enabled()

    ROUNDS, CLEARS = map(int, sys.argv[1:])
    barrier = threading.Barrier(8)
    wrong = []

    def build(number):
        source = f'extern "C" __device__ int v{number}; extern "C" __global__ void k() {{}}'
        return rtcompile.compile(source, arch="sm_80", fallback="never")

    def work(seed):
        chance = random.Random(seed)
        barrier.wait()  # all threads search for the toolkit and start the worker at once
        for step in range(ROUNDS):
            number = chance.randrange(12)
            try:
                if CLEARS and chance.randrange(10) == 0:
                    rtcompile.cache.clear()
                code = build(number).code
                if code[:4] != bytes((127, *b"ELF")) or f"v{number}\\0".encode() not in code:
                    wrong.append(f"{number}: the code of another kernel")
            except BaseException as error:
                wrong.append(f"{number}: {error!r}")

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, (len(wrong), wrong[:3])
    if not CLEARS:
        for number in range(12):
            build(number)
    assert not sys._is_gil_enabled()  # no import has turned it on
"""


@pytest.mark.skipif(not PYTHON, reason="no free-threaded Python (RTCOMPILE_TEST_FREE_THREADED)")
@pytest.mark.needs_compiler
@pytest.mark.parametrize("clears", [False, True], ids=["without clears", "with clears"])
def test_eight_threads_without_the_gil(clears, tmp_path, monkeypatch):
    libraries = sysconfig.get_path("purelib")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), libraries)))
    rounds = times(12, 40) if clears else times(40, 1_000)
    what = "compile, find and clear" if clears else "compile and find"
    failed = 0
    for number in range(times(1, 3)):
        monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / str(number)))
        command = [PYTHON, "-X", "gil=0", "-c", PROGRAM, str(rounds), str(int(clears))]
        done = ran(*command, timeout=600)
        printed = done.stderr
        if not printed and not clears:  # without a compiler a new process finds every entry
            monkeypatch.setenv("RTCOMPILE_JIT", "0")
            done = ran(*command[:-2], "12", "0")
            monkeypatch.delenv("RTCOMPILE_JIT")
            printed += done.stderr
        failed += bool(done.returncode or printed)
        if failed:
            break
    record(f"8 threads of a free-threaded Python that {what}", rounds * 8 * (number + 1), failed)
    assert not failed, printed

"""Trials of forks while other threads build: the children can build too, and print nothing."""

import random

import pytest

from tests.processes import python
from tests.trials.record import tally, times

PROGRAM = """if True:
    import faulthandler, os, sys, threading, time
    import rtcompile
    def build():
        code = rtcompile.compile(SOURCE, arch="sm_80").code
        assert code[:4] == bytes((127, *b"ELF"))
    builder = threading.Thread(target=build)
    builder.start()
    time.sleep(SECONDS)
    child = os.fork()
    if not child:
        faulthandler.dump_traceback_later(60, exit=True)  # where it would wait for ever
        build()
        sys.exit()
    builder.join()
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))]
)
def test_a_fork_at_any_moment_of_a_first_build(seed, tmp_path, monkeypatch):
    chance = random.Random(seed)
    with tally("fork at any moment of another thread's first build") as trial:
        for number in range(times(2, 15)):
            # Some children find the code, and some have to search for a toolkit.
            monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / str(number // 2)))
            seconds = chance.uniform(0, 0.6) * chance.random()
            source = f'extern "C" __global__ void k() {{ /* {number % 4} */ }}'
            program = PROGRAM.replace("SOURCE", repr(source)).replace("SECONDS", f"{seconds:.5f}")
            done = python(program, timeout=300)
            with trial():
                assert done.returncode == 0, f"after {seconds:.5f} s: {done.stderr}"


POOL = """if True:
    import multiprocessing, sys, time
    from concurrent.futures import ProcessPoolExecutor
    import rtcompile
    def source(name):
        return f'extern "C" __global__ void {name}() {{}}'
    def build(number):
        return rtcompile.compile(source(f"child{number}"), arch="sm_80").build.backend
    kernels = [rtcompile.RawModule(code=source(f"k{n}"), arch="sm_80") for n in range(6)]
    time.sleep(SECONDS)
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("fork")) as pool:
        assert [*pool.map(build, range(4))] == ["nvrtc"] * 4
    assert all(kernel.object_code for kernel in kernels)
"""


def test_a_process_pool_soon_after_kernels_were_constructed(tmp_path, monkeypatch):
    pytest.importorskip("cupy")
    chance = random.Random(12)
    with tally("process pool forked soon after kernels were constructed") as trial:
        for number in range(times(1, 60)):
            monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / str(number)))
            seconds = chance.uniform(0, 0.6) * chance.random()
            program = POOL.replace("SECONDS", f"{seconds:.5f}")
            done = python(program, timeout=300)
            with trial():
                assert (done.returncode, done.stderr) == (0, ""), f"after {seconds:.5f} s"

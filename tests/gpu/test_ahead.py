"""Constructed kernels are compiled for the device before the program has a context, without initialising CUDA."""

import textwrap
from pathlib import Path

import pytest

from tests.processes import python

PROGRAM = """
    import os, time
    import cupy
    from rtcompile import RawKernel
    text = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] += %d.0f; }'
    kernels = [RawKernel(text % number, "k") for number in range(8)]
    deadline = time.monotonic() + 60
    ahead = None
    while ahead is None or ahead.counts() != (8, 0):
        assert time.monotonic() < deadline
        time.sleep(0.01)
        from rtcompile.lookup.find import builds_ahead as ahead
"""
USE = """
    x = cupy.zeros(32, cupy.float32)
    for kernel in kernels:
        kernel((1,), (32,), (x,))
    assert float(x[5]) == sum(range(8))
    assert [kernel.build.hit for kernel in kernels] == HITS
    assert ahead.counts() == LEFT
"""


def run(program: str, cache: Path) -> None:
    # Python 3.12 warns of forks while threads run.
    environ = {"RTCOMPILE_CACHE_DIR": cache, "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    done = python(program, environ=environ, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_kernels_are_ready_before_the_first_array(tmp_path):
    use = USE.replace("HITS", "[None] * 8").replace("LEFT", "(8, 0)")
    run(textwrap.dedent(PROGRAM + use), tmp_path)


@pytest.mark.parametrize("known", [False, True])
def test_forked_children_can_use_the_gpu(tmp_path, known):
    if known:
        run(textwrap.dedent(PROGRAM), tmp_path)
        program = PROGRAM.partition("deadline")[0] + "\n    time.sleep(0.5)\n"
    else:
        program = PROGRAM
    use = USE.partition("    assert [")[0]
    child = textwrap.indent(textwrap.dedent(use), "    ")
    run(
        textwrap.dedent(program)
        + f"pid = os.fork()\nif pid == 0:\n    code = 1\n    try:\n{textwrap.indent(child, '    ')}"
        + "        code = 0\n    finally:\n        os._exit(code)\n"
        + "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n",
        tmp_path,
    )

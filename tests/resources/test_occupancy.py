"""The computed occupancy equals that of CUDA's own cuda_occupancy.h, compiled here."""

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from rtcompile import toolkit
from rtcompile.extras.resources import limits_of, occupancy
from rtcompile.request.values import Arch
from tests.processes import ran

ARCHS = ["50", "53", "60", "61", "70", "75", "80", "86", "87", "89", "90", "100", "120"]
ORACLE = Path(__file__).with_name("occupancy_oracle.cpp").read_text()


@pytest.mark.needs_compiler
@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
def test_blocks_are_those_that_cudas_own_header_computes(tmp_path):
    include = next(d.path for d in toolkit.current().search if d.label == "cudart")
    (tmp_path / "oracle.cpp").write_text(ORACLE)
    program = tmp_path / "oracle"
    subprocess.run(["g++", "-I", include, "-o", program, tmp_path / "oracle.cpp"], check=True)
    ours, lines = [], []
    threads, counts, sizes = (
        (32, 33, 96, 128, 256, 1000, 1024),
        (1, 24, 40, 63, 128, 255),
        (0, 1, 5000, 49152),
    )
    for name, block, registers, shared in itertools.product(ARCHS, threads, counts, sizes):
        arch = Arch.parse(name)
        limits = limits_of(arch)
        device = (limits.warps * 32, limits.block_registers, limits.shared, limits.block_shared)
        numbers = arch.major, arch.minor, *device, limits.reserved_shared, block, registers, shared
        lines.append(" ".join(map(str, numbers)))
        ours.append(occupancy(limits, block=block, registers=registers, shared=shared).blocks)
    done = ran(program, input="\n".join(lines), check=True)
    theirs = [int(line) for line in done.stdout.split()]
    wrong = [case for case, a, b in zip(lines, ours, theirs, strict=True) if a != b]
    assert wrong == []


def test_the_limit_of_a_kernel_is_named():
    limits = limits_of(Arch(9, 0))
    found = occupancy(limits, block=256, registers=128, shared=0)
    assert (found.blocks, found.share, found.limited_by) == (2, 0.25, ("registers",))
    found = occupancy(limits, block=128, registers=32, shared=100 << 10)
    assert found.limited_by == ("shared memory",)
    assert occupancy(limits, block=1024, registers=32, shared=0).share == 1.0
    with pytest.raises(ValueError, match="1 to 1024 threads, not 2048"):
        occupancy(limits, block=2048, registers=32, shared=0)
    assert limits_of(Arch(20, 0)) is None

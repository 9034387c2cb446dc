"""Under MPI, ranks of one node compile a kernel once, MPI keeps working, and no process remains."""

import json
import os
import sys
import sysconfig
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from tests.jobs import eventually
from tests.processes import ran
from tests.trials.record import record

RANKS = 4

RANK = r"""
import json, os
from mpi4py import MPI
import rtcompile

world = MPI.COMM_WORLD
rank = world.Get_rank()
source = 'extern "C" __global__ void k(int* p) { *p = %d; }'
world.Barrier()
shared = rtcompile.compile(source % 0, arch="sm_90")
own = rtcompile.compile(source % (1 + rank), arch="sm_90")
replies = world.gather({
    "pid": os.getpid(),
    "compiled": shared.build.hit is None,
    "own": own.build.hit is None,
    "code": shared.code.hex(),
    # Messages pass after the workers were started, large ones too: by shared memory.
    "sum": world.allreduce(rank),
    "echo": len(world.bcast(bytes(1 << 24) if rank == 0 else None)),
})
if rank == 0:
    print(json.dumps(replies))
"""


def workers_of(callers: Collection[int]) -> list[str]:
    """Return the command lines of worker processes started by one of these."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            words = (folder / "cmdline").read_text().split("\0")
            if "rtcompile.workers.zygote:main" in words:
                found += [" ".join(words)] if {str(pid) for pid in callers} & set(words) else []
    return found


def test_ranks_compile_a_kernel_once_and_leave_nothing(tmp_path):
    mpiexec = os.path.join(sysconfig.get_path("scripts"), "mpiexec")
    here = Path(__file__).parents[2]
    done = ran(mpiexec, "-n", RANKS, sys.executable, "-c", RANK, cwd=here, timeout=100)
    record("MPI rank that compiles with its neighbours", RANKS, RANKS * bool(done.returncode))
    assert done.returncode == 0, done.stderr
    replies = json.loads(done.stdout)
    assert len(replies) == RANKS
    assert sum(reply["compiled"] for reply in replies) == 1
    assert all(reply["own"] for reply in replies)
    assert len({reply["code"] for reply in replies}) == 1
    assert {reply["sum"] for reply in replies} == {sum(range(RANKS))}
    assert {reply["echo"] for reply in replies} == {1 << 24}
    pids = [reply["pid"] for reply in replies]
    assert eventually(lambda: not workers_of(pids)), workers_of(pids)

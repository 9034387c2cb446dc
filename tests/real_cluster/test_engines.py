"""Tests of batches and warm workers on the installed Dask, Ray and MPI."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtcompile import CompileRequest, RawModule, compile_many
from tests import nodes

# Their sockets and event loops may end at any time.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def requests(first: int) -> list[CompileRequest]:
    return [
        CompileRequest(nodes.source(number), arch="sm_80") for number in range(first, first + 3)
    ]


def hits(first: int) -> list[str | None]:
    """Return the hits of these builds in the process that calls this."""
    return [code.build.hit for code in compile_many(requests(first), progress=False)]


# --- Dask --------------------------------------------------------------------------------------


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    theirs = {"RTCOMPILE_CACHE_DIR": str(tmp_path / "theirs")}
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=None, env=theirs
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_a_batch_on_dask_is_in_the_local_cache(dask):
    built = compile_many(requests(10), executor=dask, progress=False)
    assert [code.build.hit for code in built] == [None] * 3
    assert hits(10) == ["memory"] * 3


def test_workers_of_dask_are_warm_even_if_they_start_later(dask, tmp_path):
    from rtcompile.cluster.dask import WarmUp

    dask.register_plugin(WarmUp(requests(20)))
    dask.cluster.scale(2)
    dask.wait_for_workers(2, timeout=60)

    assert dask.run(in_memory) == dict.fromkeys(dask.run(os.getpid), True)


def in_memory() -> bool:
    """Return whether this process has the builds in memory."""
    return hits(20) == ["memory"] * 3


def test_a_worker_of_dask_starts_without_a_kernel_that_does_not_compile(dask):
    from rtcompile.cluster.dask import WarmUp

    dask.register_plugin(WarmUp([CompileRequest("nothing", arch="sm_80"), *requests(30)]))
    assert [*dask.run(hits, 30).values()] == [["memory"] * 3]


def code_of(module: Any) -> bytes:
    code: bytes = module.object_code.code
    return code


def test_a_module_is_sent_to_dask_as_its_request(dask):
    pytest.importorskip("cupy")
    module = RawModule(code=nodes.source(40), arch="sm_80")

    assert dask.submit(code_of, module).result() == module.object_code.code
    assert module.object_code.code not in pickle.dumps(module)


# --- Ray ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    module = pytest.importorskip("ray")
    from rtcompile.cluster.ray import warm_up

    folder = tmp_path_factory.mktemp("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("HOME", str(folder))
        module.init(
            num_cpus=2,
            include_dashboard=False,
            logging_level="error",
            runtime_env={
                "env_vars": {
                    "RTCOMPILE_CACHE_DIR": str(folder / "theirs"),
                    "PYTHONPATH": os.getcwd(),
                },
                "worker_process_setup_hook": warm_up(requests(50)),
            },
        )
        yield module
        module.shutdown()


def test_a_batch_on_ray_is_in_the_local_cache(ray):
    from rtcompile.cluster.ray import RayExecutor

    with RayExecutor() as executor:
        built = compile_many(requests(60), executor=executor, progress=False)
    assert [code.build.hit for code in built] == [None] * 3
    assert hits(60) == ["memory"] * 3


def test_workers_of_ray_are_warm(ray):
    # Ray extends `sys.path` after the hook, and code in memory is valid for one search path.
    assert ray.get(ray.remote(hits).remote(50)) in (["memory"] * 3, ["disk"] * 3)


# --- MPI ---------------------------------------------------------------------------------------

_POOL = """
from mpi4py.futures import MPIPoolExecutor
from rtcompile import compile_many
from tests.real_cluster.test_engines import requests, hits
if __name__ == "__main__":
    with MPIPoolExecutor() as executor:
        built = compile_many(requests(70), executor=executor, progress=False)
    print([code.build.hit for code in built], hits(70))
"""

_RANKS = """
import rtcompile
from mpi4py import MPI
from tests import nodes
world = MPI.COMM_WORLD
codes = [rtcompile.compile(nodes.source(80 + number), arch="sm_80") for number in range(2)]
found = world.gather([code.build.hit for code in codes])
if world.rank == 0:
    print(sum(hit is None for hits in found for hit in hits))
"""


def mpiexec(program: str, *arguments: str, **environment: str) -> str:
    pytest.importorskip("mpi4py")
    runner = Path(sys.executable).with_name("mpiexec")
    if not runner.exists():
        pytest.skip("mpich is not installed")
    done = subprocess.run(
        [str(runner), "-n", "3", sys.executable, *arguments, program],
        env={**os.environ, "PYTHONPATH": os.getcwd(), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_batch_on_mpi_is_in_the_local_cache(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(_POOL)
    output = mpiexec(str(program), "-m", "mpi4py.futures")
    assert output in [f"{[None] * 3} {[hit] * 3}" for hit in ("memory", "disk")]


def test_ranks_with_a_store_compile_each_kernel_once(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(_RANKS)
    # Each rank has its own cache, as on separate nodes.
    wrapper = tmp_path / "rank.py"
    wrapper.write_text(
        "import os, runpy, sys\n"
        "os.environ['RTCOMPILE_CACHE_DIR'] += os.environ['PMI_RANK']\n"
        "runpy.run_path(sys.argv[1], run_name='__main__')\n"
    )
    env = nodes.environment(tmp_path, "node", f"file://{tmp_path}/shared")
    assert mpiexec(str(program), str(wrapper), **env) == "2"

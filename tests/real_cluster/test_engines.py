"""Tests of warm workers of the installed Dask; `test_recipes.py` has batches on Dask, Ray and MPI."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtcompile import CompileRequest, compile_many
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

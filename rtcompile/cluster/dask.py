"""Workers of Dask that have their kernels before they start.

>>> client.register_plugin(WarmUp("kernels.json"))
"""

from __future__ import annotations

import asyncio
from typing import Any

from distributed import WorkerPlugin

from rtcompile.errors import public
from rtcompile.extras.record.warming import warming_of


class WarmUp(WorkerPlugin):  # type: ignore[misc]
    """A plugin that fills a worker's cache when it starts.

    Parameters
    ----------
    builds : path-like, or iterable of CompileRequest, RawModule or RawKernel
        A record of ``rtcompile run --record``, which is read immediately, or the builds.
    **overrides
        Arguments of `rtcompile.compile_many`: `fallback`, `pch`, `timeout`.

    Raises
    ------
    InvalidRequest
        The record does not exist, or an item is not a build.
    """

    name = "rtcompile-warm-up"

    @public
    def __init__(self, builds: Any, **overrides: Any) -> None:
        self._warming = warming_of(builds, overrides)

    async def setup(self, worker: Any) -> None:  # noqa: ARG002  # Dask's signature
        """Build what this worker's cache lacks, without blocking its heartbeat to the scheduler."""
        await asyncio.to_thread(self._warming)

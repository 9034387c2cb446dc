"""What a worker of an engine builds before its first task: the part that Dask and Ray share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from rtcompile.core.request import CompileRequest, items
from rtcompile.errors import BatchError, InvalidRequest, RtcompileError, RtcompileWarning, shown
from rtcompile.everywhere import recording, warming
from rtcompile.everywhere.recording import Record
from rtcompile.many import compile_many, request_of


class Warming:
    """A record or a list of requests, to be built on each machine that it comes to."""

    def __init__(
        self,
        record: Record | None,
        requests: Sequence[CompileRequest],
        overrides: Mapping[str, Any],
    ) -> None:
        self._record = record
        self._requests = requests
        self._overrides = dict(overrides)

    @classmethod
    def of(cls, builds: Any, overrides: Mapping[str, Any]) -> Warming:
        """Read what was given; raise `InvalidRequest` for anything but a record or a build."""
        if isinstance(builds, (str, os.PathLike)):
            return cls(recording.read(os.fspath(builds)), (), overrides)
        requests = []
        for index, each in enumerate(items("builds", builds, "CompileRequests or RawModules")):
            request = request_of(each)
            if request is None:
                raise InvalidRequest(
                    f"builds[{index}] is {shown(each)}; a CompileRequest is wanted"
                )
            requests.append(request)
        return cls(None, requests, overrides)

    def run(self) -> None:
        """Build it all; what fails is a warning, since a worker is needed for more than this."""
        try:
            if self._record is None:
                compile_many(self._requests, progress=False, **self._overrides)
            else:
                with warming.requests(self._record) as wanted:
                    requests = [each.request for each in wanted]
                    compile_many(requests, progress=False, **self._overrides)
        except BatchError as error:
            warnings.warn(
                f"a worker starts without some of its kernels: {error}",
                RtcompileWarning,
                stacklevel=2,
            )
        except RtcompileError as error:
            warnings.warn(
                f"a worker starts without its kernels: {error}", RtcompileWarning, stacklevel=2
            )

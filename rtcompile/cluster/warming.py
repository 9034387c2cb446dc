"""What a worker of an engine builds before its first task: the part that Dask and Ray share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rtcompile.core.request import CompileRequest, items
from rtcompile.errors import BatchError, InvalidRequest, RtcompileError, RtcompileWarning, shown
from rtcompile.everywhere import recording, warming
from rtcompile.everywhere.recording import Record
from rtcompile.many import compile_many, request_of


def warming_of(builds: Any, overrides: Mapping[str, Any]) -> Callable[[], None]:
    """Return what builds a record or requests, and can be pickled; raise InvalidRequest for others."""
    if isinstance(builds, (str, os.PathLike)):
        return partial(_build, recording.read(os.fspath(builds)), dict(overrides))
    requests = []
    for index, each in enumerate(items("builds", builds, "CompileRequests or RawModules")):
        request = request_of(each)
        if request is None:
            raise InvalidRequest(f"builds[{index}] is {shown(each)}; a CompileRequest is wanted")
        requests.append(request)
    return partial(_build, requests, dict(overrides))


def _build(builds: Record | Sequence[CompileRequest], overrides: Mapping[str, Any]) -> None:
    """Build it all; what fails is a warning, since a worker is needed for more than this."""
    try:
        if not isinstance(builds, Record):
            compile_many(builds, progress=False, **overrides)
            return
        with warming.requests(builds) as wanted:
            compile_many([each.request for each in wanted], progress=False, **overrides)
    except RtcompileError as error:
        lacking = "some of its" if isinstance(error, BatchError) else "its"
        text = f"a worker starts without {lacking} kernels: {error}"
        warnings.warn(text, RtcompileWarning, stacklevel=2)

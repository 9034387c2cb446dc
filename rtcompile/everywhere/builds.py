"""Builds what CuPy asks for and the look-up (`lookup.find`) does not have."""

from __future__ import annotations

import sys
import warnings

from rtcompile.building import planned
from rtcompile.core.request import CompileRequest, ObjectCode
from rtcompile.errors import CompileError, RtcompileWarning, ToolkitNotFound
from rtcompile.everywhere import ahead
from rtcompile.lookup.query import Query
from rtcompile.settings import Settings

_missing_toolkit_was_said = False


def build(request: CompileRequest, settings: Settings, query: Query | None) -> ObjectCode | None:
    """Return the code for a request of CuPy's, or None; `query` is the look-up that found nothing."""
    try:
        found = planned.search(request, settings, query, planned.plan)
        if isinstance(found, ObjectCode):
            return found
        ahead.begin(request, settings)
        return found.compile()
    except ToolkitNotFound as missing:
        if not settings.jit:  # CuPy would compile it
            raise
        lacking = missing
    except CompileError as error:
        if settings.dump_source_on_error:
            error.dump(sys.stderr)
        raise
    _say_once(lacking)
    return None


def _say_once(missing: ToolkitNotFound) -> None:
    global _missing_toolkit_was_said
    if not _missing_toolkit_was_said:
        _missing_toolkit_was_said = True
        warnings.warn(
            f"rtcompile.install(): {missing} Until then CuPy compiles its kernels itself.",
            RtcompileWarning,
            stacklevel=2,
        )

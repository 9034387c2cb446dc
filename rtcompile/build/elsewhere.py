"""Builds that are repeated, here or on another machine: the port of records and executors, with what they import."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rtcompile.build import pipeline, planned
from rtcompile.build.pipeline import build as build
from rtcompile.build.plan import linker_input as linker_input
from rtcompile.errors import RtcompileError
from rtcompile.lookup import find as lookup
from rtcompile.request import options as options
from rtcompile.request.units import LinkInput as LinkInput
from rtcompile.settings import Settings as Settings

if TYPE_CHECKING:
    from rtcompile.request.key import KeyInputs
    from rtcompile.request.request import CompileRequest


def key_inputs(request: CompileRequest, settings: Settings) -> KeyInputs:
    """Return the inputs of a build's keys; raise `RtcompileError` if it cannot be planned."""
    return planned.plan(request, settings).key_inputs


def add_to_index(request: CompileRequest, capability: tuple[int, int] | None) -> None:
    """Write the index entry with which a request finds its build, if the cache has that."""
    with suppress(RtcompileError):
        query = lookup.query_of(request, Settings.from_environ(), capability)
        query.only_cached = True
        pipeline.search(query, "plan")  # which keeps what it finds in the index

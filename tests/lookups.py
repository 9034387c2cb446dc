"""Builds, and the look-ups of a process that starts anew."""

from __future__ import annotations

from rtcompile.build import pipeline
from rtcompile.lookup import environment
from rtcompile.lookup import find as lookup
from rtcompile.lookup.query import query_of
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.settings import Settings

CODE = 'extern "C" __global__ void k(float* x) { *x = %s; }'
WITH_HEADER = '#include "value.h"\n' + CODE % "VALUE"
CAPABILITY = (8, 0)


def build(code: str, *options: str, **more: object) -> CompileRequest:
    """Build for the device; return the request."""
    request = CompileRequest(code, options=options, **more)  # type: ignore[arg-type]
    pipeline.build(request, environment.current().settings)
    return request


def look(
    request: CompileRequest, settings: Settings | None = None, **more: object
) -> ObjectCode | None:
    """Look without planning, with what this process remembers."""
    here = environment.current().settings if settings is None else settings
    return lookup.find(query_of(request, here, **more))  # type: ignore[arg-type]


def found(request: CompileRequest, **more: object) -> ObjectCode | None:
    """Look without planning, as a process does that starts anew."""
    environment.forget()
    return look(request, **more)  # type: ignore[arg-type]

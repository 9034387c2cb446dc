"""Helpers that build, and look up as in a new process."""

from rtcompile.build import pipeline, planned
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import SearchDir
from rtcompile.lookup import environment
from rtcompile.lookup import find as lookup
from rtcompile.lookup.find import query_of
from rtcompile.request.object_code import Found, ObjectCode, Record
from rtcompile.request.request import CompileRequest
from rtcompile.settings import Settings
from rtcompile.store.store import Store

CODE = 'extern "C" __global__ void k(float* x) { *x = %s; }'
WITH_HEADER = '#include "value.h"\n' + CODE % "VALUE"
CAPABILITY = (8, 0)
NOTHING = FileSet()


def build(code: str, *options: str, **more: object) -> CompileRequest:
    """Build for the device; return the request."""
    request = CompileRequest(code, options=options, **more)  # type: ignore[arg-type]
    pipeline.build(request, environment.current().settings)
    return request


def look(
    request: CompileRequest, settings: Settings | None = None, **more: object
) -> ObjectCode | None:
    """Look up without planning, with this process's state."""
    here = environment.current().settings if settings is None else settings
    return pipeline.search(query_of(request, here, **more), "nothing")  # type: ignore[arg-type]


def found(request: CompileRequest, **more: object) -> ObjectCode | None:
    """Look up without planning, as in a new process."""
    environment.forget()
    return look(request, **more)  # type: ignore[arg-type]


def kept(request: CompileRequest, read: FileSet = NOTHING, provided: tuple[str, ...] = ()) -> None:
    """Build a request, and record other files for it."""
    settings = environment.current().settings
    code = pipeline.build(request, settings)
    store = Store.open(settings)
    query = query_of(request, settings)
    plan = planned.plan_of(query)
    key = store.search(plan.key_inputs).record.object_key
    search = tuple(SearchDir("", path) for path in provided)
    query.plan = plan._replace(toolchain=plan.toolchain._replace(search=search))
    lookup.keep(query, Found(code, Record(read, key)), is_planned=True)

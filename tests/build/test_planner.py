"""A batch's builds are planned together, whatever their names, and have the keys and code of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

import rtcompile
from rtcompile.build import batch, planned
from rtcompile.build.batch import Planner
from rtcompile.build.many import compile_many
from rtcompile.build.plan import Plan
from rtcompile.files.fileset import FileSet
from rtcompile.request.request import CompileRequest
from rtcompile.settings import Settings

pytestmark = pytest.mark.needs_compiler

KERNEL = 'extern "C" __global__ void k(int* x) { *x = 1; }'
READS = '#include "n.h"\nextern "C" __global__ void k(int* x) { *x = N; }'
NAMES_ITSELF = "__global__ void k(const char** x) { *x = __FILE__; }"


@pytest.fixture(autouse=True)
def known_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's build is known, and a plan is reused for as long as a test takes."""
    rtcompile.compile("__global__ void first() {}", arch="sm_90")
    monkeypatch.setattr(batch, "_PLANNED_SECONDS", float("inf"))


def mixed(folder: Path) -> list[CompileRequest]:
    """Requests that differ in their names, in folders in these, and in what a plan depends on."""
    names = [
        "kernel.cu",
        "other.cu",
        "/other.cu",
        "sub/other.cu",
        *(f"{folder}/{inner}/k.cu" for inner in ("one", "two", "two/deeper")),
    ]
    for number, name in enumerate(names[4:]):
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(KERNEL)
        path.with_name("n.h").write_text(f"#define N {number}\n")
    requests = [
        CompileRequest(source, options, "sm_90", name=name)
        for options in ((), (f"-I{folder}/two",), (f"-I{folder}/two", "-lineinfo"))
        for name in names
        for source in (KERNEL, READS, NAMES_ITSELF)
        if source != READS or options or name.startswith(str(folder))
    ]
    own = CompileRequest(KERNEL, arch="sm_90")
    return [
        *requests,
        own.replace(allow_fixups=False),
        own.replace(backend="nvrtc"),
        own.replace(target="ptx"),
        own.replace(source="template <int N> __global__ void t() {}", name_expressions=("t<1>",)),
    ]


def is_plain(one: CompileRequest) -> bool:
    return one.source == READS and "-lineinfo" not in one.options


def keys(plan: Plan) -> tuple[object, ...]:
    inputs = plan.key_inputs
    return (
        inputs.lookup_key(),
        inputs.portable_key(),
        inputs.bundle_key(),
        inputs.object_key(FileSet(), backend="nvrtc"),
        inputs.object_key(FileSet(), backend="nvrtc", path_bound=True),
        inputs.summary(),
        plan.request,
        plan.options,
    )


@pytest.mark.parametrize("order", [1, -1])
def test_a_batch_gives_each_build_the_keys_of_its_own_plan(tmp_path: Path, order: int) -> None:
    settings = Settings.from_environ()
    requests = mixed(tmp_path)[::order]
    plan = Planner()
    assert [keys(plan(one, settings)) for one in requests] == [
        keys(planned.plan(one, settings)) for one in requests
    ]


def test_a_batch_makes_of_each_build_what_it_would_be_alone(tmp_path: Path) -> None:
    requests = mixed(tmp_path)
    built = compile_many(requests, progress=False)
    alone = [
        rtcompile.compile(
            one.source,
            options=one.options,
            arch="sm_90",
            name=one.name,
            name_expressions=one.name_expressions,
            backend=one.backend,
            target=one.target,
            recompile=True,
        )
        for one in requests
    ]
    assert [one.code for one in built] == [one.code for one in alone]
    read = {code.code for one, code in zip(requests, built, strict=True) if is_plain(one)}
    assert len(read) == 3  # one for each header


def test_one_plan_serves_builds_of_all_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    plan = planned.plan

    def note(request: CompileRequest, *given: object) -> Plan:
        made.append(request.name)
        return plan(request, *given)

    monkeypatch.setattr(planned, "plan", note)
    names = [*(f"k{number}.cu" for number in range(4)), *(f"{tmp_path}/{n}/k.cu" for n in "ab")]
    requests = [CompileRequest(KERNEL, arch="sm_90", name=name) for name in names]

    compile_many(requests, progress=False)

    assert made == names[:1]

"""Tests of small kernels: jobs that read no file share a process in turn, without affecting each other."""

import os
import re
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rtcompile import toolkit
from rtcompile.compilers import nvrtc
from rtcompile.request import cxx
from rtcompile.request.units import Limits
from rtcompile.toolkit.model import Library
from rtcompile.workers.pool import Job, JobResult
from rtcompile.workers.zygote import Child, Order
from tests.jobs import Pool, eventually
from tests.processes import python
from tests.tables import from_table

pytestmark = pytest.mark.needs_compiler

KERNEL = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] += %d; }'
MISTAKE = "__global__ void k() { nothing_like_this(); }"
WARNED = "__global__ void k() { int unused; }"


def library() -> Library:
    return toolkit.current().require_nvrtc()


def job(source: str, *options: str, **changes: Any) -> Job:
    arguments: dict[str, Any] = {
        "source": source.encode(),
        "name": b"k.cu",
        "options": [o.encode() for o in ("-arch=sm_90", "--frandom-seed=1", *options)],
        "expressions": [],
        "texts": {},
        "target": "cubin",
        "pch": b"",
        "minimal": False,
        "reusable": True,
    }
    job = nvrtc.job_of(library(), {**arguments, **changes})
    return job._replace(reusable=bool(changes.get("reusable", True)))


def compiled(pool: Pool, *arguments: Any, limits: Limits | None = None, **changes: Any) -> Any:
    outcome = pool.run(job(*arguments, **changes), limits or Limits())
    assert isinstance(outcome, JobResult), outcome
    return outcome.value


def compiler_result(reply: Any) -> dict[str, Any]:
    """Return the fields of a reply that come from the compiler."""
    return {key: reply.get(key) for key in ("error", "log", "code", "lowered_names", "trace")}


def children(pool: Pool) -> list[int]:
    """Return the child processes of the pool's only zygote."""
    (zygote,) = pool.zygotes
    path = f"/proc/{zygote.pid}/task/{zygote.pid}/children"
    return [int(pid) for pid in Path(path).read_text().split()]


# --- one process for reusable jobs ----------------------------------------------------------------


def test_a_job_with_lasting_options_or_a_limit_has_its_own_process(pool):
    shared = compiled(pool, KERNEL % 1)["pid"]
    seen = {shared}
    limits = Limits(timeout=60.0), Limits(memory=4 << 30)
    for changes in ({"reusable": False}, *({"limits": each} for each in limits)):
        fresh = {compiled(pool, KERNEL % n, **changes)["pid"] for n in (2, 3)}
        assert len(fresh - seen) == 2, changes
        assert compiled(pool, KERNEL % 4)["pid"] == shared, changes
        seen |= fresh


def test_a_source_that_reads_a_header_is_built_as_in_a_new_process(pool, tmp_path):
    (tmp_path / "a.h").write_text("#pragma once\n#define A 1\n")
    sources = ['#include "a.h"\n' + KERNEL % 1, KERNEL % 1, '#include "a.h"\nint a = A;']
    shared, opened = [], []
    for source in sources:
        shared.append(compiled(pool, source, f"-I{tmp_path}"))
        opened.append([])
        for path in Path(f"/proc/{shared[-1]['pid']}/fd").glob("*"):
            with suppress(
                OSError
            ):  # the process closes the socket of its reply, and ends after an error
                opened[-1].append(os.readlink(path))
    files = [sorted(each for each in some if not each.startswith("socket:")) for some in opened]
    assert files[0] == files[1], "the probes leave files open"
    fresh = [compiled(pool, source, f"-I{tmp_path}", reusable=False) for source in sources]
    assert len({reply["pid"] for reply in shared}) == 1
    assert [compiler_result(reply) for reply in shared] == [
        compiler_result(reply) for reply in fresh
    ]


def test_a_process_that_reports_an_error_takes_no_further_job(pool):
    before = compiled(pool, KERNEL % 1)["pid"]
    assert compiled(pool, MISTAKE)["pid"] == before
    assert compiled(pool, KERNEL % 2)["pid"] != before


def test_jobs_with_different_precompiled_headers_share_only_the_process(pool, tmp_path):
    def with_header(name: str, **changes: Any) -> Any:
        source = f'#include "{name}.h"\n' + KERNEL % 1
        return compiled(
            pool, source, f"-I{tmp_path}", pch=bytes(tmp_path / f"{name}.pch"), **changes
        )

    for name in ("a", "b"):
        (tmp_path / f"{name}.h").write_text(f"__device__ int of_{name} = {ord(name)};\n")
        source = f'#include "{name}.h"\n' + KERNEL % 1
        path = bytes(tmp_path / f"{name}.pch")
        assert compiled(pool, source, f"-I{tmp_path}", create_pch=path, reusable=False)["pch"]

    shared = [with_header("a"), with_header("b"), compiled(pool, KERNEL % 1), with_header("a")]
    fresh = [with_header("a", reusable=False), with_header("b", reusable=False)]

    assert len({reply["pid"] for reply in shared}) == 1
    assert all(reply["pch"] for reply in (shared[0], shared[1], shared[3], *fresh))
    assert [compiler_result(shared[0]), compiler_result(shared[1])] == [
        compiler_result(fresh[0]),
        compiler_result(fresh[1]),
    ]
    assert compiler_result(shared[3]) == compiler_result(fresh[0])
    assert compiler_result(shared[2]) == compiler_result(compiled(pool, KERNEL % 1, reusable=False))


@pytest.mark.some
@pytest.mark.parametrize("source", [KERNEL % 7, WARNED, MISTAKE], ids=["good", "warned", "wrong"])
@pytest.mark.parametrize("before", [KERNEL % 1, WARNED, MISTAKE], ids=["good", "warned", "wrong"])
def test_earlier_jobs_of_a_process_have_no_effect(pool, before, source):
    fresh = compiler_result(compiled(pool, source, reusable=False))
    compiled(pool, before)
    assert compiler_result(compiled(pool, source)) == fresh


def test_a_process_that_is_killed_while_it_waits_costs_no_job(pool):
    for number in range(3):
        os.kill(compiled(pool, KERNEL % number)["pid"], signal.SIGKILL)
    assert compiled(pool, KERNEL % 3)["code"]


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("/")])
def test_files_of_a_job_are_removed_and_a_process_that_finds_others_is_not_reused(
    pool, scratch, make
):
    pid = compiled(pool, KERNEL % 1)["pid"]
    left = Path(os.readlink(f"/proc/{pid}/cwd"), "left")
    make(left)
    assert (compiled(pool, KERNEL % 2)["pid"] == pid) is (make is Path.touch)
    assert eventually(lambda: not os.path.lexists(left))


# --- which jobs are reusable, and compile without declarations -----------------------------------------


@from_table
def test_a_source_that_may_need_a_declaration_is_compiled_with_all(source, options, target):
    assert cxx.reads_no_file(source, options)
    assert not nvrtc.needs_no_declarations(source, options, target)


BODIES = [
    "x[0] = __expf(y[1]) + rsqrtf(y[2]) + sinf(y[3]) + fmaf(y[4], y[5], erff(y[6]));",
    "__shared__ float s[64]; s[threadIdx.x] = y[0]; __syncthreads(); x[0] = s[63 - threadIdx.x];",
    "x[0] = __shfl_down_sync(~0u, y[threadIdx.x], 4); atomicAdd(x, 1.0f); __threadfence();",
    "float4 v = make_float4(1, 2, 3, y[0]); x[0] = v.w + __ldg(y + blockIdx.y * gridDim.z);",
    'printf("%f", y[0]); assert(y[0] > 0); int* p = (int*)malloc(4); free(p);',
    "double d = y[0]; x[0] = pow(d, 1.5) + floor(d) + __popc(7) + __clzll(clock64());",
    'asm volatile("bar.sync 0;"); x[0] = __int_as_float(__float_as_int(y[0]) ^ 1); __nanosleep(9);',
]


@pytest.mark.parametrize("cuda", [12, 13])
def test_code_without_declarations_is_the_same_to_the_byte(pool, cuda, request, monkeypatch):
    if cuda == 13:
        folder = next(request.getfixturevalue("cuda13_prefix").glob("**/libnvrtc.so.13")).parent
        builtins = next(folder.glob("libnvrtc-builtins.so.13.*"))
        of_13 = Library(str(folder / "libnvrtc.so.13"), "13.0", (str(builtins),))
        monkeypatch.setitem(globals(), "library", lambda: of_13)
    for body in BODIES:
        source = f'extern "C" __global__ void k(float* x, const float* y) {{ {body} }}'
        assert nvrtc.needs_no_declarations(source, (), "cubin")
        assert compiler_result(compiled(pool, source, minimal=True)) == compiler_result(
            compiled(pool, source, reusable=False)
        )


def test_a_source_with_a_macro_that_minimal_changes_is_compiled_with_all(pool):
    names = {"__CUDACC_RTC_MINIMAL__", "__CUDA_ARCH__"}
    for directory in toolkit.current().search:
        if directory.label in ("cudart", "crt"):
            for path in Path(directory.path).glob("*.h"):
                text = path.read_text(errors="replace")
                names |= set(re.findall(r"# *(?:define|ifn?def) +([A-Za-z_]\w*)", text))
    source = "".join(f"#ifdef {n}\n__device__ int has_{n};\n#endif\n" for n in sorted(names))
    defined = [
        set(re.findall(rb"has_(\w+)", compiled(pool, source, *options, target="ptx")["code"]))
        for options in ((), ("--minimal",))
    ]
    differing = {name.decode() for name in defined[0] ^ defined[1]}
    assert "cudaHostAllocMapped" in differing
    assert b"__CUDA_ARCH__" in defined[0] & defined[1]
    assert not [n for n in differing if nvrtc.needs_no_declarations(f"#ifdef {n}", (), "cubin")]


def test_a_source_that_minimal_rejects_is_compiled_without_it(pool):
    source = "__global__ void k(cudaError_t* e) { *e = cudaSuccess; }"
    assert compiler_result(compiled(pool, source, minimal=True)) == compiler_result(
        compiled(pool, source)
    )


# --- no wait for the clock or the disk -------------------------------------------------------------


def test_a_build_is_kept_without_syncing_though_its_process_ends_at_once():
    script = f"""
        import os, sys
        import rtcompile
        os.fsync = lambda descriptor: os._exit(3)
        code = rtcompile.compile({KERNEL % 5!r}, arch="sm_90")
        sys.stdout.write(str(code.build.hit))
        sys.stdout.flush()
        os._exit(0)
    """
    hits = [python(script, check=True).stdout for _ in range(2)]
    assert hits == ["None", "disk"]


def test_a_child_that_is_about_to_be_killed_takes_no_further_job():
    """Otherwise its death would be reported as a crash of the compiler in the other job."""
    lifeline, ours = os.pipe()
    os.close(lifeline)
    channel, theirs = socket.socketpair()
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {}, setpgroup=0)
    child = Child(pid, channel, os.memfd_create("stderr"), "1", ours)
    order = Order(("f", None, None, True), theirs)
    try:
        assert child.may_take(order)
        child.kill()
        assert not child.may_take(order)
    finally:
        os.waitpid(pid, 0)
        child.close()
        theirs.close()

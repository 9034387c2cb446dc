"""Tests of building ahead: constructed kernels are compiled before their use, after builds that the program waits for."""

import gc
import os
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("cupy")

import pytest

from rtcompile import CompileError, RawKernel, RawModule
from rtcompile.build import ahead, batch, pipeline, plan
from rtcompile.frontends import raw_kernel
from rtcompile.lookup import driver, environment
from rtcompile.lookup import find as lookup
from rtcompile.workers import pool
from tests.jobs import ENDLESS, until
from tests.processes import build_of, python, ran

pytestmark = pytest.mark.needs_compiler

SOURCE = 'extern "C" __global__ void k(int* p) { *p = %d; }'


def made(number: int, **more: Any) -> RawKernel:
    return RawKernel(SOURCE % number, "k", **{"arch": "sm_80", **more})


def kept() -> list[Any]:
    """Return the builds that nobody has used."""
    return [] if lookup.builds_ahead is None else list(lookup.builds_ahead.kept.values())


def built() -> list[Any]:
    """Return the builds that are done and that nobody has used."""
    return [build for build in kept() if build.future.done()]


@pytest.fixture(autouse=True)
def looks_ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RTCOMPILE_AHEAD", "1")
    until(lambda: not raw_kernel.expected)
    monkeypatch.setattr(lookup, "builds_ahead", None)
    yield
    if lookup.builds_ahead is not None:
        lookup.builds_ahead.end()


def test_a_constructed_kernel_is_compiled_before_its_use(monkeypatch):
    notified: list[Any] = []
    monkeypatch.setattr(lookup, "listeners", [lambda request, outcome: notified.append(outcome)])
    kernels = [made(number) for number in range(5)]
    until(lambda: len(built()) == 5)
    assert notified == []
    monkeypatch.setattr(batch.Batch, "_compiled", None)

    codes = [kernel.object_code for kernel in kernels]

    assert [code.build.hit for code in codes] == [None] * 5
    assert notified == codes
    assert not kept()


def test_if_all_is_cached_nothing_is_imported_or_queued(tmp_path):
    program = f"""
        import sys, time
        from rtcompile import RawKernel
        kernels = [RawKernel({SOURCE!r} % n, "k", arch="sm_80") for n in range(5)]
        time.sleep(float(sys.argv[1]))
        before = set(sys.modules)
        hits = [kernel.build.hit for kernel in kernels]
        print(hits, "rtcompile.build.ahead" in before, "rtcompile.build.batch" in before)
    """
    first = run(program, "0")
    second = run(program, "0.5")

    assert "None" in first  # the others may come from memory: a thread compiled them meanwhile
    assert second == "['disk', 'disk', 'disk', 'disk', 'disk'] False False"


def run(program: str, *arguments: str, **environ: str) -> str:
    done = python(program, *arguments, environ=environ, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize("variable", [("RTCOMPILE_AHEAD", "0"), ("RTCOMPILE_JIT", "0")])
def test_building_ahead_can_be_turned_off(monkeypatch, variable):
    monkeypatch.setenv(*variable)

    _kernel = made(1)

    assert not raw_kernel.expected
    assert lookup.builds_ahead is None


def test_an_error_is_raised_only_at_the_kernels_use(capfd):
    wrong = RawKernel("mistake;", "k", arch="sm_80")
    invalid = made(2, options=("--no-such-option=1",))
    right = made(1)
    until(lambda: len(built()) >= 2 and not raw_kernel.expected)
    assert right.build.hit is None
    assert capfd.readouterr() == ("", "")

    with pytest.raises(CompileError, match="no-such-option"):
        _ = invalid.object_code

    with pytest.raises(CompileError, match="mistake") as raised:
        _ = wrong.object_code

    assert not raised.value.cached
    with pytest.raises(CompileError, match="mistake"):
        _ = RawKernel("mistake;", "k", arch="sm_80").object_code


def test_a_header_written_or_edited_after_the_construction_is_noticed(tmp_path):
    source = '#include "value.h"\nextern "C" __global__ void k(int* p) { *p = VALUE; }'
    kernels = [
        RawKernel(source, "k", (f"-I{tmp_path}", f"-DN={n}"), arch="sm_80") for n in range(2)
    ]
    until(lambda: len(built()) == 2)  # without the header
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    assert kernels[0].build.hit is None

    (tmp_path / "value.h").write_text("#define VALUE 10\n")
    edited = [RawKernel(source, "k", (f"-I{tmp_path}", "-DN=2"), arch="sm_80")]
    until(lambda: any(b.future.exception() is None for b in built()))
    before = next(b for b in built() if b.future.exception() is None).future.result()
    time.sleep(0.02)
    (tmp_path / "value.h").write_text("#define VALUE 2000\n")

    assert edited[0].object_code.code != before.code
    assert (
        kernels[1].object_code.code
        == RawKernel(source, "k", (f"-I{tmp_path}",), arch="sm_80").object_code.code
    )


def test_a_build_uses_the_variables_at_its_construction(monkeypatch):
    def kernel(**more: Any) -> RawKernel:
        source = SOURCE.replace("%d", "VALUE")
        return RawKernel(source, "k", arch="sm_80", backend="nvcc", **more)

    def after_a_change(options: Any) -> Any:
        monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DVALUE=2")
        return for_nvcc(options)

    for_nvcc = plan.for_nvcc
    monkeypatch.setattr(plan, "for_nvcc", after_a_change)
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DVALUE=1")
    _held = kernel()
    until(built)
    monkeypatch.setattr(plan, "for_nvcc", for_nvcc)
    monkeypatch.setenv("RTCOMPILE_AHEAD", "0")

    codes = {}
    for value in (2, 1):
        monkeypatch.setenv("NVCC_APPEND_FLAGS", f"-DVALUE={value}")
        codes[value] = kernel().object_code.code
    assert codes[1] == kernel(recompile=True).object_code.code != codes[2]


def test_the_build_of_a_deleted_kernel_is_cancelled(monkeypatch):
    endless = RawKernel(ENDLESS, "k", arch="sm_80")
    until(lambda: any(build.began for build in kept()))

    del endless
    gc.collect()

    queue = lookup.builds_ahead
    assert queue is not None
    until(lambda: not queue.kept and not queue.threads)


def test_a_launched_kernel_is_built_first_and_waits_only_for_itself(monkeypatch):
    monkeypatch.setattr(pool, "_pool", pool.Pool(1))
    endless = [RawKernel(ENDLESS + f"// {n}", "k", arch="sm_80") for n in range(3)]
    wanted = made(1)
    until(lambda: any(build.began for build in kept()))

    assert wanted.build.hit is None

    # The queue continues with the others.
    until(lambda: any(build.began for build in kept()))
    assert len(kept()) == len(endless)


def test_ctrl_c_leaves_the_wait_and_the_build(monkeypatch):
    kernel = RawKernel(ENDLESS, "k", ("-DINTERRUPTED",), arch="sm_80")
    until(lambda: any(build.began for build in kept()))

    def interrupted() -> Any:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), 2)).start()
        return kernel.object_code

    # The signal may come before the wait begins, but not before it would be caught.
    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert len(kept()) == 1


MANY = 20  # all are expected to be used, and they are more than can compile at once


def test_after_the_edit_of_a_header_all_its_kernels_are_compiled_on_all_cores(
    tmp_path, monkeypatch
):
    header = tmp_path / "common.h"

    def program() -> list[RawKernel]:
        text = '#include "common.h"\nextern "C" __global__ void k(int* p) { *p = VALUE + %d; }'
        return [RawKernel(text % n, "k", (f"-I{tmp_path}",), arch="sm_80") for n in range(MANY)]

    header.write_text("#define VALUE 1\n")
    before = [kernel.object_code for kernel in program()]
    monkeypatch.setattr(pool, "_pool", pool.Pool(4))
    begin, at_once = batch.Batch._compiled, threading.Barrier(3)

    def begin_together(self: batch.Batch, build: batch.Build) -> Any:
        if not at_once.broken and next(turns) < 3:
            at_once.wait(60)  # fails where fewer compile at a time
        return begin(self, build)

    turns = iter(range(1 << 20))
    monkeypatch.setattr(batch.Batch, "_compiled", begin_together)
    header.write_text("#define VALUE 1000\n")

    edited = program()
    until(lambda: len(built()) == MANY)

    assert next(turns) == MANY  # each had a compiler, and they ran concurrently
    assert not at_once.broken
    assert [kernel.build.hit for kernel in edited] == [None] * MANY
    codes = [kernel.object_code for kernel in edited]
    assert all(new.code != old.code for new, old in zip(codes, before, strict=True))


def test_of_many_only_a_few_are_compiled_until_some_are_used(monkeypatch):
    monkeypatch.setattr(ahead, "_FEW", 10)
    monkeypatch.setattr(ahead, "_SECONDS_OF_MANY", 0.3)
    monkeypatch.setattr(ahead, "_USED_OF_MANY", 3)
    kernels = [made(number) for number in range(60)]
    until(lambda: not raw_kernel.expected)
    queue = lookup.builds_ahead
    assert queue is not None
    until(lambda: queue.constructed == 60 and not queue.threads)
    assert len(built()) < 50

    # Ten times the time of one of them, since a busy machine slows all of them.
    seconds = 10 * queue._spent() / max(1, len(built()))
    monkeypatch.setattr(ahead, "_SECONDS_OF_MANY", seconds)
    for kernel in kernels[:30]:
        assert kernel.build.hit is None

    until(lambda: len(built()) == 30)


def test_running_builds_are_stopped_if_too_many_stay_unused(monkeypatch):
    monkeypatch.setattr(ahead, "_MOST_SECONDS", 0.5)
    _endless = RawKernel(ENDLESS, "k", ("-DSTOPPED",), arch="sm_80")
    until(lambda: lookup.builds_ahead is not None)
    queue = lookup.builds_ahead
    assert queue is not None
    until(lambda: queue._left and not queue.threads)
    assert 0.5 <= queue._spent() < 5


def test_the_device_is_queried_without_a_context(monkeypatch):
    monkeypatch.setattr(driver, "_of_nvml", lambda: {(8, 0)})
    _kernel = RawKernel(SOURCE % 3, "k")
    until(built)
    assert str(built()[0].future.result().arch) == "sm_80"
    assert environment.current().capability == (8, 0)

    # The program finds it once its own device is known.
    monkeypatch.setattr("rtcompile.lookup.find.compute_capability", lambda: (8, 0))
    request = build_of(_kernel).request
    assert pipeline.build(request, environment.current().settings).build.hit is None


@pytest.mark.parametrize(
    ("found", "visible"),
    [
        pytest.param({(8, 0), (9, 0)}, "0", id="devices that differ"),
        pytest.param({(8, 0)}, "-1", id="hidden devices"),
        pytest.param(set(), "0", id="no device"),
    ],
)
def test_without_one_known_capability_nothing_is_compiled(monkeypatch, found, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(driver, "_of_nvml", lambda: found)
    _kernel = RawKernel(SOURCE % 4, "k")
    until(lambda: not raw_kernel.watching)
    assert lookup.builds_ahead is None


def test_no_thread_stays_after_the_builds_ahead(monkeypatch):
    monkeypatch.setattr(raw_kernel, "_IDLE_SECONDS", 0.1)
    until(lambda: not raw_kernel.watching)
    before = {*threading.enumerate()}
    kernel = made(27)
    until(built)
    assert kernel.object_code is not None
    until(lambda: not raw_kernel.watching)
    until(lambda: {*threading.enumerate()} <= before)


ENDS = """
    import os, sys, time
    from rtcompile import RawKernel
    from rtcompile.lookup import find as lookup
    kernels = [RawKernel(%r + "// %%d" %% n, "k", arch="sm_80") for n in range(20)]
    while not (lookup.builds_ahead and lookup.builds_ahead.threads):
        time.sleep(0.01)
    time.sleep(0.3)
"""


@pytest.mark.some(2)
@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "os._exit(0)"])
def test_a_program_ends_at_once(ending):
    began = run(textwrap.dedent(ENDS % ENDLESS) + f"print(time.time(), flush=True)\n{ending}\n")
    assert time.time() - float(began) < 30


def test_the_end_of_a_forked_child_leaves_the_builds_of_its_parent():
    program = textwrap.dedent(ENDS % ENDLESS) + textwrap.dedent("""
        for _ in range(3):
            if os.fork() == 0:
                sys.exit()
            os.wait()
            time.sleep(0.3)
        print([build.future.done() for build in lookup.builds_ahead.kept.values()].count(True))
    """)
    assert run(program) == "0"


WARNED = f"""
    import sys, time
    from rtcompile import RawKernel
    from rtcompile.lookup import find
    kernel = RawKernel({SOURCE % 6!r}, "k", arch="sm_80")
    while not find.builds_ahead or find.builds_ahead.counts() != (1, 0):
        time.sleep(0.01)
    print("used", file=sys.stderr)
    kernel.object_code  # here
    RawKernel({SOURCE % 7!r}, "k", arch="sm_80").object_code
"""


@pytest.mark.parametrize(("action", "ends"), [("default", 0), ("error", 1)])
def test_a_warning_about_the_cache_is_raised_once_at_the_use(tmp_path, action, ends):
    program, cache = tmp_path / "main.py", tmp_path / "cache"
    program.write_text(textwrap.dedent(WARNED))
    cache.touch()
    done = ran(sys.executable, "-W", action, program, environ={"RTCOMPILE_CACHE_DIR": cache})
    before, after = done.stderr.split("used\n")
    assert (done.returncode, before) == (ends, "")
    assert "kernel.object_code  # here" in after
    assert after.count("it is not used") == 1


def test_children_by_spawn_import_the_program_again(tmp_path):
    program = f"""
        import multiprocessing
        from rtcompile import RawKernel
        kernels = [RawKernel({SOURCE!r} % n, "k", arch="sm_80") for n in range(8)]

        def size(number):
            return len(kernels[number].object_code.code)

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print(len(pool.map(size, range(8))))
    """
    (tmp_path / "main.py").write_text(textwrap.dedent(program))
    done = ran(sys.executable, tmp_path / "main.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "8\n", "")


def test_a_failed_constructor_queues_nothing():
    class Picky(RawModule):
        def __init__(self, code: str) -> None:
            super().__init__(code=code, arch="sm_80")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Picky(SOURCE % 1)
    gc.collect()
    until(lambda: not raw_kernel.watching)
    assert not kept()


def test_a_relative_directory_is_resolved_at_the_construction(tmp_path, monkeypatch):
    for name, value in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "value.h").write_text(f"#define VALUE {value}\n")
    source = '#include "value.h"\nextern "C" __global__ void k(int* p) { *p = VALUE; }'
    monkeypatch.chdir(tmp_path / "one")
    kernel = RawKernel(source, "k", ("-I.",), arch="sm_80")
    until(built)
    monkeypatch.chdir(tmp_path / "two")  # which counts without building ahead

    code = kernel.object_code.code

    two = RawKernel(source, "k", (f"-I{tmp_path / 'two'}",), arch="sm_80").object_code.code
    assert code == two


# --- files that are edited -------------------------------------------------------------------


EDITED = '#include "value.h"\nextern "C" __global__ void k(int* p) { *p = VALUE * %d; }'


@pytest.mark.parametrize("edited", ["the source", "the header"])
@pytest.mark.parametrize("used", [True, False], ids=["after its first use", "before"])
def test_a_file_is_compiled_ahead_and_its_module_made_again_after_an_edit(
    tmp_path, monkeypatch, used, edited
):
    header, file = tmp_path / "value.h", tmp_path / "kernel.cu"
    header.write_text("#define VALUE 1\n")
    file.write_text(EDITED % 1)
    module = RawModule.from_file(file, arch="sm_80")
    until(built)
    first = built()[0].future.result().code
    if used:
        with monkeypatch.context() as patch:
            patch.setattr(batch.Batch, "_compiled", None)
            assert module.object_code.code == first
            assert module.build.hit is None

    if edited == "the source":
        file.write_text(EDITED % 7)
    else:
        header.write_text("#define VALUE 7\n")

    again = RawModule.from_file(file, arch="sm_80").object_code.code
    assert again != first
    if used:
        assert module.object_code.code == first

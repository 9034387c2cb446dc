"""Trials of builds in difficult environments: limits, folders with odd names, stopped processes.

A build returns the right code, or raises an rtcompile error within its time limit. It leaves no process, no
file, and no cached failure for a later build without the limit.
"""

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import rtcompile
from rtcompile.workers import pool as pools
from tests.jobs import Pool, children
from tests.processes import python
from tests.tables import from_table
from tests.trials.record import tally, times

pytestmark = pytest.mark.needs_compiler

KERNEL = 'extern "C" __global__ void k(int* p) { *p = V; }'
RIGHT, OTHER = 7_000_001, 7_000_002
CUTLASS_VERSION = """#define V %d
#define CUTLASS_MAJOR 4
#define CUTLASS_MINOR 2
#define CUTLASS_PATCH 0
"""

# Prints the outcome of a build as one line: "right", "wrong", or the name of its error.
BUILD = f"""if True:
    import sys, rtcompile
    backend, options = sys.argv[1], sys.argv[2:]
    try:
        code = rtcompile.compile({KERNEL!r}, arch="sm_80", backend=backend, options=["-DV={RIGHT}", *options]).code
        print("right" if ({RIGHT}).to_bytes(4, "little") in code else "wrong")
    except rtcompile.RtcompileError as error:
        print(type(error).__name__, error)
"""


def outcome(backend: str, *options: str, flags: tuple[str, ...] = (), **more: Any) -> str:
    """Return the outcome of a build in another process, or all its output if it ended abnormally."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", BUILD, backend, *options],
        **{"capture_output": True, "text": True, "timeout": 300, **more},
    )
    return done.stdout.strip() if done.returncode == 0 else done.stdout + done.stderr


def is_right(code: bytes) -> bool:
    return RIGHT.to_bytes(4, "little") in code


def from_file(path: str) -> bytes:
    return rtcompile.RawModule.from_file(path + "k.cu", arch="sm_80").object_code.code


def from_include_path(path: str) -> bytes:
    return rtcompile.compile(f'#include "h.h"\n{KERNEL}', arch="sm_80", options=(f"-I{path}",)).code


def from_command(path: str) -> bytes:
    from rtcompile.cli import main

    assert main(["compile", f"{path}k.cu", "--arch", "sm_80", "-o", "k.cubin"]) == 0
    return Path("k.cubin").read_bytes()


def from_cutlass_variable(path: str) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RTCOMPILE_CUTLASS_PATH", path)
        source = f"#include <cutlass/version.h>\n{KERNEL}"
        return rtcompile.compile(source, arch="sm_80").code


DOORS = [from_file, from_include_path, from_command, from_cutlass_variable]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
@pytest.mark.parametrize("where", ["", "/"], ids=["relative", "absolute"])
def test_a_path_with_a_link_and_two_dots_is_resolved_by_the_system(
    door, where, tmp_path, monkeypatch
):
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/sub")
    for folder, value in ((tmp_path / "real", RIGHT), (tmp_path, OTHER)):
        (folder / "k.cu").write_text(f'#include "h.h"\n{KERNEL}')
        (folder / "h.h").write_text(f"#define V {value}\n")
        (folder / "cutlass").mkdir()
        (folder / "cutlass" / "version.h").write_text(CUTLASS_VERSION % value)
    monkeypatch.chdir(tmp_path)
    with tally("path through a link and '..', beside another file of its name") as trial, trial():
        assert is_right(door(f"{tmp_path}/link/../" if where else "link/../"))


def test_a_file_in_a_removed_working_directory(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with tally("build in a working directory that was removed") as trial:
        for door in DOORS[:2]:
            with trial(), pytest.raises(rtcompile.InvalidRequest, match="was removed"):
                door("folder/")
        with trial():
            assert is_right(rtcompile.compile(KERNEL, arch="sm_80", options=(f"-DV={RIGHT}",)).code)


@pytest.mark.parametrize("backend", ["nvrtc", pytest.param("nvcc", marks=pytest.mark.slow)])
def test_a_stopped_worker_ends_no_later_than_its_limit(backend, scratch, monkeypatch):
    chance, seconds = random.Random(backend), times(2.0, 4.0)
    monkeypatch.setattr(pools, "_pool", Pool(jobs=2))
    with tally("process that compiles is stopped (SIGSTOP) at any moment") as trial:
        for number in range(times(2, 20)):
            value, begin = RIGHT + number, time.monotonic()
            stopper = threading.Timer(chance.uniform(0, 0.3), _stop_one, [chance])
            stopper.start()
            try:
                code = _built(value, backend, seconds).code
            except rtcompile.CompileTimeout:
                code = None
            took = time.monotonic() - begin
            stopper.join()
            with trial():
                assert code is None or value.to_bytes(4, "little") in code
                assert took < seconds + 3, f"{took:.1f} s"
                # If its replacement is stopped too, it is replaced after its limit.
                for _ in range(2):
                    try:
                        _built(value + 1000, backend, seconds)
                        break
                    except rtcompile.CompileTimeout:
                        continue
                else:
                    raise AssertionError("no build after a worker was stopped")
    begin = time.monotonic()
    _stop_one(chance)
    pools._pool.close()
    assert time.monotonic() - begin < 5  # a stopped worker ends too


def _built(value: int, backend: Any, seconds: float) -> rtcompile.ObjectCode:
    return rtcompile.compile(
        KERNEL, arch="sm_80", options=(f"-DV={value}",), backend=backend, timeout=seconds
    )


def _stop_one(chance: random.Random) -> None:
    assert pools._pool is not None  # only workers of this test's own pool are stopped
    started = [zygote.pid for zygote in pools._pool.zygotes]
    for zygote in started[:]:
        started += children(zygote)
    if started:
        os.kill(chance.choice(started), signal.SIGSTOP)


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("backend", ["nvrtc", "nvcc"])
def test_no_shell_interprets_the_name_of_tmpdir(backend, tmp_path, monkeypatch):
    characters = ["$", "`", '"', "'", "\\", " ", "\n", ";", "&", "(", "*", "%", "é", "\x01"]
    with tally("TMPDIR with a shell's characters in its name") as trial:
        for character in characters[: times(2, None)]:
            folder = tmp_path / f"a{character}(touch ran){character}b"
            folder.mkdir()
            monkeypatch.setenv("TMPDIR", str(folder))
            with trial():
                assert outcome(backend, f"-DC={ord(character)}", cwd=tmp_path) == "right", folder
                assert not [*tmp_path.rglob("ran"), *folder.iterdir()]


LIMITS = [
    *((resource.RLIMIT_NOFILE, most) for most in (10, 13, 14, 15)),
    *((resource.RLIMIT_FSIZE, most) for most in (500, 10_000, 100_000)),
    *((resource.RLIMIT_AS, most << 20) for most in (60, 100, 130)),
    *((resource.RLIMIT_DATA, most << 20) for most in (30, 50)),
]


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("backend", ["nvrtc", "nvcc"])
def test_a_failure_caused_by_a_limit_is_not_remembered(backend):
    with tally("build under a limit of the process (ulimit), then without it") as trial:
        for number, (limit, most) in enumerate(LIMITS[: times(2, None)]):
            option = f"-DN={number}"
            # -B: this Python would keep a module's bytecode cut off at the limit, which no later one can read.
            limited = under(limit, most, backend, option)
            with trial():
                assert limited == "right" or limited.split()[0] in dir(rtcompile), limited
                assert outcome(backend, option) == "right", f"after {limit}, {most}: {limited}"
    # A file that the limit cuts off is no crash of the compiler.
    found = under(resource.RLIMIT_FSIZE, 2000, backend)
    assert found == "right" or "ulimit -f" in found


def under(limit: int, most: int, backend: str, *options: str) -> str:
    set_limit = lambda: resource.setrlimit(limit, (most, most))  # noqa: E731
    return outcome(backend, *options, flags=("-B",), preexec_fn=set_limit)


def test_an_isolated_subinterpreter_builds():
    pytest.importorskip("_xxsubinterpreters")  # of Python 3.10 to 3.12
    inner = f"import sys; sys.argv = ['', 'nvrtc']\n{BUILD}"
    program = f"import _xxsubinterpreters as of; of.run_string(of.create(), {inner!r})"
    done = python(program)
    assert done.stdout == "right\n", done.stderr


def test_bytes_and_texts_are_not_compared():
    with tally("build by `python -bb -W error`, and its hit") as trial:
        for _ in range(2):
            with trial():
                flags = ("-bb", "-W", "error")
                assert outcome("nvrtc", "-include=cuda/std/array", flags=flags) == "right"


# A signal handler builds in the middle of an import, as the thread that it interrupts builds for the first time.
INTERRUPTED = f"""if True:
    import faulthandler, signal, sys
    faulthandler.dump_traceback_later(100, exit=True)
    import rtcompile

    def build(value, many="many" in sys.argv):
        request = rtcompile.CompileRequest({KERNEL!r}, arch="sm_80", options=[f"-DV={{value}}"])
        given = dict(arch=request.arch, options=request.options)
        if many:
            return rtcompile.compile_many([request], progress=False)[0].code
        return rtcompile.compile(request.source, **given).code

    def handler(*_):
        try:
            said.append("right" if ({OTHER}).to_bytes(4, "little") in build({OTHER}) else "wrong")
        except rtcompile.RtcompileError as error:
            said.append(str(error))

    def interrupt(name, *_):
        if name == sys.argv[1] and not begun:
            begun.append(name)
            signal.raise_signal(signal.SIGUSR1)

    class Finder:
        find_spec = staticmethod(interrupt)

    begun, said = [], []
    signal.signal(signal.SIGUSR1, handler)
    sys.meta_path.insert(0, Finder())
    sys.addaudithook(interrupt)
    code = build({RIGHT}, many=False)
    after = build({OTHER})
    assert ({RIGHT}).to_bytes(4, "little") in code and ({OTHER}).to_bytes(4, "little") in after
    print(*said)
"""


@from_table
@pytest.mark.some(3)
def test_a_signal_handler_that_builds_is_told_what_it_interrupted(part, act, expected):
    with tally("signal handler that builds inside an import") as trial, trial():
        done = python(INTERRUPTED, part, act)
        assert expected in done.stdout, done.stdout + done.stderr

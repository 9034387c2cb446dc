"""Tests of workers in odd surroundings: closed standard streams, layouts of memory, sandboxes."""

import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import rtcompile
from rtcompile import toolkit
from rtcompile.request.units import Limits
from tests.jobs import output, shell
from tests.processes import python, ran

pytestmark = pytest.mark.needs_compiler

# --- closed standard streams, as daemons have them (``2>&-``) ----------------------------------

# A C library that writes to all three without a pause, as a real one writes a warning now and then.
PROGRAM = """
import ctypes, os, sys, threading, time
import rtcompile

stopped = []

def write_messages():
    while not stopped:
        for number in range(3):
            ctypes.CDLL(None).write(number, b"a C library's message", 21)
        time.sleep(0.0005)

before = [number for number in range(3) if os.path.exists(f"/proc/self/fd/{number}")]
thread = threading.Thread(target=write_messages)
if before == []:
    thread.start()
results = []
for number in range(4):
    try:
        made = rtcompile.compile(f"__global__ void k{number}() {{}}", arch="sm_80")
        results.append(str(made.build.hit))
    except BaseException as error:
        results.append(repr(error))
for number in range(3):
    if number not in before and os.path.exists(f"/proc/self/fd/{number}"):
        results.append(os.readlink(f"/proc/self/fd/{number}"))
if before == []:
    stopped.append(True)
    thread.join()
with open(sys.argv[1], "w") as file:
    file.write("\\n".join(results))
"""


@pytest.mark.parametrize(
    "closed", [pytest.param(c, id="".join(map(str, c))) for c in ((0,), (1,), (2,), (0, 1, 2))]
)
def test_builds_work_and_are_kept_with_closed_standard_descriptors(tmp_path, closed):
    cache, results = tmp_path / "cache", tmp_path / "results"
    closing = " ".join(f"{number}>&-" for number in closed)
    words = ["/bin/sh", "-c", f'exec "$@" {closing}', "sh", sys.executable, "-c", PROGRAM, results]
    for hit in ("None", "disk"):
        ran(*words, environ={"RTCOMPILE_CACHE_DIR": cache}, stdin=subprocess.DEVNULL, timeout=100)
        nothing = [] if hit == "disk" else ["/dev/null"] * len(closed)  # of a hit none stays open
        assert results.read_text().split("\n") == [hit] * 4 + nothing
    written = b"".join(path.read_bytes() for path in cache.rglob("*") if path.is_file())
    assert b"a C library's message" not in written


def test_a_worker_that_receives_no_message_ends_with_an_error_that_says_so(pool):
    output(pool.run(shell("true"), Limits()))
    (zygote,) = pool.zygotes
    os.write(zygote.control.fileno(), b"warning: not of rtcompile")
    zygote.reap()
    assert zygote.last_stderr == (
        "The worker ended: something other than a message of rtcompile arrived: "
        "b'warning: not of rtcompile'"
    )


# --- the heap for precompiled headers, in each layout of memory --------------------------------

ROOT = Path(__file__).parents[2]

SCRIPT = """
import ctypes
from rtcompile.workers import libraries as nvrtc, probes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
def starts():
    return [int(line.split("-")[0], 16) for line in open("/proc/self/maps")]
nvrtc._pin_heap = lambda: None  # it is pinned below
nvrtc.load({libraries!r})
if {used}:
    nvrtc._compile({{"source": b"", "name": b"k.cu"}}, [])
if {taken}:
    assert libc.mmap(probes.HEAP_BASE + 4096, 4096, 0, 0x22 | 0x100000, -1, 0) == probes.HEAP_BASE + 4096
pinned = probes.pin_heap(nvrtc._library, nvrtc._allocate_heap)
assert not any(probes.HEAP_BASE < start < probes.HEAP_BASE + probes.HEAP_SIZE for start in starts()) or {taken}
nvrtc._compile({{"source": b"", "name": b"k.cu"}}, [])
assert pinned == (probes.HEAP_BASE in starts()), "it stays there"
print(pinned)
"""


def pinned(stack: int, *, used: bool = False, taken: bool = False) -> str:
    """Return whether the heap was pinned in a new process with this limit of the stack's size."""

    def limit_stack() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (stack, resource.RLIM_INFINITY))

    library = toolkit.current().require_nvrtc()
    libraries = os.pathsep.join((*library.preload, library.path))
    script = SCRIPT.format(libraries=libraries, used=used, taken=taken)
    return str(python(script, cwd=ROOT, check=True, preexec_fn=limit_stack).stdout.strip())


@pytest.mark.parametrize("used", [False, True], ids=["just loaded", "after a compile"])
@pytest.mark.parametrize(
    "stack",
    [
        pytest.param(8 << 20, id="memory from the top"),
        pytest.param(resource.RLIM_INFINITY, id="memory from the bottom"),
    ],
)
def test_the_heap_is_pinned_in_every_memory_layout(stack, used):
    assert pinned(stack, used=used) == "True"


def test_an_existing_mapping_is_kept_and_the_compiler_works():
    assert pinned(8 << 20, taken=True) == "False"


# --- sandboxes that refuse system calls (gVisor, seccomp profiles of containers) ---------------

of_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are x86-64's")
NUMBERS = {"memfd_create": 319, "unshare": 272, "ptrace": 101}
ERRORS = {"EPERM": 1, "ENOSYS": 38}
CASES = [
    pytest.param(call, error, marks=() if call == "memfd_create" else pytest.mark.slow)
    for call in NUMBERS
    for error in ERRORS
]

# Lets the kernel return an error from one system call, in this process and all that it starts, then builds.
SANDBOXED = """if True:
    import ctypes, os, struct, sys
    number, error, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    rows = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | error), (0x06, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rows), ctypes.addressof(code)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert not prctl(38, 1, 0, 0, 0) and not prctl(22, 2, program), os.strerror(ctypes.get_errno())
    import rtcompile
    source = '#include "a.h"\\nextern "C" __global__ void k(int* p) { *p = A; }'
    given = {"headers": {"a.h": "#define A 7"}, "arch": "sm_80", "backend": backend}
    print(rtcompile.compile(source, **given).build.backend)
    try:
        rtcompile.compile("#error wrong", arch="sm_80", backend=backend)
    except rtcompile.CompileError as error:
        assert "wrong" in error.log, error
"""


@of_x86
@pytest.mark.some(2)
@pytest.mark.parametrize("backend", ["nvrtc", pytest.param("nvcc", marks=pytest.mark.needs_nvcc)])
@pytest.mark.parametrize(("call", "error"), CASES)
def test_a_build_needs_no_system_call_that_sandboxes_refuse(call, error, backend):
    done = python(SANDBOXED, NUMBERS[call], ERRORS[error], backend, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, backend), done.stderr


def test_a_python_without_memfd_create_builds(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    assert rtcompile.compile("__global__ void k() {}", arch="sm_80", recompile=True).code

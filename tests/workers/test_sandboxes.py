"""Tests of builds in sandboxes that refuse system calls (gVisor, seccomp profiles of containers)."""

from __future__ import annotations

import platform

import pytest

from tests.processes import python

pytestmark = [
    pytest.mark.needs_compiler,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are x86-64's"),
]

NUMBERS = {"memfd_create": 319, "unshare": 272, "ptrace": 101}
ERRORS = {"EPERM": 1, "ENOSYS": 38}
CASES = [
    pytest.param(call, error, marks=() if call == "memfd_create" else pytest.mark.slow)
    for call in NUMBERS
    for error in ERRORS
]

# Lets the kernel return an error from one system call, in this process and all that it starts, then builds.
PROGRAM = """if True:
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


@pytest.mark.some(2)
@pytest.mark.parametrize("backend", ["nvrtc", pytest.param("nvcc", marks=pytest.mark.needs_nvcc)])
@pytest.mark.parametrize(("call", "error"), CASES)
def test_a_build_needs_no_system_call_that_sandboxes_refuse(
    call: str, error: str, backend: str
) -> None:
    done = python(PROGRAM, NUMBERS[call], ERRORS[error], backend, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, backend), done.stderr


def test_a_python_without_memfd_create_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    import rtcompile

    monkeypatch.delattr(os, "memfd_create")
    assert rtcompile.compile("__global__ void k() {}", arch="sm_80", recompile=True).code

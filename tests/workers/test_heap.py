"""The heap for precompiled headers lies where it should, however memory is laid out."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from rtcompile import toolkit
from tests.processes import python

ROOT = Path(__file__).parents[2]

SCRIPT = """
import ctypes
from rtcompile.workers import nvrtc, probes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
def starts():
    return [int(line.split("-")[0], 16) for line in open("/proc/self/maps")]
nvrtc._pin_heap = lambda: None  # it is pinned below
nvrtc.load({libraries!r})
if {used}:
    nvrtc.Program(b"", b"k.cu").compile([])
if {taken}:
    assert libc.mmap(probes.HEAP_BASE + 4096, 4096, 0, 0x22 | 0x100000, -1, 0) == probes.HEAP_BASE + 4096
pinned = probes.pin_heap(nvrtc._library, nvrtc._allocate_heap)
assert not any(probes.HEAP_BASE < start < probes.HEAP_BASE + probes.HEAP_SIZE for start in starts()) or {taken}
nvrtc.Program(b"", b"k.cu").compile([])
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


@pytest.mark.needs_compiler
@pytest.mark.parametrize("used", [False, True], ids=["just loaded", "after a compile"])
@pytest.mark.parametrize(
    "stack",
    [
        pytest.param(8 << 20, id="memory from the top"),
        pytest.param(resource.RLIM_INFINITY, id="memory from the bottom"),
    ],
)
def test_the_heap_is_pinned_in_every_memory_layout(stack: int, used: bool) -> None:
    assert pinned(stack, used=used) == "True"


@pytest.mark.needs_compiler
def test_an_existing_mapping_is_kept_and_the_compiler_works() -> None:
    assert pinned(8 << 20, taken=True) == "False"

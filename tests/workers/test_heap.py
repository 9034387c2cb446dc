"""The heap for precompiled headers lies where it should, whatever else is mapped meanwhile."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rtcompile import toolkit

ROOT = Path(__file__).parents[2]

# What may happen between the look at the mappings and the reservation of the gaps between them.
QUIET = "pass"
MALLOC_GROWS = "libc.sbrk(1 << 20)"
SOMETHING_IS_MAPPED = "libc.mmap(None, 1 << 20, 3, 0x22, -1, 0)"


def limit_stack() -> None:
    """As a zygote does: `make` lifts the limit, and without one memory is laid out from the bottom."""
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, most))


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    "event",
    [
        pytest.param(QUIET, id="nothing"),
        pytest.param(MALLOC_GROWS, id="malloc's heap grows"),
        pytest.param(SOMETHING_IS_MAPPED, id="something is mapped"),
    ],
)
@pytest.mark.parametrize("used", [False, True], ids=["just loaded", "after a compile"])
def test_it_is_pinned_whatever_happens_beside_it(event: str, used: bool) -> None:
    library = toolkit.current().require_nvrtc()
    script = f"""
    import ctypes
    from rtcompile.workers import heap, nvrtc
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = libc.mmap.restype = ctypes.c_void_p
    libc.sbrk.argtypes = [ctypes.c_long]
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    nvrtc._pin_heap = lambda: None  # it is pinned below
    nvrtc.load({os.pathsep.join((*library.preload, library.path))!r})
    if {used}:
        nvrtc.Program(b"", b"k.cu").compile([])
    look = heap.mappings
    def look_and_see_it_change():
        mappings = look()
        {event}
        return mappings
    heap.mappings = look_and_see_it_change
    assert heap.pin(nvrtc._library, nvrtc._allocate_heap)
    assert all(start < heap.BASE or start >= heap.BASE + heap.SIZE or start == heap.BASE
               for start, _ in look()), "the heap, and nothing else, lies there"
    nvrtc.Program(b"", b"k.cu").compile([])
    assert any(start == heap.BASE for start, _ in look()), "it stays there"
    """
    program = [sys.executable, "-c", textwrap.dedent(script)]
    subprocess.run(program, cwd=ROOT, check=True, preexec_fn=limit_stack)

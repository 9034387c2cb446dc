"""The class of a catalogue's case, and sources that several cases share."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

EMPTY = "__global__ void k() {}"
SHARED_80000 = """__global__ void k(int* x) {
  __shared__ int s[20000];
  s[threadIdx.x] = *x;
  __syncthreads();
  x[1] = s[5 - threadIdx.x];
}"""
CUTE = "#include <cute/tensor.hpp>\n" + EMPTY
ENDLESS = (
    "typedef void (*F0)();\n"
    + "".join(f"typedef F{i} (*F{i + 1})(F{i}, F{i}, F{i});\n" for i in range(20))
    + "__global__ void k(F20 f) {}"
)
WGMMA = """__global__ void k(float* x, unsigned long long a, unsigned long long b) {
  float d0 = x[0], d1 = x[1], d2 = x[2], d3 = x[3];
  asm volatile("wgmma.fence.sync.aligned;");
#define MMA \\
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 " \\
    "{%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;" \\
    : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "l"(a), "l"(b));
  MMA
  d0 += 1;
  MMA
  asm volatile("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;");
  x[0] = d0; x[1] = d1; x[2] = d2; x[3] = d3;
}"""


@dataclass(frozen=True)
class Provoked:
    """How to provoke a compiler's message, and texts that the hint must contain.

    `headers` are include directories: ``"12:cudart 13:cccl"``. `toolkit` is whose NVRTC it is.
    """

    message: str
    hint: tuple[str, ...]
    source: str = EMPTY
    options: str = ""
    headers: str = ""
    toolkit: str = "12"
    arch: str = "sm_80"
    names: tuple[str, ...] = ()
    bare: bool = False  # no options are added: no -arch, no -std, no -default-device
    capability: tuple[int, int] | None = None
    seconds: float | None = None
    memory: int | None = None
    plain: bool = False  # plain NVRTC, without rtcompile's options and precautions
    builtins: bool = True  # whether its second library is beside it


def case(row: str, message: str, *hint: str, slow: bool = False, **how: object) -> object:
    """Return a case; it is `slow` where tests/forty_mistakes.py provokes the row in the same way."""
    suffix = "-".join(str(how[k]) for k in ("toolkit", "arch") if k in how)
    return pytest.param(
        row,
        Provoked(message, hint, **how),  # type: ignore[arg-type]
        id=f"{row}-{suffix}".rstrip("-"),
        marks=[pytest.mark.slow] * slow,
    )

"""Requests that never end, or are too large to read, end within their time limit by every entry."""

import time
from collections.abc import Callable
from typing import Any

import pytest

import rtcompile
from rtcompile import CompileRequest, ObjectCode, RawKernel, RawModule
from rtcompile.errors import RtcompileError
from rtcompile.request.values import Arch
from tests.trials.record import FULL, tally, times

LIMIT = times(1.0, 3.0)
LIMITS: dict[str, Any] = {"timeout": LIMIT, "memory_limit": "2G"}
# Nothing is measured here, so other programs on the machine do not matter.
GRACE = times(30.0, 2.0)
KERNEL = "__global__ void k(int* p) { *p = 1; }\n"
MANY = times(10_000, 100_000)


def large(megabytes: int, line: str = "__device__ int f%d() { return %d; } // a line\n") -> str:
    size = times(megabytes, megabytes << 3) << 17
    text = "".join(line % ((n,) * line.count("%d")) for n in range(20_000))
    return (text * (size // len(text) + 1))[:size].rpartition("\n")[0] + "\n"


def chain(first: str, link: str, last: str, length: int) -> str:
    links = [link.replace("{n}", str(n)).replace("{m}", str(n + 1)) for n in range(length)]
    return "\n".join([first, *links, last.replace("{n}", str(length))])


# Sources that the compilers never finish, that exhaust memory, or that are rejected slowly.
SOURCES: dict[str, Callable[[], str]] = {
    "function pointers": lambda: chain(
        "typedef int T0;", "typedef T{n} (*T{m})(T{n}, T{n});", "__global__ void k(T{n} f) {}", 40
    ),
    "exponential templates": lambda: (
        "template<int D, long P> struct F { static __device__ int f() { return F<D-1, 2*P>::f() + "
        "F<D-1, 2*P+1>::f(); } }; template<long P> struct F<0, P> { static __device__ int f() { "
        "return P; } }; __global__ void k(int* p) { *p = F<40, 1>::f(); }"
    ),
    "macro laughs": lambda: chain(
        "#define A0 1+1", "#define A{m} A{n}+A{n}", "__device__ long x = A{n};", 40
    ),
    "string laughs": lambda: chain(
        '#define A0 "ha"', "#define A{m} A{n} A{n}", "__device__ const char* x = A{n};", 40
    ),
    "constexpr loop": lambda: (
        "constexpr long f(long n) { long s = 0; for (long i = 0; i < n; i++) s += i * s; return s; }\n"
        "template<long N> __global__ void k(long* p) { constexpr long v = f(N); *p = v; }\n"
        "template __global__ void k<1000000000000>(long*);"
    ),
    "constexpr recursion": lambda: (
        "constexpr long f(long n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\n"
        "__constant__ long x[f(90) > 0 ? 1 : 2];"
    ),
    "deep templates": lambda: (
        "template<int N> struct S { typename S<N + 1>::type t; }; S<0> s;"
    ),
    "doubled types": lambda: chain(
        "template<class A, class B> struct P { A a; B b; }; typedef P<int, int> T0;",
        "typedef P<T{n}, T{n}> T{m};",
        "__global__ void k(T{n}* p) {}",
        40,
    ),
    "array of all memory": lambda: "__device__ int x[1LL << 40] = {1};",
    "initialised array": lambda: "__device__ int x[1 << 30] = {[0 ... (1 << 30) - 1] = 7};",
    "unrolled loops": lambda: (
        "__global__ void k(float* p) {"
        + "".join(f"\n#pragma unroll 1024\nfor (int i{n} = 0; i{n} < 1024; i{n}++)" for n in range(4))
        + " p[i0 * i1 ^ i2 + i3] += i0; }"
    ),
    "includes itself": lambda: '#include __FILE__\n#include "/proc/self/environ"\n',
    "endless file": lambda: '#include "/dev/zero"\n',
    "braces": lambda: "__device__ int x = " + "(" * 200_000,
    "a long name": lambda: f"__global__ void {'k' * 4_000_000}() {{}}\n",
    "a long literal": lambda: f'__device__ const char x[] = "{"x" * 20_000_000}";\n',
    "large source": lambda: large(24),
    "larger source": lambda: large(100),
    "large comment": lambda: f"/*{large(50)}*/{KERNEL}",
    "large log": lambda: large(12, "int x%d = nowhere;\n"),
    "large log of warnings": lambda: large(4, "__device__ void w%d() { int unused; }\n"),
    "large log of frames": lambda: (
        "template<int N> struct S { static const int v = S<N - 1>::v; };"
        "template<> struct S<0> { static const int v = nowhere; };\n"
        + "".join(f"static_assert(S<{n}>::v, \"\");\n" for n in range(100, 2000, 10))
    ),
    "lines renumbered": lambda: large(8, '#line %d "../odd%d.cu"\nint y = z;\n'),
    "splices": lambda: "\\\n" * (1 << 22) + "int x = y;\n",
    "quotes": lambda: "'\"" * (1 << 23),
}  # fmt: skip

SOURCE_WAYS: dict[str, Callable[[str], object]] = {
    "compile": lambda source: rtcompile.compile(source, arch="sm_80", **LIMITS),
    "nvcc": lambda source: rtcompile.compile(source, arch="sm_80", **LIMITS, backend="nvcc"),
    "cell": lambda source: cell(source),
}

REQUESTS: dict[str, Callable[[], Callable[[], object]]] = {
    "module": lambda: RawModule(code=large(24), arch="sm_80", **LIMITS)._build.object_code,
    "kernel": lambda: RawKernel(large(24), "f1", arch="sm_80", **LIMITS)._build.object_code,
    "batch": lambda: batch([CompileRequest(large(12), arch="sm_80")]),
    "line information": lambda: requested(large(24), options=["-lineinfo"]),
    "name expressions": lambda: requested(
        "template<int I> __global__ void f() {}", name_expressions=[f"f<{n}>" for n in range(MANY)]
    ),
    "wrong name expressions": lambda: requested(
        "template<int I> __global__ void f() {}", name_expressions=[f"g<{n}>" for n in range(MANY)]
    ),
    "a long name expression": lambda: requested(
        "template<int I> __global__ void f() {}", name_expressions=["f<1" + "+1" * (4 << 20) + ">"]
    ),
    "large header": lambda: requested(f'#include "a.h"\n{KERNEL}', headers={"a.h": large(100)}),
    "headers": lambda: requested(
        f'#include "7.h"\n{KERNEL}', headers={f"{n}.h": "int x;\n" for n in range(10_000)}
    ),
    "options": lambda: requested(KERNEL, options=[f"-DA{n}=1" for n in range(20_000)]),
    "options in one string": lambda: requested(KERNEL, options="-DA=1 " * 15_000),
    "too many options": lambda: requested(KERNEL, options=[f"-DA{n}=1" for n in range(100_000)]),
    "directories": lambda: requested(
        f"#include <cuda_fp16.h>\n{KERNEL}", options=[f"-I/nowhere/{n}" for n in range(1000)]
    ),
    "a long option": lambda: requested(KERNEL, options=["-DA=" + "x" * (24 << 20)]),
    "linked sources": lambda: requested(KERNEL, link=[large(12), large(13), large(14)]),
    "many linked sources": lambda: requested(
        KERNEL, link=[f"__device__ int f{n}();" for n in range(MANY)]
    ),
    "linked PTX": lambda: requested(
        KERNEL, link=[ObjectCode(b"//\n.version 7.0\n" + b"//x\n" * (20 << 20), "ptx", Arch(8, 0))]
    ),
}  # fmt: skip


def cell(source: str) -> object:
    """Compile as a cell of a notebook, whose limits come from the environment."""
    pytest.importorskip("IPython")
    from rtcompile.extras.notebook import CellModule, read

    arguments, _ = read("--arch sm_80")
    return CellModule(source, arguments)


def batch(builds: list[CompileRequest]) -> Callable[[], object]:
    return lambda: rtcompile.compile_many(builds, progress=False, **LIMITS)


def requested(source: str, **given: Any) -> Callable[[], object]:
    return lambda: rtcompile.compile(source, arch="sm_80", **LIMITS, **given)


def seconds(begin: Callable[[], object]) -> float:
    begun = time.perf_counter()
    try:
        begin()
    except RtcompileError:
        pass
    return time.perf_counter() - begun


def everyday(names: list[str], step: int) -> list[Any]:
    """Mark all but every `step`-th case as slow."""
    slow = () if FULL else (pytest.mark.slow,)
    return [pytest.param(name, marks=slow if at % step else ()) for at, name in enumerate(names)]


@pytest.mark.some
@pytest.mark.needs_nvcc
@pytest.mark.takes_seconds
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", SOURCE_WAYS)
@pytest.mark.parametrize("name", everyday([*SOURCES], 12))
def test_a_source_ends_within_its_limit(name, way, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_TIMEOUT", str(LIMIT))
    monkeypatch.setenv("RTCOMPILE_MEMORY_LIMIT", "2G")
    source = SOURCES[name]()
    with tally(f"bomb that ends within its time limit and 2 s (a source, {way})") as trial, trial():
        took = seconds(lambda: SOURCE_WAYS[way](source))
        assert took <= LIMIT + GRACE, f"{name}: {took:.1f} s"


@pytest.mark.needs_compiler
@pytest.mark.takes_seconds
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", everyday([*REQUESTS], 6))
def test_a_request_ends_within_its_limit(name):
    begin = REQUESTS[name]()
    with tally("bomb that ends within its time limit and 2 s (a request)") as trial, trial():
        took = seconds(begin)
        assert took <= LIMIT + GRACE, f"{name}: {took:.1f} s"

"""The rows of `make gates`, and the processes in which benchmarks/gates.py measures them.

A row is a job, which is a function below that uses public names of rtcompile only, so that it runs with any
commit. `python gate_rows.py HELPERS [cupy]` reads tasks from stdin, and runs each in a fork of its own, with the
checkout that the task names first on the path. CuPy is imported once, before the forks; rtcompile is not.

A measured process must import nothing that rtcompile would import: this module imports only what an interpreter has
loaded when it starts.
"""

import gc
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BEGIN, END = "/gates: the measured part begins", "/gates: the measured part ends"

SMALL = 'extern "C" __global__ void k(float* x) {{ x[threadIdx.x] += {}.0f; }}'
CUTE = r"""
#include <cute/tensor.hpp>
using namespace cute;
extern "C" __global__ void k(float* x) {{
    auto t = make_tensor(make_gmem_ptr(x), Layout<Shape<_8, _4>, Stride<_1, _8>>{{}});
    x[threadIdx.x] = t(threadIdx.x % 8, 1) + {}.0f;
}}
"""
CUB = r"""
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
extern "C" __global__ void k(float* x) {{
    __shared__ typename cub::BlockReduce<float, 128>::TempStorage a;
    __shared__ typename cub::BlockScan<float, 128>::TempStorage b;
    float v = x[threadIdx.x], sum = cub::BlockReduce<float, 128>(a).Sum(v), scan;
    cub::BlockScan<float, 128>(b).InclusiveSum(v, scan);
    x[threadIdx.x] = sum + scan * {}.0f;
}}
"""
SOURCES = {"small": SMALL, "CuTe": CUTE, "CUB": CUB}

# The kernels of CuPy that benchmarks/everywhere.py's operations request, by their names in the package's record.
OF_CUPY = """
arange__float_float_float32 multiply__float32_float_float32 add__float32_float_float32 copy__float32_float64
arange__int_int_int32 remainder__int32_int_int32 multiply__complex_float32_complex64 add__float32_complex64_complex64
add__float32_float64_float64 multiply__float32_float32_float32 sqrt__float32_float32 negative__float32_float32
exp__float32_float32 sin__float32_float32 greater__float32_float_bool where__bool_float32_float64_float64 mean
copy__int32_int64 true_divide__float32_float_float32 copy__float32_float32 var_core_float32 copy__int32_int32 fill
not_equal__int32_int32_bool bsum_shfl scan_naive getitem_mask isfinite__float32_bool equal__float32_float32_bool
subtract__float32_float32_float32 equal__float32_float_bool any add__float32_float32_float32
nextafter__float32_float32_float32 less__int32_int_bool cub_any_pass1 cub_any_pass2
multiply__complex64_complex64_complex64 absolute__complex64_float32 angle__complex64_float32
clip__float32_float_float_float32 random_x_mod_1 greater__uint32_int_bool copy__bool_uint32 get_indices
remainder__uint32_uint_uint32 copy__uint32_int64 add__int64_int_int64 linspace__float_float_float64
"""


# --- jobs: each returns seconds by the name of a figure -------------------------------------------


counting: "list[Callable[[], None]]" = []  # what the first timer calls, to begin the counts


class Timer:
    """Measures from its construction on, and marks this part for a trace of system calls and for the counts.

    What exists by then is taken out of garbage collection. One full collection of IPython's objects takes 20 ms, and
    would otherwise fall into one part or the other.
    """

    def __init__(self) -> None:
        gc.freeze()
        while counting:
            counting.pop()()
        os.access(BEGIN, 0)
        self.begun = time.perf_counter()

    def __call__(self) -> float:
        return time.perf_counter() - self.begun


def hits(number: int, door: str, kind: str = "small", kernels: int = 20, again: int = 50) -> "Any":
    """Request cached kernels through one public function: the first, further ones, the last again."""
    import doors

    options = "" if door == "cell" else ()
    more = {"arch": "sm_80"} if door in doors.WITHOUT_CUPY else {}
    sources = [SOURCES[kind].format(each) for each in range(kernels)]
    timer = Timer()
    build = doors.door(door, False)
    build(sources[0], options, **more)
    found = {"import and first hit": timer()}
    timer = Timer()
    for source in sources[1:]:
        build(source, options, **more)
    if kernels > 1:
        found["a further hit"] = timer() / (kernels - 1)
    timer = Timer()
    for _ in range(again):
        build(sources[-1], options, **more)
    found["the same again"] = timer() / again
    return found


def first_miss(number: int) -> "Any":
    timer = Timer()
    from rtcompile import RawKernel

    _ = RawKernel(SMALL.format(number), "k").kernel
    return {"import and first miss": timer()}


def next_miss(number: int, measured: int) -> "Any":
    """Compile small kernels in a process that has compiled some; return the processor time of the calling thread."""
    import rtcompile

    for each in range(4):
        rtcompile.compile(SMALL.format(number * 1000 + each), arch="sm_90")
    Timer()
    begun = time.thread_time()
    for each in range(measured):
        rtcompile.compile(SMALL.format(number * 1000 + 100 + each), arch="sm_90")
    return {"processor time of the caller": (time.thread_time() - begun) / measured}


def in_turn(number: int, kind: str, marks: "tuple[int, ...]") -> "Any":
    """Compile kernels one after the other; return the time up to each number of kernels in `marks`."""
    found = {}
    timer = Timer()
    import rtcompile

    for each in range(max(marks)):
        rtcompile.compile(SOURCES[kind].format(number * 1000 + each), arch="sm_90")
        if each + 1 in marks:
            found[f"{each + 1} kernels"] = timer()
    return found


def at_the_top(number: int, kernels: int) -> "Any":
    """Construct all kernels, and use them after that."""
    timer = Timer()
    from rtcompile import RawKernel

    made = [RawKernel(SMALL.format(number * 1000 + each), "k") for each in range(kernels)]
    for kernel in made:
        _ = kernel.kernel
    return {"all": timer()}


def many(number: int, kind: str, kernels: int) -> "Any":
    timer = Timer()
    from rtcompile import CompileRequest, compile_many

    sources = [SOURCES[kind].format(number * 1000 + each) for each in range(kernels)]
    compile_many([CompileRequest(source, arch="sm_90") for source in sources], progress=False)
    return {"all": timer()}


def edit(number: int, kind: str, linger: float = 0.0) -> "Any":
    """Compile an edited kernel; then wait, as a program that goes on, so that headers may be made."""
    timer = Timer()
    import rtcompile

    rtcompile.compile(SOURCES[kind].format(number), arch="sm_90")
    found = {"import and compile": timer()}
    time.sleep(linger)
    return found


def of_cupy(number: int, kernels: str) -> "Any":
    """Compile the kernels in a file in turn, as CuPy requests them after `install`."""
    with open(kernels) as file:
        builds = eval(file.read())
    from cupy._core import core
    from cupy.cuda import compiler

    own = {options: core.assemble_cupy_compiler_options(options) for _, options in builds}
    timer = Timer()
    import rtcompile

    rtcompile.install()
    for source, options in builds:
        compiler._compile_module_with_cache(source, tuple(own[options]), arch="90")
    return {"all": timer()}


def failing(number: int, sources: str) -> "Any":
    """Compile sources that a compiler rejects; fail if one of them compiles."""
    with open(sources) as file:
        requests = eval(file.read())
    timer = Timer()
    import rtcompile

    for given in requests:
        try:
            rtcompile.compile(**given)
        except rtcompile.RtcompileError:
            continue
        raise AssertionError(f"it compiles: {given}")
    return {"all": timer()}


# --- the table ------------------------------------------------------------------------------------


class Row:
    """What one row measures.

    `job` is called with `given`, `pairs` times with each checkout. Before that `prepare`, a list of jobs and their
    arguments, fills a cache. With `fresh` each run gets a copy of this cache, else all runs share it. `cupy` imports
    CuPy before the measured part. `counted` is the number of runs whose calls are counted, of which the least is
    taken.
    """

    def __init__(
        self,
        job: "Callable[..., Any]",
        given: "dict[str, Any] | None" = None,
        *,
        pairs: int,
        prepare: "list[tuple[Callable[..., Any], dict[str, Any]]] | None" = None,
        fresh: bool = True,
        cupy: bool = False,
        store: bool = False,
        counted: int = 2,
    ) -> None:
        self.job = job
        self.given = given or {}
        self.pairs = pairs
        self.prepare = prepare if prepare is not None else [TOOLCHAIN_IS_KNOWN]
        self.fresh = fresh
        self.cupy = cupy
        self.store = store
        self.counted = counted


TOOLCHAIN_IS_KNOWN = (edit, {"kind": "small"})
CACHED = {"pairs": 12, "fresh": False}
THREE_EDITS = [(edit, {"kind": "CuTe", "linger": 4.0})] * 3
FAILING, CUPY_KERNELS = "failing.txt", "cupy_kernels.txt"


def _hits(door: str, cupy: bool, **given: "Any") -> Row:
    given["door"] = door
    return Row(hits, given, prepare=[(hits, given)], cupy=cupy, **CACHED)


ROWS = {
    "hits: compile, without CuPy": _hits("compile", False),
    "hits: compile_many, without CuPy": _hits("compile_many", False),
    "hits: compile": _hits("compile", True),
    "hits: compile_many": _hits("compile_many", True),
    "hits: RawKernel": _hits("RawKernel", True),
    "hits: RawModule": _hits("RawModule", True),
    "hits: CuPy's own after install()": _hits("install", True),
    "hits: a %%cuda cell": _hits("cell", True),
    "CuTe, cached": _hits("compile", False, kind="CuTe", kernels=1),
    "shared store's hits": Row(
        hits,
        {"door": "compile", "again": 1},
        prepare=[(hits, {"door": "compile"}), TOOLCHAIN_IS_KNOWN],
        store=True,
        pairs=12,
    ),
    "failing sources, second pass": Row(
        failing, {"sources": FAILING}, prepare=[(failing, {"sources": FAILING})], **CACHED
    ),
    "first miss": Row(first_miss, pairs=10, cupy=True),
    "further misses": Row(next_miss, {"measured": 20}, pairs=10, counted=0),
    "one further miss": Row(next_miss, {"measured": 1}, pairs=4),
    "small kernels in turn": Row(in_turn, {"kind": "small", "marks": (20,)}, pairs=8),
    "batch of 100, at the top": Row(at_the_top, {"kernels": 100}, pairs=6, cupy=True, counted=1),
    "compile_many of 256": Row(many, {"kind": "small", "kernels": 256}, pairs=5, counted=1),
    "CUB in turn": Row(in_turn, {"kind": "CUB", "marks": (2, 5)}, pairs=5, counted=1),
    "CuTe, fresh": Row(many, {"kind": "CuTe", "kernels": 4}, pairs=4, counted=0),
    "CuTe, edited": Row(
        edit, {"kind": "CuTe"}, prepare=THREE_EDITS, fresh=False, pairs=8, counted=1
    ),
    "CuPy's 49 kernels": Row(of_cupy, {"kernels": CUPY_KERNELS}, pairs=4, cupy=True, counted=0),
}


# --- the measured processes -----------------------------------------------------------------------


def _count(package: str, counts: "dict[str, int]") -> "Callable[[], None]":
    """Count functions of the package, their calls and imported modules from the first timer on; return the end."""
    import threading

    functions: dict[Any, int] = {}
    known: set[str] = set()

    def note(frame: "Any", event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            functions[frame.f_code] = functions.get(frame.f_code, 0) + 1

    def begin() -> None:
        known.update(sys.modules)
        threading.setprofile(note)
        sys.setprofile(note)

    def end() -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        counts["functions"] = len(functions)
        counts["calls of functions"] = sum(functions.values())
        counts["modules imported"] = len(set(sys.modules) - known)

    counting.append(begin)
    return end


def run(task: "dict[str, Any]") -> None:
    """Run a task, and write what it measured into the file that the task names."""
    os.environ.update(task["environ"])
    sys.path.insert(0, task["checkout"])
    counts: dict[str, int] = {}
    ended = _count(os.path.join(task["checkout"], "rtcompile"), counts) if task["count"] else None
    figures = globals()[task["job"]](task["number"], **task["given"])
    os.access(END, 0)
    if ended:
        ended()
    import rtcompile

    if not rtcompile.__file__.startswith(task["checkout"]):
        raise RuntimeError(f"{rtcompile.__file__} is not in the checkout {task['checkout']}")
    with open(task["out"], "w") as file:
        file.write(repr({"figures": figures, "counts": counts}))


def serve() -> None:
    """Run the tasks on stdin; a fork runs each to the end of an interpreter, exit functions included."""
    sys.path[0] = sys.argv[1]
    import doors

    del sys.path[0]
    if "cupy" in sys.argv:
        import warnings

        warnings.simplefilter("ignore")
        import cupy  # noqa: F401 — what the measured programs have done before

        doors.pretend_device()
    answers, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115 - a cell prints
    for line in sys.stdin:
        child = os.fork()
        if not child:
            run(eval(line))
            return
        _, status = os.waitpid(child, 0)
        print(status, file=answers, flush=True)


if __name__ == "__main__":
    serve()

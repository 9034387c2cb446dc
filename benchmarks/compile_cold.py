"""Cold compiles in fresh processes: rtcompile against NVRTC in process, cuda.core and nvcc.

Each round starts one process per contender, in turn. Results are the medians of the time from the
contender's import to the code, and the peak memory of the calling process. CuTe is also measured with an
existing precompiled header. ``--save`` writes benchmarks/results/compile_cold.json.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

from benchmarks import _machine

ROUNDS = int(os.environ.get("ROUNDS", "7"))

TRIVIAL = 'extern "C" __global__ void k() {}'
CUTE = r"""
#include <cute/tensor.hpp>
using namespace cute;
extern "C" __global__ void k(float* x) {
    auto t = make_tensor(make_gmem_ptr(x), Layout<Shape<_8, _4>, Stride<_1, _8>>{});
    copy(make_tensor_like(t), t);
}
"""
SOURCES = {"trivial": TRIVIAL, "cute": CUTE}

CHILD = r"""
import json, resource, sys, time
task = json.loads(sys.stdin.read())
source, folders, cutlass = task["source"], task["folders"], task["cutlass"]
options = ["-std=c++17", "-DNDEBUG", "-default-device", *("-I" + folder for folder in folders)]
def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = memory()
begin = time.perf_counter()
if task["who"] == "rtcompile":
    import rtcompile
    code = rtcompile.compile(source, arch="sm_90", options=["-DNDEBUG"], pch=task["pch"]).code
elif task["who"] == "NVRTC in process":
    from cuda.bindings import nvrtc
    def call(result, *values):
        assert int(result) == 0, result
        return values[0] if values else None
    program = call(*nvrtc.nvrtcCreateProgram(source.encode(), b"k.cu", 0, None, None))
    given = [option.encode() for option in ["-arch=sm_90", *options]]
    call(*nvrtc.nvrtcCompileProgram(program, len(given), given))
    code = b" " * call(*nvrtc.nvrtcGetCUBINSize(program))
    call(*nvrtc.nvrtcGetCUBIN(program, code))
elif task["who"] == "cuda.core":
    from cuda.core import Program, ProgramOptions
    given = ProgramOptions(
        arch="sm_90", std="c++17", define_macro="NDEBUG", include_path=folders,
        device_as_default_execution_space=True,
    )
    code = Program(source, "c++", given).compile("cubin").code
elif task["who"] == "nvcc":
    import pathlib, subprocess, tempfile
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "k.cu")
        file.write_text(source)
        given = ["-std=c++17", "-DNDEBUG", "--expt-relaxed-constexpr", "-I" + cutlass]
        result = str(file.with_suffix(".cubin"))
        command = [task["nvcc"], "-arch=sm_90", *given, "-cubin", "-o", result, str(file)]
        subprocess.run(command, check=True, capture_output=True)
        code = pathlib.Path(result).read_bytes()
seconds = time.perf_counter() - begin
assert code
json.dump({"ms": seconds * 1e3, "MiB before": before, "MiB after": memory()}, sys.stdout)
sys.stdout.flush()
if task["linger"]:
    # Until the header that is made beside this build is there.
    import threading
    for thread in threading.enumerate():
        if thread.name == "rtcompile-pch":
            thread.join()
"""


def measure(who: str, source: str, cache: str, *, pch: bool = False, linger: bool = False) -> dict:
    from rtcompile import toolkit

    toolchain = toolkit.current()
    wanted = ("forward", "cudart", "crt", "cccl", "cutlass")
    folders = {d.label: d.path for d in toolchain.search if d.label in wanted}
    task = {
        "who": who,
        "source": source,
        "folders": list(folders.values()),
        "cutlass": folders.get("cutlass", ""),
        "nvcc": toolchain.nvcc.path if toolchain.nvcc else "",
        "pch": pch,
        "linger": linger,
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(task),
        env={**os.environ, "RTCOMPILE_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    return dict(json.loads(done.stdout))


def forget_objects(cache: str) -> None:
    """Make the next build a miss, of a compiler and headers that are known."""
    for folder in ("objects", "records"):
        for where, _, files in os.walk(os.path.join(cache, folder)):
            for file in files:
                os.unlink(os.path.join(where, file))


def contenders(kind: str) -> dict[str, tuple[str, bool]]:
    found = {
        "NVRTC in process": ("NVRTC in process", False),
        "cuda.core": ("cuda.core", False),
        "nvcc": ("nvcc", False),
        "rtcompile": ("rtcompile", False),
    }
    if kind == "cute":
        found["rtcompile, header precompiled"] = ("rtcompile", True)
    return found


def run(kind: str, cache: str) -> dict[str, dict[str, object]]:
    source = SOURCES[kind]
    measure("rtcompile", source, cache)  # finds the toolkit, which is remembered
    if kind == "cute":
        for number in range(2):  # the second build makes the precompiled header
            measure("rtcompile", f"{source}// {number}", cache, pch=True, linger=True)
    samples: dict[str, list[dict]] = {name: [] for name in contenders(kind)}
    for _ in range(ROUNDS):
        for name, (who, pch) in contenders(kind).items():
            forget_objects(cache)
            samples[name].append(measure(who, source, cache, pch=pch))
    base = "NVRTC in process"
    results: dict[str, dict[str, object]] = {}
    for name, runs in samples.items():
        errors = [run["error"] for run in runs if "error" in run]
        if errors:
            results[name] = {"error": errors[0]}
            continue
        results[name] = {
            key: round(statistics.median(run[key] for run in runs), 1) for key in runs[0]
        }
    for result in results.values():
        if "ms" in result and "ms" in results[base]:
            result[f"times {base}"] = round(float(result["ms"]) / float(results[base]["ms"]), 2)
    return results


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        _machine.save("compile_cold", {kind: run(kind, cache) for kind in SOURCES})

"""Measures a cache hit without a compiler and a GPU: the whole `Store.find` of a process with nothing in
memory, and the lower bounds of its parts.

Two requests: a kernel without includes, and one with as many headers as CuTe (392 generated files, 8 MB,
in several directories, which include each other as CuTe's do). Alternating in
one run, medians. `--save` writes benchmarks/results/cache_hit.json.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import _machine
from rtcompile.compilers.observed import record
from rtcompile.files.headers import SearchDir
from rtcompile.files.sealed import content_digest
from rtcompile.request.key import KeyInputs
from rtcompile.request.object_code import BuildInfo, ObjectCode
from rtcompile.request.values import Arch
from rtcompile.store.store import Store

ROUNDS = 40
LABELS = ("user0", "cudart", "crt", "cccl", "cutlass", "shims")


def tree(root: Path) -> tuple[tuple[SearchDir, ...], list[str]]:
    """Write 392 headers of 20 KB, 292 for CCCL and 100 for CuTe; return (search, trace)."""
    search = tuple(SearchDir(label, str(root / label)) for label in LABELS)
    for directory in search:
        Path(directory.path).mkdir()
    text = "// a line of some length that says nothing of interest at all\n" * 330
    trace = []
    for i in range(392):
        family, part = ("cccl/cuda/std", f"__{i % 20}") if i < 292 else ("cutlass/cute", f"{i % 5}")
        path = root / family / part / f"header_{i}.h"
        path.parent.mkdir(parents=True, exist_ok=True)
        quoted = f'#include "cute/{i % 5}/header_{292 + i % 100}.h"\n' if i >= 292 else ""
        path.write_text(f"#pragma once\n{quoted}#if __has_include(<opt_{i % 3}>)\n#endif\n{text}")
        trace.append(str(path))
    return search, trace


def key_inputs(source: str, search: tuple[SearchDir, ...]) -> KeyInputs:
    return KeyInputs(
        source=source,
        source_digest=content_digest(source.encode()),
        name="kernel.cu",
        options=(("std", "c++17"), ("fmad", "true"), ("D", "NDEBUG")),
        arch=Arch(9, 0, "a"),
        compilers={"nvrtc": "12.9.86 CL-36037853"},
        search=search,
    )


def fill(store: Store, inputs: KeyInputs, trace: list[str], size: int) -> dict[str, float]:
    """Add a build and find it through a refresh; return what recording and adding cost in ms."""
    obj = ObjectCode(os.urandom(size), "cubin", Arch(9, 0, "a"), {}, BuildInfo("nvrtc"))
    with store.building(inputs):
        start = time.perf_counter()
        dependencies = record(trace, inputs.search, source=inputs.source, name=inputs.name)
        recorded = time.perf_counter()
        again = record(trace, inputs.search, source=inputs.source, name=inputs.name)
        recorded_again = time.perf_counter()
        assert store.add(inputs, obj, dependencies)
        added = time.perf_counter()
    return {
        "headers": len(dependencies.headers),
        "files that must not appear": len(again.absent),
        "record ms": (recorded - start) * 1e3,
        "record again in the same process ms": (recorded_again - recorded) * 1e3,
        "add ms": (added - recorded_again) * 1e3,
    }


def read_and_hash(paths: list[str]) -> None:
    for path in paths:
        with open(path, "rb") as file:
            content_digest(file.read())


def medians(measured: dict[str, Callable[[], object]]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(ROUNDS):
        for name, run in measured.items():
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {f"{name} ms": statistics.median(values) for name, values in times.items()}


def main() -> None:
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        search, trace = tree(root)
        time.sleep(0.05)  # out of the file clock's tick: the headers are old when they are read
        cases = {
            "no include": ('extern "C" __global__ void k() {}', [], 5_000),
            "392 headers": ('#include "cute/0/header_295.h"\n', trace, 150_000),
        }
        for name, (source, headers_read, size) in cases.items():
            cache = str(root / "cache" / name.replace(" ", "-"))
            inputs = key_inputs(source, search)

            def fresh(cache: str = cache) -> Store:
                return Store(cache, on_disk=True, size=1 << 30)

            costs = fill(fresh(), inputs, headers_read, size)
            kept = fresh()
            files = [str(path) for path in Path(cache).rglob("*") if path.is_file()]
            files = sorted(files, key=os.path.getsize)[-2:]
            measured: dict[str, Callable[[], object]] = {
                "find on disk": lambda fresh=fresh, inputs=inputs: fresh().find(inputs),
                "find in memory": lambda kept=kept, inputs=inputs: kept.find(inputs),
                "floor: read and hash two files": lambda files=files: read_and_hash(files),
            }
            if headers_read:
                measured["floor: stat every header"] = lambda: [os.stat(p) for p in trace]
                measured["instead: read and hash every header"] = lambda: read_and_hash(trace)
            found = fresh().find(inputs)
            assert found is not None
            assert found.build.hit == "disk"
            costs.update(medians(measured))
            results[name] = {key: round(value, 3) for key, value in costs.items()}
    _machine.save("cache_hit", results)


if __name__ == "__main__":
    main()

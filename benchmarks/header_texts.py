"""Compares headers passed as texts with the same headers in a folder: a miss, a first hit, further hits.

One header of 1 kB and twenty of 10 kB. Each measurement is a new process; the two take turns. Only the call
of `rtcompile.compile` is measured. Needs no GPU. ``--save`` writes
benchmarks/results/header_texts.json.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import _machine

ROUNDS = int(os.environ.get("ROUNDS", "9"))

CHILD = r"""
import json, statistics, sys, time
who, folder, headers = json.load(sys.stdin)
import rtcompile
source = "".join(f'#include "{name}"\n' for name in headers)
source += 'extern "C" __global__ void k(int* x) { *x = value0; }'
given = {"headers": headers} if who == "texts" else {"options": (f"-I{folder}",)}
def once():
    begin = time.perf_counter()
    code = rtcompile.compile(source, arch="sm_80", **given)
    return (time.perf_counter() - begin) * 1e3, code.build.hit
first, hit = once()
more = statistics.median(once()[0] for _ in range(100))
print(json.dumps([first, hit, more]))
"""
CASES = {"1 header of 1 kB": (1, 1_000), "20 headers of 10 kB": (20, 10_000)}


def process(who: str, folder: str, headers: dict[str, str], cache: str) -> tuple[float, str, float]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps([who, folder, headers]),
        env={**os.environ, "RTCOMPILE_CACHE_DIR": cache},
        text=True,
        capture_output=True,
        check=True,
    )
    first, hit, more = json.loads(done.stdout)
    return first, hit, more


def measure(count: int, size: int, root: str) -> dict[str, object]:
    lines = "// a line of a header that some code generator wrote\n"
    texts = {
        f"part{i}.cuh": f"#pragma once\nconstexpr int value{i} = {i};\n"
        + lines * (size // len(lines))
        for i in range(count)
    }
    folder = Path(root, "headers")
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text)
    took: dict[str, dict[str, list[float]]] = {}
    for number in range(ROUNDS):
        for who in ("a folder", "texts"):
            of = took.setdefault(who, {"miss": [], "first hit": [], "further hits": []})
            cache = os.path.join(root, f"{who} {number}")
            miss, hit, _ = process(who, str(folder), texts, cache)
            assert hit is None
            first, hit, more = process(who, str(folder), texts, cache)
            assert hit
            for name, value in zip(of, (miss, first, more), strict=True):
                of[name].append(value)
    medians = {
        who: {f"{name} ms": round(statistics.median(values), 3) for name, values in of.items()}
        for who, of in took.items()
    }
    ratios = {
        f"texts / a folder, {name}": round(
            statistics.median(
                ours / theirs for ours, theirs in zip(took["texts"][name], values, strict=True)
            ),
            2,
        )
        for name, values in took["a folder"].items()
    }
    return {**medians, **ratios}


def main() -> None:
    results = {}
    for name, (count, size) in CASES.items():
        with tempfile.TemporaryDirectory() as root:
            results[name] = measure(count, size, root)
    _machine.save("header_texts", results)


if __name__ == "__main__":
    main()

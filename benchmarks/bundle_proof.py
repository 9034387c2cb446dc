"""Measures `bundle verify --rebuild`: how many builds are reproduced byte by byte, and their times.

The kernels of examples/fastrows and of the example cute_tiled_copy for four architectures and as PTX. The
bundle is built with an empty cache and rebuilt, past all caches, on the same machine. Needs no GPU.
``--save`` writes benchmarks/results/bundle_proof.json.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import rtcompile
from benchmarks import _machine
from examples import cute_tiled_copy
from rtcompile.cli import bundling, to_bundle
from rtcompile.lookup.bundles import Bundle

ARCHS = ("sm_80", "sm_90a", "sm_100a", "sm_120a", "compute_80")
FASTROWS = Path(__file__).parents[1] / "examples" / "fastrows"


def measure(targets: list[object], path: str) -> dict[str, object]:
    begin = time.perf_counter()
    built = bundling.bundle(targets, path, archs=ARCHS)
    plain = time.perf_counter() - begin
    bundle = Bundle(path)
    begin = time.perf_counter()
    proven = len(to_bundle.provenance(bundle))
    verified = time.perf_counter() - begin
    begin = time.perf_counter()
    rebuilt = to_bundle.rebuild(bundle, bundling.works(targets, ARCHS))
    again = time.perf_counter() - begin
    assert len(built) == proven == len(rebuilt)
    return {
        "builds": proven,
        "the same, byte by byte": sum(outcome == "same" for *_, outcome in rebuilt),
        "others": [each for each in rebuilt if each[-1] != "same"],
        "bytes of code": sum(len(code.code) for _, code in built),
        "seconds a build, when bundled": round(plain / proven, 3),
        "seconds a build, rebuilt and compared": round(again / proven, 3),
        "milliseconds to verify and name the provenance of all": round(verified * 1e3, 1),
    }


def main() -> None:
    sys.path.insert(0, str(FASTROWS))
    example = rtcompile.CompileRequest(
        cute_tiled_copy.SOURCE,
        options=cute_tiled_copy.OPTIONS,
        name_expressions=cute_tiled_copy.NAME_EXPRESSIONS[:1],
        name="cute_tiled_copy.cu",
    )
    of: dict[str, list[object]] = {"fastrows": ["fastrows"], "cute_tiled_copy": [example]}
    results = {}
    for name, targets in of.items():
        with tempfile.TemporaryDirectory() as folder:
            os.environ["RTCOMPILE_CACHE_DIR"] = os.path.join(folder, "cache")
            results[name] = measure(targets, os.path.join(folder, "kernels.rtcb"))
    _machine.save("bundle_proof", results)


if __name__ == "__main__":
    main()

"""Verifying a bundle: the code for each GPU, its provenance, and a comparison with a rebuild.

The kernels of the package [fastrows](fastrows) are compiled into one file, as in its wheel. The matrix shows for
each generation of GPUs whether it gets machine code, PTX or nothing, and the oldest driver; the provenance lists
compiler, options and header digests; the rebuild compiles everything again and compares byte by byte. All four are
commands, and none needs a GPU. Run it: ``python -m examples.proven_bundle``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PACKAGES = Path(__file__).parent / "fastrows"  # the folder in which the package lies
ARCHS = "sm_80,sm_90a,compute_80"


def command(*words: str) -> str:
    """Run ``rtcompile bundle …`` where the package can be imported; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "rtcompile", "bundle", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGES), *sys.path])},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def prove(bundle: str) -> dict[str, Any]:
    """Build the bundle, and return the tables and figures that prove it."""
    command("fastrows", "--arch", ARCHS, "-o", bundle)
    rebuilt = json.loads(command("verify", bundle, "fastrows", "--rebuild", "--json"))
    provenance = json.loads(command("provenance", bundle))["bundles"][0]["builds"]
    return {
        "matrix": command("matrix", bundle),
        "provenance": provenance,
        "rebuilt": [build["outcome"] for build in rebuilt["builds"]],
    }


def main() -> None:
    """Print what is proven of a bundle in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        proven = prove(os.path.join(folder, "kernels.rtcb"))
    print(proven["matrix"])
    for build in proven["provenance"]:
        headers = ", ".join(header["name"] for header in build["headers"][:2])
        print(f"{build['arch']} {build['kind']}: {build['compiler']}, {build['digest'][:12]}…")
        print(f"  {len(build['headers'])} headers: {headers}, …")
    same = proven["rebuilt"].count("same")
    print(f"rebuilt: {same} of {len(proven['rebuilt'])} are the same, byte by byte")


if __name__ == "__main__":
    main()

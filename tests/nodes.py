"""Simulated nodes of a cluster: each has its own home, cache and locks; all share one store."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rtcompile.extras.cluster.entries import RemoteSettings
from rtcompile.extras.cluster.stores import Stores
from tests.processes import started

KEY = b"0123456789abcdef0123456789abcdef"


def key_file(folder: Path) -> str:
    """Return the file of the team's key, and create it if necessary."""
    path = folder / "key"
    if not path.exists():
        path.write_bytes(KEY)
        path.chmod(0o600)
    return str(path)


def environment(folder: Path, node: str, address: str, **more: str) -> dict[str, str]:
    """Return the environment variables that a process on a node adds or changes."""
    home = folder / node
    home.mkdir(exist_ok=True)
    return {
        "HOME": str(home),
        "RTCOMPILE_CACHE_DIR": str(home / "cache"),
        "RTCOMPILE_REMOTE": address,
        "RTCOMPILE_REMOTE_KEY_FILE": key_file(folder),
        **more,
    }


# Builds the listed sources, and prints the hit of each, and the warnings.
_PROGRAM = """
import json, sys, time, warnings
reported = json.loads(sys.argv[1])
import rtcompile
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    if reported["waits"]:
        print("ready", flush=True)
        sys.stdin.readline()
    begin = time.monotonic()
    codes = [rtcompile.compile(source, arch="sm_80") for source in reported["sources"]]
    seconds = time.monotonic() - begin
print(json.dumps({
    "hits": [code.build.hit for code in codes], "seconds": seconds,
    "warnings": [str(warning.message) for warning in caught],
    "loaded": [name for name in ("redis", "obstore", "rtcompile.extras.cluster") if name in sys.modules],
}))
"""


def start(
    env: Mapping[str, str], sources: list[str], *, waits: bool = False
) -> subprocess.Popen[str]:
    """Start a process that builds sources, optionally only at `begin_together`."""
    reported = json.dumps({"sources": sources, "waits": waits})
    # A real store runs on another machine, so it must not wait for a processor of this one.
    command = ["nice", "-n", "10", sys.executable, "-c", _PROGRAM, reported]
    return started(*command, environ=env, stderr=subprocess.PIPE)


def begin_together(processes: list[subprocess.Popen[str]]) -> None:
    """Wait until all processes have finished their imports, and let them begin."""
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()


def result(process: subprocess.Popen[str], seconds: float = 120) -> dict[str, object]:
    """Return what a process printed."""
    out, error = process.communicate(timeout=seconds)
    assert process.returncode == 0, error
    found: dict[str, object] = json.loads(out)
    return found


def source(number: int) -> str:
    """Return a small kernel that depends on the number."""
    return f'extern "C" __global__ void k(int* out) {{ out[0] = {number}; }}'


def remote(address: str, key_file: str, **more: object) -> Stores:
    """Return this process's end of a store."""
    return Stores(RemoteSettings((address,), key_file=key_file, **more))  # type: ignore[arg-type]


def pushed(stores: Stores, *entries: tuple[str, str, bytes]) -> None:
    """Push entries, and wait until they are in the store."""
    stores.push(lambda *_: entries)
    assert stores.flush(10.0)

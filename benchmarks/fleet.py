"""Measures waits, shared work and fetches of a fleet, with real servers behind a proxy that delays replies.

- Hits: a node with an empty cache requests kernels that the store has, with a constant delay of each reply, and with
  occasional long delays.
- A store that is stopped (SIGSTOP) during many builds: the time that the process loses.
- Stuck leases, since their holder is stopped (SIGSTOP), and forged ones: the time that another node waits.
- Four nodes with one job each that request the same kernels at once, in comparison with a single node. The machine has
  too few processors for this, so a compile also sleeps.
- Versions of a header (1,000): requests and bytes of a hit, by how many versions the store has.
- A process that ends right after a build: seconds until its lease is gone.
- A simulation of 10,000 ranks on 1,250 nodes that request 500 kernels, by the costs above (`benchmarks.fleet_paper`).

FLEET_PYTHONPATH names another checkout whose rtcompile is measured in the first two, too. KERNELS is the number of kernels.
``--save`` writes benchmarks/results/fleet_cpu.json; PARTS names parts of that file, separated by commas, and then the
others stay as they are. Needs redis-server and, for S3, moto. No GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import redis

from benchmarks import _machine, fleet_paper
from rtcompile.extras.cluster.entries import UNSIGNED
from tests import nodes, servers

KERNELS = int(os.environ.get("KERNELS", "100"))
OTHER = os.environ.get("FLEET_PYTHONPATH", "")

# Requests kernels one by one, and stops the store after `die` of them. The waits of the main thread are measured.
ONE_BY_ONE = r"""
import json, os, signal, sys, time, warnings
task = json.loads(sys.argv[1])
sys.path[:0] = [task["path"]] if task["path"] else []
import rtcompile
from rtcompile.extras.cluster.level import Level
warnings.simplefilter("ignore")
waited = []
send = Level.send
import threading
def measured(self, *given, **more):
    begin = time.monotonic()
    try:
        return send(self, *given, **more)
    finally:
        if threading.current_thread() is threading.main_thread():
            waited.append(time.monotonic() - begin)
Level.send = measured
begin = time.monotonic()
hits = 0
for n in range(task["first"], task["first"] + task["count"]):
    if n - task["first"] == task["die"]:
        os.kill(task["server"], signal.SIGSTOP)
        waited.clear()
    code = rtcompile.compile(task["source"] % n, arch="sm_80")
    hits += code.build.hit == "remote"
print(json.dumps({"hits": hits, "seconds": time.monotonic() - begin, "waited": sum(waited)}))
"""
SOURCE = 'extern "C" __global__ void k(int* out) { out[0] = %d; }'

HOLDING = r"""
import json, sys, threading, time
import rtcompile
from rtcompile.build import miss
miss.Miss.run = lambda self: time.sleep(600)
count, source = json.loads(sys.argv[1])
for n in range(count):
    given = {"arch": "sm_80"}
    threading.Thread(target=rtcompile.compile, args=(source % n,), kwargs=given).start()
time.sleep(600)
"""
WAITING = r"""
import json, sys, time
import rtcompile
count, source = json.loads(sys.argv[1])
rtcompile.compile("__global__ void first() {}", arch="sm_80")
taken = []
for n in range(count):
    begin = time.monotonic()
    assert rtcompile.compile(source % n, arch="sm_80").build.hit is None
    taken.append(round(time.monotonic() - begin, 2))
print(json.dumps(taken))
"""

BATCH = r"""
import json, sys, threading, time
import rtcompile
from rtcompile.build import miss
one_job = threading.Lock()
count, seconds, at, source = json.loads(sys.argv[1])
built = miss.Miss.run
def run(self):
    with one_job:
        time.sleep(seconds)
        return built(self)
miss.Miss.run = run
rtcompile.compile("__global__ void first() {}", arch="sm_80")
requests = [rtcompile.CompileRequest(source % n, arch="sm_80") for n in range(count)]
time.sleep(max(0.0, at - time.time()))
begin = time.monotonic()
codes = rtcompile.compile_many(requests)
print(json.dumps([time.monotonic() - begin, sum(c.build.hit is None for c in codes)]))
"""

# Builds each version of a header; at times another node requests some of them.
VERSIONS = r"""
import json, os, pathlib, sys
import rtcompile
from rtcompile.extras.cluster.stores import current
count, folder, source = json.loads(sys.argv[1])
folder, found = pathlib.Path(folder), {}
def build(node, version):
    os.environ["RTCOMPILE_CACHE_DIR"] = str(folder / node)
    (folder / "mine.h").write_text(f"#define N {version}\n")
    return rtcompile.compile(source, arch="sm_80", options=(f"-I{folder}",)).build
for number in range(count):
    assert build("first", number).hit is None
    if number + 1 in (1, 2, 12, 100, count):
        assert current().flush(30)
        for version in {0, number // 2, number}:
            counts = current().levels[0].counts
            before = counts.copy()
            info = build(f"of {number} {version}", version)
            seen = [info.hit, *(counts[n] - before[n] for n in ("requests", "bytes_read"))]
            found[f"version {version} of {number + 1}"] = seen
print(json.dumps(found))
"""

ENDS = {
    "SIGTERM": "os.kill(os.getpid(), 15)",
    "os._exit": "os._exit(0)",
    "os._exit of a child of fork": "os._exit(0)",
    "SIGKILL": "os.kill(os.getpid(), 9)",
}
ENDING = r"""
import os, sys
import rtcompile
from rtcompile.extras.cluster.stores import current
rtcompile.compile("__global__ void first() {}", arch="sm_80")
if "fork" in sys.argv[1] and os.fork():
    os.wait()
    os._exit(0)
rtcompile.compile("__global__ void last() {}", arch="sm_80")
"""


class Proxy:
    """Passes bytes to a port, and delays each reply by `delay()` seconds."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        self.base, self.tail = 0.0, 0.0
        self._chance = random.Random(3)
        threading.Thread(target=self._serve, daemon=True).start()

    def _delay(self) -> float:
        return 0.2 if self._chance.random() < self.tail else self.base

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                try:
                    theirs = socket.create_connection(("127.0.0.1", self._to))
                except OSError:  # the server has ended
                    ours.close()
                    continue
                requested = threading.Event()
                for pair, slow in (((ours, theirs), False), ((theirs, ours), True)):
                    given = (*pair, slow, requested)
                    threading.Thread(target=self._pass, args=given, daemon=True).start()

    def _pass(
        self, source: socket.socket, target: socket.socket, slow: bool, requested: threading.Event
    ) -> None:
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(1 << 18):
                if not slow:
                    requested.set()
                elif requested.is_set():  # the first chunk of a reply
                    requested.clear()
                    time.sleep(self._delay())
                target.sendall(data)


@contextlib.contextmanager
def delayed_redis() -> Iterator[tuple[servers.Server, Proxy, str]]:
    with servers.redis() as server:
        proxy = Proxy(server.port)
        yield server, proxy, server.address.replace(str(server.port), str(proxy.port))


def run(program: str, task: object, environ: dict[str, str]) -> object:
    command = [sys.executable, "-c", program, task if isinstance(task, str) else json.dumps(task)]
    done = subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def task(path: str, **more: object) -> dict[str, object]:
    return {"path": path, "first": 0, "die": -1, "server": 0, "source": SOURCE, **more}


def hits(path: str = "") -> dict[str, object]:
    """Fetch existing entries, with replies that are always or sometimes late."""
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name, delayed_redis() as (_, proxy, address):
        folder = Path(name)
        first = run(
            ONE_BY_ONE, task(path, count=KERNELS), nodes.environment(folder, "first", address)
        )
        found["compiled"] = first
        ways = [(f"{ms} ms", ms / 1e3, 0.0) for ms in (5, 50, 120, 200)]
        ways += [(f"{tail} % at 200 ms", 0.0, tail / 100) for tail in (2, 5, 10)]
        for number, (way, proxy.base, proxy.tail) in enumerate(ways):
            environ = nodes.environment(folder, f"node{number}", address)
            found[way] = run(ONE_BY_ONE, task(path, count=KERNELS), environ)
            print(way, found[way], file=sys.stderr)
    return found


def death(path: str = "") -> object:
    """Stop the store after half of the builds, none of which it has."""
    with tempfile.TemporaryDirectory() as name, servers.redis() as server:
        environ = nodes.environment(Path(name), "node", server.address)
        given = task(path, count=2 * KERNELS, die=KERNELS, server=server.process.pid)
        return run(ONE_BY_ONE, given, environ)


def listed(address: str, begin: str) -> list[str]:
    """Return the keys of a Redis server below one, without it."""
    found = redis.Redis.from_url(address).keys(f"rtcompile:{begin.rstrip('/')}/*")
    return [key.decode().rpartition("/")[2] for key in found]  # type: ignore[union-attr]


def false_leases(count: int = 4) -> dict[str, object]:
    """Want kernels whose leases another node has, which is stopped, or no node of the team."""
    found: dict[str, object] = {}
    for way in ("no lease", "stuck", "forged"):
        with tempfile.TemporaryDirectory() as name, servers.redis() as server:
            given = json.dumps([count, SOURCE])
            environ = {**os.environ, **nodes.environment(Path(name), "holder", server.address)}
            holder = subprocess.Popen([sys.executable, "-c", HOLDING, given], env=environ)
            try:
                stores = nodes.remote(server.address, nodes.key_file(Path(name)))
                store, envelope = stores.levels[0].store, stores.levels[0].keys[0]
                store_key = envelope.store_key
                while len(held := listed(server.address, store_key("lease", ""))) < count:
                    time.sleep(0.05)
                holder.send_signal(signal.SIGSTOP)
                for key in held:
                    data = store.get(store_key("lease", key))
                    if way == "forged":
                        fields = envelope.open("lease", key, data)
                        store.put(store_key("lease", key), UNSIGNED.seal("lease", key, fields))
                    elif way == "no lease":
                        redis.Redis.from_url(server.address).delete(
                            f"rtcompile:{store_key('lease', key)}"
                        )
                node = nodes.environment(Path(name), "node", server.address)
                found[way] = run(WAITING, given, node)
            finally:
                holder.kill()
                holder.wait()
    return found


def shared_out(count: int = 40, seconds: float = 0.5) -> dict[str, object]:
    """Four nodes of one job each, beside one."""
    found: dict[str, object] = {}
    for number in (1, 4):
        with tempfile.TemporaryDirectory() as name, servers.redis() as server:
            at = time.time() + 2.0 * number
            given = json.dumps([count, seconds, at, SOURCE])
            running = []
            for node in range(number):
                environ = nodes.environment(
                    Path(name), f"node{node}", server.address, RTCOMPILE_JOBS="1"
                )
                command = [sys.executable, "-c", BATCH, given]
                whole = {**os.environ, **environ}
                running.append(
                    subprocess.Popen(command, env=whole, stdout=subprocess.PIPE, text=True)
                )
            each = [json.loads(process.communicate()[0]) for process in running]
        name = "one node" if number == 1 else "four nodes"
        found[name] = {
            "seconds": max(s for s, _ in each),
            "compiled by each": [c for _, c in each],
        }
    one, four = (found[n]["seconds"] for n in ("one node", "four nodes"))  # type: ignore[index]
    found["ratio"] = round(four / one, 3)
    return found


def versions(count: int = 1000) -> object:
    """Fetch one of many builds of a source."""
    source = '#include <mine.h>\nextern "C" __global__ void k(int* out) { out[0] = N; }'
    with tempfile.TemporaryDirectory() as name, servers.redis() as server:
        environ = nodes.environment(Path(name), "node", server.address)
        return run(VERSIONS, json.dumps([count, name, source]), environ)


def ends() -> dict[str, object]:
    """End a process right after a build, and look when its lease is gone and what is in the store."""
    found: dict[str, object] = {}
    for way, end in ENDS.items():
        with tempfile.TemporaryDirectory() as name, servers.redis() as server:
            environ = {**os.environ, **nodes.environment(Path(name), "node", server.address)}
            command = [sys.executable, "-c", ENDING + end, way]
            subprocess.run(command, env=environ, check=False)
            ended = time.monotonic()
            stores = nodes.remote(server.address, nodes.key_file(Path(name)))
            store_key = stores.levels[0].keys[0].store_key
            while listed(server.address, store_key("lease", "")):
                time.sleep(0.005)
            seconds = time.monotonic() - ended
            kept = listed(server.address, store_key("manifest", ""))
            found[way] = {"lease gone after": round(seconds, 3), "builds kept of 2": len(kept)}
    return found


def before() -> dict[str, object]:
    """Measure the other checkout."""
    return {"hits": hits(OTHER), "a store that dies": death(OTHER)} if OTHER else {}


PARTS = {
    "hits": hits,
    "a store that dies": death,
    "leases, seconds of each build": false_leases,
    "shared out": shared_out,
    "versions": versions,
    "ends": ends,
    "on paper": fleet_paper.all_cases,
    "before": before,
}


def main() -> None:
    wanted = os.environ.get("PARTS", "").split(",")
    file = Path(_machine.__file__).parent / "results" / "fleet_cpu.json"
    results = {} if wanted == [""] else json.loads(file.read_text())["results"]
    for name, part in PARTS.items():
        if name in wanted or not wanted[0]:
            found = part()
            load = round(os.getloadavg()[0], 1)  # of the minute before
            results[name] = {"kernels": KERNELS, "load average": load, "found": found}
            _machine.save("fleet_cpu", results)


if __name__ == "__main__":
    main()

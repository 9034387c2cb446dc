"""Trials of a cluster with a shared store: foreign entries, failing stores, and one compile for all nodes."""

import contextlib
import random
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("zstandard")

import rtcompile
from rtcompile.extras.cluster.entries import UNSIGNED, Key, RemoteSettings, secret_key
from rtcompile.extras.cluster.level import Level
from rtcompile.extras.cluster.stores import Stores, current
from tests import nodes, servers
from tests.trials.record import record, tally, times

# --- entries of strangers ------------------------------------------------------------------------


def harmed(chance: random.Random, entries: dict[str, bytes]) -> tuple[str, bytes]:
    """Return an entry that is changed, cut, extended, another's or forged, with its name."""
    name, other = chance.sample([*entries], 2)
    data = bytearray(entries[name])
    harm = chance.randrange(5)
    if harm == 0:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif harm == 1:
        del data[chance.randrange(len(data)) :]
    elif harm == 2:
        data += chance.randbytes(chance.randint(1, 100))
    elif harm == 3:
        data = bytearray(entries[other])
    else:
        secret = chance.choice([None, chance.randbytes(32), nodes.KEY[:-1]])
        data = bytearray(of(secret).seal(*name.split("/")[1:], b"another's code"))
    return name, bytes(data)


def of(secret: bytes | None) -> Key:
    return UNSIGNED if secret is None else secret_key(secret)


def test_entries_of_strangers_are_not_accepted(tmp_path):
    chance = random.Random(7)
    settings = RemoteSettings((f"file://{tmp_path}/shared",), key_file=nodes.key_file(tmp_path))
    stores = Stores(settings)
    (level,) = stores.levels
    envelope = of(nodes.KEY)
    names = [(kind, str(number)) for kind in ("object", "manifest") for number in range(8)]
    entries = {envelope.store_key(*n): envelope.seal(*n, chance.randbytes(200)) for n in names}
    accepted, count = 0, times(500, 10_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(count):
            key, data = harmed(chance, entries)
            level.store = SimpleNamespace(name="held", get={key: data}.get)  # type: ignore[assignment]
            accepted += level.get(*key.split("/")[1:]) is not None
    record("entry of a shared store changed, cut, swapped, replayed or forged", count, accepted)
    assert not accepted


# --- stores that fail ----------------------------------------------------------------------------


class Proxy:
    """Passes bytes on to a port; after `slow`, each reply takes a second."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.delay = 0.0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                try:
                    theirs = socket.create_connection(("127.0.0.1", self._to))
                except OSError:  # the server was killed
                    ours.close()
                    continue
                for pair, slow in (((ours, theirs), False), ((theirs, ours), True)):
                    threading.Thread(target=self._pass, args=(*pair, slow), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, slow: bool) -> None:
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(1 << 16):
                time.sleep(self.delay if slow else 0.0)
                target.sendall(data)

    def close(self) -> None:
        self._listener.close()


HARMS: dict[str, Callable[[servers.Server, Proxy], object]] = {
    "kill": lambda server, _: server.kill(),
    "pause": lambda server, _: server.pause(),
    "slow": lambda _, proxy: setattr(proxy, "delay", 1.0),
    "fill": lambda server, _: send(server, "CONFIG", "SET", "maxmemory", "1000"),
    "forbid writing": lambda server, _: send(server, "ACL", "SETUSER", "default", "-@write"),
}
BY_NAME = {"redis": servers.redis, "s3": servers.s3}


def send(server: servers.Server, *words: str) -> None:
    import redis

    with contextlib.closing(redis.Redis(port=server.port)) as client:
        client.execute_command(*words)


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the list of seconds that the caller's thread waited for replies of stores."""
    waited: list[float] = []
    send = Level.send

    def measured(self: Level, *given: object, **more: object) -> object:
        begin = time.monotonic()
        try:
            return send(self, *given, **more)  # type: ignore[arg-type]
        finally:
            if threading.current_thread() is threading.main_thread():
                waited.append(time.monotonic() - begin)

    monkeypatch.setattr(Level, "send", measured)
    return waited


@contextlib.contextmanager
def node(tmp_path: Path, name: str, address: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in nodes.environment(tmp_path, name, address).items():
            patch.setenv(variable, value)
        yield


@pytest.mark.parametrize(
    ("store", "harm"),
    [*(("redis", harm) for harm in HARMS), ("s3", "kill"), ("s3", "pause"), ("s3", "slow")],
)
def test_a_store_that_fails_in_mid_run_fails_no_build(tmp_path, lost, store, harm, monkeypatch):
    before, after = 3, times(4, 50)

    def built(first: int, count: int) -> int:
        codes = [rtcompile.compile(nodes.source(first + n), arch="sm_80") for n in range(count)]
        return sum(code.build.hit is None for code in codes)

    with BY_NAME[store]() as server, contextlib.closing(Proxy(server.port)) as proxy:
        address = server.address.replace(str(server.port), str(proxy.port))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        with node(tmp_path, "a", address):
            built(0, before)
            assert current().flush(10.0)
            HARMS[harm](server, proxy)
            lost.clear()
            with pytest.warns(rtcompile.RtcompileWarning) as warned:
                count = built(before, after)
    kind = f"build beside a store that fails in mid-run ({store}, {harm})"
    record(kind, after, after - count)
    record("process that loses more than a second by a store that fails", 1, int(sum(lost) > 1.0))
    assert count == after
    assert sum(lost) <= 1.0
    assert len(warned) == 1


def in_threads(sources: list[str]) -> list[rtcompile.ObjectCode]:
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(lambda source: rtcompile.compile(source, arch="sm_80"), sources))


def in_a_batch(sources: list[str]) -> list[rtcompile.ObjectCode]:
    requests = [rtcompile.CompileRequest(source, arch="sm_80") for source in sources]
    return rtcompile.compile_many(requests)


@pytest.mark.parametrize("build", [in_threads, in_a_batch], ids=lambda build: build.__name__)
@pytest.mark.parametrize("store", [servers.redis, servers.s3], ids=lambda store: store.__name__)
def test_a_silent_store_costs_all_threads_and_the_exit_one_second_together(
    tmp_path, monkeypatch, store, build
):
    waits: list[tuple[float, float]] = []

    def measured(wait: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*given: object, **more: object) -> object:
            if len(waits) >= 10:
                server.pause()
            begin = time.monotonic()
            try:
                return wait(*given, **more)
            finally:
                if more.get("waiting", True):
                    waits.append((begin, time.monotonic()))

        return wrapped

    with store() as server, node(tmp_path, "a", server.address):
        rtcompile.compile(nodes.source(0), arch="sm_80")
        assert current().flush(10.0)
        monkeypatch.setattr(Level, "send", measured(Level.send))
        sources = [nodes.source(number) for number in range(1, times(12, 100))]
        with pytest.warns(rtcompile.RtcompileWarning) as warned:
            codes = build(sources)
        monkeypatch.setattr(current(), "flush", measured(current().flush))
        current().flush()
    # Simultaneous waits of several threads count once.
    lost, until = 0.0, 0.0
    for begin, end in sorted(waits):
        lost += max(0.0, end - max(begin, until))
        until = max(until, end)
    name = f"{store.__name__}, {build.__name__.replace('_', ' ')}"
    record(f"process that loses more than a second by a silent store ({name})", 1, int(lost > 1.0))
    assert len(codes) == len(sources)
    assert lost <= 1.5  # includes waits for a processor
    assert len(warned) == 1


@pytest.mark.parametrize("harm", ["fill", "forbid writing"])
def test_a_store_that_cannot_be_written_is_still_read(tmp_path, harm):
    with servers.redis() as server, contextlib.closing(Proxy(server.port)) as proxy:
        for name, expected in (("a", None), ("b", "remote")):
            with node(tmp_path, name, server.address):
                assert rtcompile.compile(nodes.source(1), arch="sm_80").build.hit == expected
                assert current().flush(10.0)
            HARMS[harm](server, proxy) if name == "a" else None
        with node(tmp_path, "c", server.address):
            with pytest.warns(rtcompile.RtcompileWarning, match="not written to"):
                assert rtcompile.compile(nodes.source(2), arch="sm_80").build.hit is None
            assert rtcompile.compile(nodes.source(1), arch="sm_80").build.hit == "remote"


# --- edits ---

EDITED = """#include <a.h>
#include <deep/b.h>
#if __has_include(<c.h>)
#include <c.h>
#else
#define C 9
#endif
extern "C" __global__ void k(int* out) { out[0] = 10000 + A * 100 + B * 10 + C; }
"""


def test_an_edit_on_one_node_leaves_no_stale_code_on_another(tmp_path):
    chance = random.Random(11)
    values = {name: {"a.h": 0, "deep/b.h": 0} for name in "abc"}
    came = 0
    for name, headers in values.items():
        for header in headers:
            path = tmp_path / f"headers {name}" / header
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#define {path.stem.upper()} 0\n")
    kind = "header edited, made or removed on one of three nodes, then code for other contents"
    with servers.redis() as server, tally(kind) as trial:
        for _ in range(times(12, 400)):
            name, header = chance.choice("abc"), chance.choice(["a.h", "deep/b.h", "c.h"])
            here, path = values[name], tmp_path / f"headers {name}" / header
            here[header] = chance.randrange(3)
            path.write_text(f"#define {path.stem.upper()} {here[header]}\n")
            if header == "c.h" and chance.random() < 0.5:
                path.unlink()
                del here[header]
            wanted = 10000 + here["a.h"] * 100 + here["deep/b.h"] * 10 + here.get("c.h", 9)
            with trial(), node(tmp_path, name, server.address):
                options = (f"-I{tmp_path}/headers {name}",)
                code = rtcompile.compile(EDITED, arch="sm_80", target="ptx", options=options)
                came += code.build.hit == "remote"
                assert f", {wanted};".encode() in code.code
                assert current().flush(10.0)
    assert came


# --- one compile ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", [1, 50])
def test_many_processes_of_many_nodes_compile_a_kernel_once(tmp_path, kernels):
    count, each = times((2, 2), (4, 16))
    kernels = times(min(kernels, 6), kernels)
    sources = [nodes.source(number) for number in range(kernels)]
    with servers.redis() as server:
        here = [nodes.environment(tmp_path, f"node{n}", server.address) for n in range(count)]
        running = [nodes.start(node, sources, waits=True) for node in here for _ in range(each)]
        nodes.begin_together(running)
        found = [nodes.result(process, 500) for process in running]
    compiled = sum(hits["hits"].count(None) for hits in found)  # type: ignore[attr-defined]
    kind = f"kernel that {count * each} processes of {count} nodes want at once, and more than one compiles"
    record(kind, kernels, compiled - kernels)
    assert compiled == kernels

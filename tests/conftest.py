"""Shared fixtures: a separate cache, a clean environment, compilers, stores, workers, packages."""

import fcntl
import functools
import gc
import importlib.util
import json
import os
import shutil
import signal
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rtcompile.cli import bundling, main
from rtcompile.compilers import observed
from rtcompile.extras.cluster.entries import SharedStore, open_store
from tests import nodes, servers
from tests.jobs import Fifo, Pool
from tests.key_inputs import HeaderTree
from tests.lookups import CAPABILITY
from tests.packages import Package
from tests.plain_nvrtc import PlainNvrtc
from tests.processes import python
from tests.wheels import built_rtcompile, unpack

SOURCE = """#include "width.h"
template<class T> __global__ void f(T* x) { *x = WIDTH; }
extern "C" __global__ void __launch_bounds__(256) g(int* x) { *x = 1; }
"""

# If a shell starts the tests in the background, all their processes ignore Ctrl-C; tests that send
# one would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# --- requirements of tests ----------------------------------------------------------------------------

SEARCH = "from rtcompile import toolkit as t; c = t.current(); print(*map(bool, (c.nvrtc, c.nvcc, c.host_compiler)))"


@functools.cache
def installed() -> tuple[bool, bool]:
    """Return whether another process finds NVRTC, and NVCC with its host compiler."""
    environ = {"PYTHONPATH": str(Path(__file__).parents[1]), "CUPY_CACHE_IN_MEMORY": "1"}
    done = python(SEARCH, environ=environ, check=True)
    nvrtc, nvcc, host = (word == "True" for word in done.stdout.split())
    return nvrtc, nvcc and host


def lacking(need: str) -> str | None:
    """Return why a test with this marker cannot run here, or None."""
    if need == "needs_compiler":
        return None if installed()[0] else "NVRTC is not installed"
    if need == "needs_nvcc":
        return None if installed()[1] else "nvcc or its host compiler is not installed"
    return None if shutil.which("redis-server") else "redis-server is not installed"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that cannot run here, with the reason; ``-m "not needs_compiler"`` does not check."""
    for need in ("needs_compiler", "needs_nvcc", "needs_redis"):
        if item.get_closest_marker(need) and (reason := lacking(need)):
            pytest.skip(reason)


# --- rows of a matrix ---


@pytest.hookimpl(tryfirst=True)  # before pytest looks at ``-m "not slow"``
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow the rows of matrices that `make test` leaves out: it takes `some`, and no slow ones."""
    matrices: dict[tuple[Path, str], list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and not item.get_closest_marker("slow"):
            mark = item.get_closest_marker("some")
            if mark and mark.kwargs.items() <= item.callspec.params.items():
                matrices.setdefault((item.path, item.originalname), []).append(item)
    for (_, test), rows in matrices.items():
        # Tests of the same rows begin with different ones.
        first = zlib.crc32(test.encode()) % len(rows)
        turned = [*rows[first:], *rows[:first]]
        count = next(rows[0].iter_markers("some")).args
        taken = spread(turned, *count) if count else covering(turned)
        for row in turned:
            if row not in taken:
                row.add_marker(pytest.mark.slow)


def spread(rows: list[pytest.Function], count: int) -> list[pytest.Function]:
    return [rows[number * len(rows) // count] for number in range(count)]


def covering(rows: list[pytest.Function]) -> list[pytest.Function]:
    """Return few rows that contain each value of each parameter, in turn."""
    taken: list[pytest.Function] = []
    uses: Counter[tuple[str, str]] = Counter()
    while True:
        # The row with the most new values, and of several the one whose values were used least.
        new = {row: sum(not uses[value] for value in values_of(row)) for row in rows}
        best = max(rows, key=lambda row: (new[row], -sum(uses[value] for value in values_of(row))))
        if not new[best]:
            return taken
        taken.append(best)
        uses.update(values_of(best))


def values_of(row: pytest.Function) -> list[tuple[str, str]]:
    return [(name, repr(value)) for name, value in row.callspec.params.items()]


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collections, which would take 0.1 s each."""
    gc.collect()
    gc.freeze()


# --- the environment of every test --------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def environment_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tests and fixtures from reading the developer's settings and writing to the developer's cache."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in list(os.environ):
            if name.startswith(("RTCOMPILE_", "CUPY_")) and name != "RTCOMPILE_TEST_CUDA13":
                monkeypatch.delenv(name)
        monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def own_environment(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give each test its own cache, without the bundles of other tests."""
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr("rtcompile.lookup.bundles._bundles", {})


@pytest.fixture(scope="session")
def cuda13_prefix() -> Path:
    """The folder of a CUDA 13 toolkit installed from wheels (`make test` makes one)."""
    folder = os.environ.get("RTCOMPILE_TEST_CUDA13", "")
    if not folder:
        pytest.skip("RTCOMPILE_TEST_CUDA13 names no folder with CUDA 13 wheels; `make test` does")
    return Path(folder)


@pytest.fixture(scope="session")
def nvrtc12() -> PlainNvrtc:
    """The NVRTC of the environment's CUDA 12 wheels."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if list(Path(folder).glob("cuda_nvrtc/lib/libnvrtc.so.12")):
            return PlainNvrtc(Path(folder) / "cuda_nvrtc")
    pytest.skip("nvidia-cuda-nvrtc-cu12 is not installed here")


@pytest.fixture(scope="session")
def nvrtc13(cuda13_prefix: Path) -> PlainNvrtc:
    """The NVRTC of the CUDA 13 folder."""
    return PlainNvrtc(cuda13_prefix / "nvidia" / "cu13")


@pytest.fixture(params=["nvrtc12", "nvrtc13"])
def nvrtc(request: pytest.FixtureRequest) -> PlainNvrtc:
    """Each NVRTC in turn."""
    found: PlainNvrtc = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The folder for the test's cache."""
    return tmp_path / "cache"


@pytest.fixture
def tree(tmp_path: Path) -> HeaderTree:
    """A folder with a header of the user and one of the toolkit."""
    tree = HeaderTree(tmp_path / "here", "user0", "cudart")
    tree.write("user0/a.h", "one")
    tree.write("cudart/b.h", "toolkit")
    return tree


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source that includes a header beside it, in the working directory."""
    (tmp_path / "width.h").write_text("#define WIDTH 42\n")
    (tmp_path / "k.cu").write_text(SOURCE)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/k.cu").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "k.cu"


@pytest.fixture
def run_json(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a verb with ``--json``; return its exit code and the object it printed."""

    def run(*argv: str) -> tuple[int, dict[str, Any]]:
        before, mark, after = list(argv), [], []
        if "--" in argv:
            at = argv.index("--")
            before, mark, after = list(argv[:at]), ["--"], list(argv[at + 1 :])
        code = main([*before, "--json", *mark, *after])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture(params=["folder", pytest.param("redis", marks=pytest.mark.needs_redis)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a store: a folder, and a Redis server."""
    if request.param == "folder":
        yield f"file://{tmp_path}/shared"
    else:
        with servers.redis() as server:
            yield server.address


@pytest.fixture
def store(address: str) -> SharedStore:
    return open_store(address)


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    """The file of a team's key."""
    return nodes.key_file(tmp_path)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Return a function that makes this process one of a node with a store; after the test nothing is written."""

    def go(node: str, address: str, **more: str) -> None:
        for name, value in nodes.environment(tmp_path, node, address, **more).items():
            monkeypatch.setenv(name, value)

    yield go
    stores_of = sys.modules.get("rtcompile.extras.cluster.stores")
    for stores in [] if stores_of is None else stores_of._stores.values():
        if stores is not None:
            stores.held.clear()  # so no lease is renewed, with a warning, in another test
            assert stores.flush(10.0)


@pytest.fixture
def header(tmp_path: Path) -> Path:
    """A header in a project's folder."""
    path = tmp_path / "project" / "include" / "scale.cuh"
    path.parent.mkdir(parents=True)
    path.write_text("#define SCALE 3\n")
    return path


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate folder for the files of this test's workers, so leftovers can be found."""
    folder = tmp_path / "scratch"
    folder.mkdir(mode=0o700)  # independent of the umask
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def pool(scratch: Path) -> Iterator[Pool]:
    pool = Pool(jobs=2)
    yield pool
    pool.close()
    assert list(scratch.iterdir()) == []


@pytest.fixture
def fifo(tmp_path: Path) -> Fifo:
    return Fifo(tmp_path)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    return Package(tmp_path / "site-packages", "shipped_kernels", monkeypatch)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that makes a folder of a name, once for all processes of a run."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(name: str, make: Callable[[Path], object]) -> Path:
        with (base / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (base / name).exists():
                own = base / f"{name} being made"
                shutil.rmtree(own, ignore_errors=True)
                own.mkdir()
                make(own)
                own.rename(base / name)
        return base / name

    return made


@pytest.fixture(scope="session")
def rtcompile_wheel(once: Callable[..., Path]) -> Path:
    (wheel,) = once("rtcompile", built_rtcompile).glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def build_environment(once: Callable[..., Path], rtcompile_wheel: Path) -> Path:
    """A folder with an installed rtcompile, since the hooks are found by its metadata."""
    return once("installed", functools.partial(unpack, rtcompile_wheel))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package's bundle (sm_80, sm_90a and PTX) and the cache of its builds."""
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(folder / "cache"))
        package = Package(folder, "shipped_kernels", monkeypatch)
        package.load()
        bundling.bundle([package.name], package.bundle, archs=("sm_80", "sm_90a", "compute_80"))
    return folder


@pytest.fixture
def bundled(package: Package, built: Path) -> Package:
    """The package with its bundle, on the machine that built it."""
    shutil.copy(built / package.name / package.bundle.name, package.bundle)
    aside = shutil.ignore_patterns("*-aside")  # a precompiled header that is still being made
    cache = os.environ["RTCOMPILE_CACHE_DIR"]
    shutil.copytree(built / "cache", cache, ignore=aside, dirs_exist_ok=True)
    return package


@pytest.fixture
def absent_device(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake device, an empty cache, and a process without earlier look-ups."""
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(cache))
    monkeypatch.setattr("rtcompile.lookup.find.compute_capability", lambda: CAPABILITY)
    monkeypatch.setattr("rtcompile.lookup.environment._environment", None)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the compilers and linkers in the order in which they were run."""
    names: list[str] = []
    for name, attribute in (("nvrtc", "compile"), ("nvcc", "compile"), ("nvjitlink", "link")):
        module = importlib.import_module(f"rtcompile.compilers.{name}")
        real = getattr(module, attribute)

        def spy(*args: Any, _real: Any = real, _name: str = name, **kwargs: Any) -> Any:
            names.append(_name)
            return _real(*args, **kwargs)

        monkeypatch.setattr(module, attribute, spy)
    return names


@pytest.fixture
def at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Callable[[], object]]]:
    """A list of functions that run after a compiler, before its result is used."""
    then: list[Callable[[], object]] = []

    def after(original: Callable[..., object], *given: Any, **more: Any) -> object:
        # Headers of earlier tests may still be precompiled in other threads.
        while then and str(tmp_path) in repr(given):
            then.pop()()
        return original(*given, **more)

    monkeypatch.setenv("RTCOMPILE_PCH", "0")
    for name in ("record", "file_set"):  # NVCC's and NVRTC's
        monkeypatch.setattr(observed, name, functools.partial(after, getattr(observed, name)))
    yield then
    assert not then


@pytest.fixture
def value_header(tmp_path: Path) -> Path:
    """A header with one macro, in the second of two folders, old enough for a build to be cached."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    path = tmp_path / "second" / "value.h"
    path.write_text("#define VALUE 1\n")
    time.sleep(0.02)  # out of the file clock's tick
    return path

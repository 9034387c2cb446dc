"""Tests of builds with a shared store behind the local cache: nodes fetch each other's builds."""

import contextlib
import json
import os
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("zstandard")

import rtcompile
from rtcompile.errors import JitDisabled, RtcompileWarning
from rtcompile.extras.cluster.entries import read_keys
from rtcompile.extras.cluster.folder_store import FolderStore
from rtcompile.extras.cluster.stores import current
from tests import nodes, servers
from tests.tables import from_table
from tests.toolkits import needs_host_compiler

pytestmark = pytest.mark.needs_compiler


def build(source: str, **arguments: object) -> str | None:
    """Return the hit of a build, after it was written to the stores."""
    code = rtcompile.compile(source, **{"arch": "sm_80", **arguments})  # type: ignore[arg-type]
    stores = current()
    assert stores is None or stores.flush(10.0)
    return code.build.hit


def test_fetched_code_has_the_builders_information(on, address):
    given = {"arch": "sm_80", "name_expressions": ["k<1>"]}
    template = "template<int N> __global__ void k() {}"
    on("a", address)
    built = rtcompile.compile(template, **given)
    current().flush(10.0)
    on("b", address)
    found, again = (rtcompile.compile(template, **given) for _ in range(2))

    assert (built.build.hit, found.build.hit, again.build.hit) == (None, "remote", "memory")
    assert (found.code, found.lowered_names) == (built.code, built.lowered_names)
    assert found.build.compiled_in == pytest.approx(built.build.compiled_in, abs=0.1)


def with_header(folder: Path, text: str) -> dict[str, object]:
    folder.mkdir(exist_ok=True)
    (folder / "mine.h").write_text(text)
    return {"options": (f"-I{folder}",)}


INCLUDING = '#include <mine.h>\nextern "C" __global__ void k(int* out) { out[0] = N; }'


def test_headers_in_different_folders_are_compared_by_contents(on, address, tmp_path):
    on("a", address)
    assert build(INCLUDING, **with_header(tmp_path / "one", "#define N 1\n")) is None
    on("b", address)
    assert build(INCLUDING, **with_header(tmp_path / "two", "#define N 1\n")) == "remote"
    on("c", address)
    assert build(INCLUDING, **with_header(tmp_path / "three", "#define N 2\n")) is None
    on("d", address)  # both builds are stored under the same lookup key
    assert build(INCLUDING, **with_header(tmp_path / "one", "#define N 1\n")) == "remote"
    assert build(INCLUDING, **with_header(tmp_path / "three", "#define N 2\n")) == "remote"


def test_equal_stats_do_not_imply_equal_contents(on, tmp_path, monkeypatch):
    address = f"file://{tmp_path}/shared"
    on("a", address)
    folder = tmp_path / "inc"
    given = with_header(folder, "#define N 1\n")
    time.sleep(0.05)
    build(INCLUDING, **given)
    on("b", address)
    # Another node's file can have the size, the times and the inode of this one.
    before = os.stat(folder / "mine.h")
    (folder / "mine.h").write_text("#define N 2\n")
    real = os.stat

    def stat(path: object, **more: object) -> os.stat_result:
        return before if str(path) == str(folder / "mine.h") else real(path, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "stat", stat)
    assert build(INCLUDING, **given) != "remote"


@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        pytest.param(nodes.source(1), {"options": ("-lineinfo",)}, id="line info"),
        pytest.param("__global__ void k(const char** f) { *f = __FILE__; }", {}, id="__FILE__"),
        pytest.param("__global__ void k(const char** f) { *f = __TIME__; }", {}, id="__TIME__"),
    ],
)
def test_a_build_that_depends_on_a_path_or_a_time_is_not_shared(on, tmp_path, source, arguments):
    address = f"file://{tmp_path}/shared"
    on("a", address)
    assert build(source, **arguments) is None
    on("b", address)
    assert build(source, **arguments) is None
    assert not (tmp_path / "shared").exists()  # no store is queried, and no lease is awaited


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"backend": "nvcc"}, id="by NVCC", marks=needs_host_compiler),
        pytest.param({"link": ["__device__ int f() { return 1; }"]}, id="linked"),
    ],
)
def test_builds_by_nvcc_and_links_are_shared_and_recompile_fetches_nothing(on, tmp_path, arguments):
    source = 'extern __device__ int f();\nextern "C" __global__ void k(int* out) { *out = f(); }'
    source = source if "link" in arguments else nodes.source(1)
    for node, expected in (("a", None), ("b", "remote")):
        on(node, f"file://{tmp_path}/shared")
        assert build(source, **arguments) == expected
    on("c", f"file://{tmp_path}/shared")
    assert build(source, recompile=True, **arguments) is None


def test_no_node_waits_for_a_build_that_is_not_shared(on, tmp_path):
    for node in "abc":
        on(node, f"file://{tmp_path}/shared")
        with pytest.raises(rtcompile.CompileError):
            build("__global__ void k() { nothing(); }")
        assert current().flush(10.0)
    (lease,) = (tmp_path / "shared").glob("*/lease/*")
    fields = current().levels[0].keys[0].open("lease", lease.name, lease.read_bytes())
    assert json.loads(fields)["abandoned"]


def test_a_build_found_in_the_second_store_is_copied_to_the_first(on, tmp_path):
    far, near = f"file://{tmp_path}/far", f"file://{tmp_path}/near"
    on("a", far)
    assert build(nodes.source(1)) is None
    on("b", f"{near},{far}")
    assert build(nodes.source(1)) == "remote"
    on("c", near)
    assert build(nodes.source(1)) == "remote"


def test_only_one_thread_of_a_node_queries_the_store(on, tmp_path, monkeypatch):
    kinds = []
    get = FolderStore.get

    def counted(self: FolderStore, key: str) -> bytes | None:
        kinds.append(key.split("/")[1])
        return get(self, key)

    on("a", f"file://{tmp_path}/shared")
    assert build(nodes.source(1)) is None
    on("b", f"file://{tmp_path}/shared")
    monkeypatch.setattr(FolderStore, "get", counted)
    with ThreadPoolExecutor(4) as pool:
        hits = [*pool.map(build, [nodes.source(1)] * 4)]
    assert (hits.count("remote"), kinds) == (1, ["manifest"])


def test_a_store_is_searched_if_compiling_is_forbidden(on, address):
    on("a", address)
    assert build(nodes.source(1)) is None
    on("b", address, RTCOMPILE_JIT="0")
    assert build(nodes.source(1)) == "remote"
    with pytest.raises(JitDisabled):
        build(nodes.source(2))


@pytest.mark.needs_redis
def test_a_local_hit_queries_no_store_and_loads_no_client(tmp_path):
    with servers.redis() as server:
        env = nodes.environment(tmp_path, "a", server.address)
        assert nodes.result(nodes.start(env, [nodes.source(1)]))["hits"] == [None]
        server.kill()
        found = nodes.result(nodes.start(env, [nodes.source(1)]))

    assert found["hits"] == ["disk"]
    assert found["loaded"] == found["warnings"] == []


# --- failures --------------------------------------------------------------------------


def full(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if str(folder) in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


def unreadable(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    below = folder / read_keys(nodes.key_file(folder.parent))[0].fingerprint
    below.mkdir(parents=True)
    (below / "manifest").write_text("not a folder")


def damaged(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    real = FolderStore.put
    monkeypatch.setattr(FolderStore, "put", lambda self, key, data: real(self, key, data[:-3]))


@pytest.mark.parametrize("harm", [full, unreadable, damaged], ids=lambda harm: harm.__name__)
def test_a_folder_that_is_broken_costs_one_warning_and_no_build(on, tmp_path, monkeypatch, harm):
    harm(monkeypatch, tmp_path / "shared")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for node in "ab":
            on(node, f"file://{tmp_path}/shared")
            for number in range(2):
                assert build(nodes.source(number)) is None

    assert len({str(warning.message) for warning in caught}) == 1
    assert "RTCOMPILE_REMOTE" in str(caught[0].message)


@from_table
def test_a_setting_that_cannot_be_used_is_one_warning_and_no_build(on, tmp_path, changes, what):
    on("a", f"file://{tmp_path}/shared", **changes)
    with pytest.warns(RtcompileWarning, match=what) as warned:
        assert [build(nodes.source(number)) for number in range(2)] == [None, None]
    assert len(warned) == 1


def test_two_fleets_on_one_server_do_not_use_each_others_entries(on, tmp_path):
    address = f"file://{tmp_path}/shared"
    on("a", address)
    build(nodes.source(1))
    other = tmp_path / "other key"
    other.write_bytes(nodes.KEY[::-1])
    other.chmod(0o600)
    on("b", address, RTCOMPILE_REMOTE_KEY_FILE=str(other))
    assert build(nodes.source(1)) is None
    for node, key in (("c", nodes.key_file(tmp_path)), ("d", str(other))):
        on(node, address, RTCOMPILE_REMOTE_KEY_FILE=key)
        assert build(nodes.source(1)) == "remote"


def test_a_lookup_key_may_have_many_builds(on, tmp_path):
    """Versions of a header, each of which includes another file."""
    address = f"file://{tmp_path}/shared"
    texts = [f"#define N {n}\n#include <v{n}.h>\n" for n in range(6)]
    for node, expected in (("a", None), ("b", "remote")):
        for n, text in enumerate(texts):
            on(f"{node}{n}", address)
            given = with_header(tmp_path / f"{node}{n}-inc", text)
            (tmp_path / f"{node}{n}-inc" / f"v{n}.h").write_text("")
            assert build(INCLUDING, **given) == expected
    on("c", address)
    assert build(INCLUDING, **with_header(tmp_path / "c-inc", "#define N 99\n")) is None


def test_an_entry_of_another_schema_is_a_miss(on, tmp_path, monkeypatch):
    address = f"file://{tmp_path}/shared"
    on("a", address)
    with monkeypatch.context() as older, contextlib.suppress(AssertionError):
        older.setattr("rtcompile.extras.cluster.entries._MAGIC", b"rtcompile entry 0\n")
        build(nodes.source(1))
    on("b", address)
    with pytest.warns(RtcompileWarning, match="version"):
        assert build(nodes.source(1)) is None

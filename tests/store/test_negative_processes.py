"""Tests of failures in the next process: it reports them without a compiler, until something changed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rtcompile
from rtcompile.build import miss, pipeline, planned
from rtcompile.lookup import environment
from rtcompile.request.request import CompileRequest
from rtcompile.request.units import Hints
from rtcompile.settings import Settings
from rtcompile.store.store import Store
from tests.processes import ran, started
from tests.store.test_negative import remembered
from tests.tables import from_table

pytestmark = pytest.mark.needs_compiler
ROOT = Path(__file__).parents[2]
PYTHON: dict[str, list[str]] = {"options": []}  # of `another_process`
# Only the toolkits of wheels and of PATH are found.
ONLY_ON_PATH = """
from rtcompile.toolkit import search
search.find.__kwdefaults__.update(usual_roots=())
"""
TYPO = 'extern "C" __global__ void k(float* p) { p[treadIdx.x] = 1; }'


CHILD = """
import json, sys
from rtcompile.workers import process
import rtcompile
started = []
start = process.start
process.start = lambda *given: started.append(1) or start(*given)
given, allow_fixups = json.loads(sys.argv[1]), json.loads(sys.argv[2])
found = {}
try:
    if allow_fixups:
        code = rtcompile.compile(**given)
    else:
        from rtcompile.build import pipeline
        from rtcompile.settings import Settings
        request = rtcompile.CompileRequest(**given).replace(allow_fixups=False)
        code = pipeline.build(request, Settings.from_environ())
    found["hit"] = code.build.hit
except rtcompile.RtcompileError as error:
    found.update(kind=type(error).__name__, message=str(error), cached=getattr(error, "cached", None))
    found["log"] = getattr(error, "log", "")
found["compiled"] = bool(started) or "rtcompile.workers.pool" in sys.modules
found["explained"] = "rtcompile.messages.catalogue" in sys.modules
print(json.dumps(found))
"""


def another_process(
    source: str = TYPO, *, allow_fixups: bool = True, before: str = "", **given: Any
) -> Any:
    """Compile in a new process; return its error or the level of its hit, and whether a compiler ran."""
    given = {"source": source, "arch": "sm_90a", **given}
    arguments = ["-c", before + CHILD, json.dumps(given), json.dumps(allow_fixups)]
    command = [sys.executable, *PYTHON["options"], *arguments]
    done = ran(*command, check=True)
    return json.loads(done.stdout)


def this_process(source: str, **given: Any) -> Any:
    """Compile here; return the same as `another_process`, except whether a compiler ran."""
    try:
        return {"hit": rtcompile.compile(source, arch="sm_90a", **given).build.hit}
    except rtcompile.CompileError as error:
        return {"message": str(error), "cached": error.cached, "log": error.log}


SHARED = "__global__ void k(int* x) { __shared__ int s[99999]; s[*x] = *x; *x = s[x[1]]; }"
EXTERN = "extern __device__ float f(float); __global__ void k(float* x) { *x = f(*x); }"


@pytest.mark.some(5)
@from_table
def test_a_failure_is_found_by_the_next_process_without_a_compiler(source, given, kind):
    first, second = this_process(source, **given), another_process(source, **given)

    assert first["cached"] is False
    assert (second["kind"], second["cached"], second["compiled"]) == (kind, True, False)
    assert second["explained"] is False, "its hints were kept"
    assert second["log"] == first["log"]
    assert second["message"].partition("\nCached: ")[0] == first["message"]
    assert "recompile=True" in second["message"]


@pytest.mark.needs_nvcc
def test_what_only_nvcc_can_build_fails_without_a_compiler_until_there_is_an_nvcc(monkeypatch):
    source = "#include <vector>\n__global__ void k(float* x) { *x = 1; }"
    folders = os.environ["PATH"].split(":")
    with monkeypatch.context() as without:
        without.setenv("PATH", ":".join(f for f in folders if not os.path.exists(f"{f}/nvcc")))
        first, second = (another_process(source, before=ONLY_ON_PATH) for _ in range(2))
    assert (first["cached"], second["cached"], second["compiled"]) == (False, True, False)
    assert "NVCC could build it" in first["message"]
    assert second["message"].partition("\nCached: ")[0] == first["message"]

    assert another_process(source, before=ONLY_ON_PATH)["hit"] is None, "NVCC builds it"


def test_the_hints_of_another_toolchain_are_not_shown():
    given = this_process(TYPO)
    inputs = planned.plan(CompileRequest(TYPO, arch="sm_90a"), settings()).key_inputs
    store = Store.open(settings())
    known = store.failure(inputs)
    assert known is not None
    outdated = Hints("of another toolchain", (("Install it.", ""),))
    store.keep_failure(inputs, known._replace(failure=known.failure._replace(hints=outdated)))

    found = this_process(TYPO)["message"].partition("\nCached: ")[0]
    assert "`threadIdx` meant?" in found
    assert given["message"].startswith(found), (
        "only the change that it names was not compiled again"
    )


def test_a_header_that_the_host_compiler_would_find_ends_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(miss, "_HOST_ROOTS", (str(tmp_path),))
    source = '#include <of_the_host.h>\nextern "C" __global__ void k(float* p) { *p = 1; }'
    assert not this_process(source)["cached"]
    inputs = planned.plan(CompileRequest(source, arch="sm_90a"), settings()).key_inputs
    assert Store.open(settings()).failure(inputs) is not None

    (tmp_path / "of_the_host.h").touch()

    assert Store.open(settings()).failure(inputs) is None


def write(path: Path, text: str) -> Callable[[], object]:
    return lambda: path.write_text(text)


def edits(folder: Path) -> dict[str, tuple[str, list[str], Callable[[], object]]]:
    """Return sources that fail because of a file, their options, and a fix for each."""
    first, second = folder / "first", folder / "second"
    header = second / "mine.h"
    both = [f"-I{first}", f"-I{second}"]
    fails = '#include "mine.h"\n'
    return {
        "edited": (fails, both, write(header, "// fine")),
        "shadowed": (fails, both, write(first / "mine.h", "// fine")),
        "added": ('#include "late.h"\n', both, write(first / "late.h", "")),
        "removed": ('#if __has_include("mine.h")\n#error\n#endif', both, header.unlink),
        "tested": (
            '#if !__has_include("late.h")\n#error\n#endif',
            both,
            write(second / "late.h", ""),
        ),
        "replaced": (
            fails,
            both,
            lambda: (second.rename(folder / "old"), second.mkdir(), header.write_text("")),
        ),
    }


@pytest.mark.some(4)
@pytest.mark.parametrize("edit", ["edited", "shadowed", "added", "removed", "tested", "replaced"])
def test_after_each_kind_of_edit_the_compiler_runs_and_its_code_kept(edit, tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    (tmp_path / "second/mine.h").write_text("#error no\n")
    source, options, fix = edits(tmp_path)[edit]
    time.sleep(0.02)
    assert this_process(source, options=options)["cached"] is False
    found = another_process(source, options=options)
    assert (found["cached"], found["compiled"]) == (True, False)

    fix()

    assert this_process(source, options=options) == {"hit": None}
    found = another_process(source, options=options)
    assert (found["hit"], found["compiled"]) == ("disk", False)


def settings(**changes: Any) -> Settings:
    return Settings.from_environ().override(**changes)


def test_recompile_removes_an_outdated_failure():
    source = "__global__ void k() {}"
    request = CompileRequest(source, arch="sm_90a")
    rtcompile.compile(source, arch="sm_90a")  # afterwards the compiler's build is known
    inputs = planned.plan(request, settings()).key_inputs
    store = Store.open(settings())
    store.clear()
    environment.forget()
    store.keep_failure(inputs, remembered())
    with pytest.raises(rtcompile.CompileError, match="identifier is undefined") as caught:
        rtcompile.compile(source, arch="sm_90a")
    assert caught.value.cached

    assert rtcompile.compile(source, arch="sm_90a", recompile=True).build.hit is None
    assert store.failure(inputs) is None


def test_where_compiling_is_forbidden_nothing_is_written_and_no_failure_found(
    tmp_path, monkeypatch
):
    (tmp_path / "mine.h").write_text("")
    right = {"source": '#include "mine.h"\n__global__ void k() {}', "options": [f"-I{tmp_path}"]}
    time.sleep(0.02)
    assert this_process(**right) == {"hit": None}
    another_process()
    cache = Path(os.environ["RTCOMPILE_CACHE_DIR"])
    for path in cache.rglob("*"):
        os.utime(path, (1, 1))
    os.utime(tmp_path / "mine.h")  # a hit by contents, which a writable cache records

    def state() -> set[tuple[str, int]]:
        return {(str(path), path.stat().st_mtime_ns) for path in cache.rglob("*")}

    before = state()
    monkeypatch.setenv("RTCOMPILE_JIT", "0")
    assert another_process(**right)["hit"] == "disk"
    assert another_process()["kind"] == "JitDisabled"
    assert another_process(TYPO + "//")["kind"] == "JitDisabled"
    assert state() == before


def test_a_cache_in_memory_remembers_for_its_process(monkeypatch):
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    cached = []
    for _ in range(2):
        with pytest.raises(rtcompile.CompileError) as caught:
            rtcompile.compile(TYPO, arch="sm_90a")
        cached.append(caught.value.cached)
    assert cached == [False, True]
    assert not list(Path(os.environ["RTCOMPILE_CACHE_DIR"]).iterdir())


def test_another_toolkits_failure_is_not_used(cuda13_prefix):
    source = "#if __CUDACC_VER_MAJOR__ < 13\n#error it is old\n#endif\n__global__ void k() {}"
    assert [another_process(source)["cached"] for _ in range(2)] == [False, True]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{cuda13_prefix}:{ROOT}")
        patch.setitem(PYTHON, "options", ["-S"])  # hides CuPy and its toolkit
        assert [another_process(source)["hit"] for _ in range(2)] == [None, "disk"]
    assert another_process(source)["cached"] is True


@pytest.mark.some(1)
@pytest.mark.parametrize("first", ["CuPy's hook", "compile"])
def test_failures_with_and_without_fixups_are_separate(first):
    source = 'extern "C" __global__ void k(float* x) { __int128 a = 1; *x = (float)a; }'
    for who in sorted(["CuPy's hook", "compile"] * 2, key=lambda each: each != first):
        found = another_process(source, allow_fixups=who == "compile")
        assert ("hit" in found) == (who == "compile")
    assert found["compiled"] is False


def test_a_process_that_waited_for_a_failing_build_does_not_repeat_it(tmp_path):
    source = "__global__ void k() {}"
    rtcompile.compile("__global__ void first() {}", arch="sm_90a")
    store = Store.open(settings())
    inputs = planned.plan(CompileRequest(source, arch="sm_90a"), settings()).key_inputs
    given = {"source": source, "arch": "sm_90a"}
    command = [sys.executable, "-c", CHILD, json.dumps(given), "true"]
    with store.building(inputs):
        other = started(*command)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1.5)
        store.keep_failure(inputs, remembered())
    assert json.loads(other.communicate(timeout=60)[0])["cached"] is True


def test_is_cached_is_false_for_a_failure():
    another_process()
    assert not pipeline.is_cached(CompileRequest(TYPO, arch="sm_90a"), settings())


# --- failures of NVCC and of its host compiler -------------------------------------------------


@pytest.mark.needs_nvcc
@from_table
def test_a_failure_of_nvcc_is_found_by_the_next_process_until_a_header_changes(
    source, given, tmp_path
):
    (tmp_path / "mine.h").write_text("// old")
    given = {**given, "options": [f"-I{tmp_path}"]}
    source = f'#include "mine.h"\n{source}'
    time.sleep(0.02)  # a file written in the tick in which it is read counts as changed
    found = [another_process(source, **given) for _ in range(2)]
    assert [(each["cached"], each["compiled"]) for each in found] == [(False, True), (True, False)]

    (tmp_path / "mine.h").write_text("// new and longer")
    assert another_process(source, **given)["cached"] is False


@pytest.mark.needs_nvcc
@pytest.mark.some(1)
@pytest.mark.parametrize("folder", ["listed", "not/there/yet"])
def test_a_missing_header_is_remembered_for_the_host_compiler_until_it_appears(folder, tmp_path):
    (tmp_path / "listed").mkdir()
    (tmp_path / "listed/first.h").write_text("#include <vector>\n#include <sub/late.h>\n")
    late = tmp_path / folder / "sub/late.h"
    given: dict[str, Any] = {
        "source": "#include <first.h>\n__global__ void k() {}",
        "arch": "sm_90a",
        "options": (f"-I{tmp_path}/not/there/yet", f"-I{tmp_path}/listed"),
    }
    time.sleep(0.02)
    for is_cached in (False, True):
        with pytest.raises(rtcompile.CompileError, match=r"late\.h") as caught:
            rtcompile.compile(**given)
        assert caught.value.cached is is_cached

    late.parent.mkdir(parents=True)
    late.write_text("")

    assert rtcompile.compile(**given).build.backend == "nvcc"


@pytest.mark.needs_nvcc
def test_a_header_that_nvrtc_rejects_is_compiled_by_nvcc_until_edited(tmp_path):
    header = tmp_path / "mine.h"
    header.write_text("#include <vector>\n")
    given: dict[str, Any] = {"arch": "sm_90a", "options": (f"-I{tmp_path}",)}
    source = '#include "mine.h"\n__global__ void k() {}'
    time.sleep(0.02)
    assert rtcompile.compile(source, **given).build.backend == "nvcc"
    header.write_text("#define NOTHING\n")
    assert rtcompile.compile(source, **given).build.backend == "nvrtc"

"""Tests of the negative cache: the next process finds a reproducible failure without a compiler."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packaging
import pytest

import rtcompile
from rtcompile.build import pipeline, planned
from rtcompile.files.fileset import FileSet
from rtcompile.lookup import environment
from rtcompile.request.request import CompileRequest
from rtcompile.request.units import CompileFailure, Hints
from rtcompile.settings import Settings
from rtcompile.store import folder, inventory, manifests
from rtcompile.store.folder import Folder
from rtcompile.store.negative import Remembered, dependencies_of
from rtcompile.store.store import Store
from tests.key_inputs import HeaderTree, make_key_inputs, open_store

ERROR = "kernel.cu(3): error: identifier is undefined\n"
PTXAS = "ptxas application ptx input, line 9; error   : Unknown symbol 'x'\n"
ROOT = Path(__file__).parents[2]
PYTHON: dict[str, list[str]] = {"options": []}  # of `another_process`
# Only the toolkits of wheels and of PATH are found.
ONLY_ON_PATH = """
from rtcompile.toolkit import search
search.find.__kwdefaults__.update(usual_roots=(), last=lambda _: ())
"""
TYPO = 'extern "C" __global__ void k(float* p) { p[treadIdx.x] = 1; }'


def failure(
    log: str = ERROR, *, kind: str = "error", trace: tuple[str, ...] | None = ()
) -> CompileFailure:
    return CompileFailure(kind, log, ("nvcc", "a b"), "nvcc", trace=trace)


def remembered(why_nvcc: str = "", log: str = ERROR) -> Remembered:
    return Remembered(failure(log), why_nvcc, ())


# --- which failures are kept --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(failure(kind="crash"), id="crash"),
        pytest.param(failure(kind="timeout"), id="time limit"),
        pytest.param(failure(kind="memory"), id="memory limit"),
        pytest.param(failure(kind="start"), id="not started"),
        pytest.param(failure(trace=None), id="unknown dependencies"),
        pytest.param(failure("nvcc: No space left on device"), id="the machine's"),
        pytest.param(failure(ERROR + "No space left on device"), id="the machine's, too"),
        pytest.param(failure("k.cu(3): catastrophic error: out of memory"), id="memory"),
        pytest.param(failure("ptxas fatal   : Memory allocation failure"), id="ptxas' memory"),
        pytest.param(failure("ptxas fatal   : Could not open input file"), id="ptxas' file"),
        pytest.param(failure("nvrtc: error: failed to open libnvrtc-builtins.so"), id="library"),
        pytest.param(failure("nvcc fatal   : Could not set up the environment"), id="nvcc's"),
        pytest.param(
            failure(ERROR + "fatal error: x.h: No such file or directory"), id="host header"
        ),
    ],
)
def test_a_failure_that_may_not_recur_is_not_remembered(other: CompileFailure) -> None:
    assert dependencies_of(other, FileSet).uncacheable


@pytest.mark.parametrize(
    "log",
    [
        ERROR,
        'k.cu(1): catastrophic error: could not open source file "x.h" (no directories in search',
        PTXAS,
        "ptxas error   : Entry function 'k' uses too much shared data",
        "ptxas fatal   : Unresolved extern function 'f'",
        "nvrtc: error: unrecognized option -foo found",
    ],
)
def test_a_failure_caused_by_source_and_options_is_remembered(log: str) -> None:
    assert not dependencies_of(failure(log), FileSet).uncacheable


def test_a_missing_linker_is_not_remembered() -> None:
    for log, kind, is_kept in (
        ("error : Undefined reference to 'f'", "link", True),
        ("elfLink linker library load error", "link", False),
        ("error : Undefined reference to 'f'", "crash", False),
    ):
        found = dependencies_of(failure(log, kind=kind), FileSet)
        assert (not found.uncacheable) is is_kept


def test_a_failure_is_valid_while_its_headers_are_unchanged_and_missing_ones_stay_missing(
    cache: Path, tmp_path: Path
) -> None:
    tree = HeaderTree(tmp_path, "user0", "user1")
    read = tree.write("user1/read.h", "old")
    log = f'{ERROR}kernel.cu(4): catastrophic error: cannot open source file "missed.h"\n'
    inputs = tree.key_inputs()
    refused = failure(log, trace=(read,))
    source = '#include <read.h>\n#include "missed.h"'
    name = "/project/kernel.cu"
    found = manifests.record((read,), tree.search, source=source, name=name)
    open_store(cache).negative.remember(inputs, Remembered(refused, "", (found,)))

    def finds(**other: Any) -> bool:
        return open_store(cache).negative.find(tree.key_inputs(**other)) is not None

    assert finds()
    assert not finds(source="other")
    assert not finds(compilers={"nvrtc": "another"})
    assert not finds(linker="another")
    assert not finds(allow_fixups=False)
    tree.write("user0/missed.h", "")
    assert not finds()
    (tmp_path / "user0/missed.h").unlink()
    assert finds()
    tree.write("user1/read.h", "new and longer")
    assert not finds()
    tree.write("user1/read.h", "old")
    assert finds(), "its times are others, its contents are not"
    (tmp_path / "user1/read.h").unlink()
    assert not finds()


def test_a_failure_is_the_same_value_for_the_next_process(cache: Path) -> None:
    odd = "k\udce4.cu(1): error: “ä” is\0undefined\n"
    hints = Hints("facts", ((odd, ""), ("hint", "cause")))
    first = failure(odd)._replace(backend="nvrtc", hints=hints)
    kept = Remembered(failure(odd)._replace(before=first, hints=hints), "host code", ())
    open_store(cache).negative.remember(make_key_inputs(), kept)

    assert open_store(cache).negative.find(make_key_inputs()) == kept


def test_a_failure_that_depends_on_the_clock_is_not_remembered(cache: Path) -> None:
    inputs = make_key_inputs(source="static_assert(__TIME__[7] == '0');")
    kept = open_store(cache)
    kept.negative.remember(inputs, remembered())
    assert kept.negative.find(inputs) is None


@pytest.mark.parametrize("on_disk", [True, False], ids=["read-only", "in memory"])
def test_in_a_read_only_cache_the_latest_failures_are_kept_in_memory(
    cache: Path, on_disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "MAX_BYTES", 20 * folder.OVERHEAD)
    kept = Store(str(cache), on_disk=on_disk, size=1 << 30, writable=False)
    several = [make_key_inputs(source=str(number)) for number in range(30)]
    for inputs in several:
        kept.negative.remember(inputs, remembered())
    assert kept.negative.find(several[0]) is None
    assert kept.negative.find(several[-1]) is not None
    assert not cache.exists()


# --- its folder ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="emptied"),
        pytest.param(lambda data: data[:40], id="cut in the head"),
        pytest.param(lambda data: data[:-1], id="last byte cut"),
        pytest.param(lambda data: data + b"\0", id="byte appended"),
        pytest.param(lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], id="bit flipped"),
        pytest.param(lambda data: b"\x80\x04" + data, id="a pickle"),
        pytest.param(lambda data: re.sub(rb" \d\n", b" 0\n", data, count=1), id="another schema"),
    ],
)
def test_a_damaged_entry_is_not_used(cache: Path, damage: Callable[[bytes], bytes]) -> None:
    inputs = make_key_inputs()
    open_store(cache).negative.remember(inputs, remembered())
    (path,) = (cache / "negative").iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert open_store(cache).negative.find(inputs) is None
    assert not path.exists()


def test_an_entry_that_others_could_have_written_is_not_used(cache: Path) -> None:
    inputs = make_key_inputs()
    open_store(cache).negative.remember(inputs, remembered())
    (path,) = (cache / "negative").iterdir()
    path.chmod(0o620)
    assert open_store(cache).negative.find(inputs) is None


def test_an_entry_under_another_key_is_not_used_and_found_by_verify(cache: Path) -> None:
    first, second = make_key_inputs(), make_key_inputs(source="2")
    for inputs in (first, second):
        open_store(cache).negative.remember(inputs, remembered())
    a, b = (cache / "negative").iterdir()
    shutil.copyfile(a, b)
    assert open_store(cache).verify() == [str(b)]
    assert sorted(open_store(cache).negative.find(q) is None for q in (first, second)) == [
        False,
        True,
    ]


def test_entries_count_are_evicted_and_cleared(cache: Path) -> None:
    kept = open_store(cache)
    for number in range(2):
        kept.negative.remember(make_key_inputs(source=str(number)), remembered())
    folder, (path, _) = Folder(str(cache)), (cache / "negative").iterdir()
    usage = kept.usage()
    assert usage is not None
    assert (usage.failures, usage.size) == (2, inventory.size(folder))
    assert usage.size >= 2 * path.stat().st_size
    os.utime(path, (1, 1))
    kept.prune(int(1.5 * path.stat().st_size))
    assert not path.exists()
    assert len(folder.listing("negative")) == 1
    kept.clear()
    assert not folder.listing("negative")


# --- the next process ----------------------------------------------------------------------------

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
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def this_process(source: str, **given: Any) -> Any:
    """Compile here; return the same as `another_process`, except whether a compiler ran."""
    try:
        return {"hit": rtcompile.compile(source, arch="sm_90a", **given).build.hit}
    except rtcompile.CompileError as error:
        return {"message": str(error), "cached": error.cached, "log": error.log}


SHARED = "__global__ void k(int* x) { __shared__ int s[99999]; s[*x] = *x; *x = s[x[1]]; }"
EXTERN = "extern __device__ float f(float); __global__ void k(float* x) { *x = f(*x); }"


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    ("source", "given", "kind"),
    [
        pytest.param(TYPO, {}, "CompileError", id="NVRTC's error"),
        pytest.param(SHARED, {}, "CompileError", id="ptxas' error"),
        pytest.param(EXTERN, {"options": ["-rdc=true"]}, "LinkError", id="the linker's error"),
        pytest.param('#include "no.h"', {"options": ["-I/tmp"]}, "CompileError", id="no header"),
        pytest.param("", {"options": ["-nonsense=1"]}, "CompileError", id="no such option"),
        pytest.param(
            "template <class T> __global__ void f(T* x) {}",
            {"name_expressions": ["f<flaot>"]},
            "CompileError",
            id="no such name",
        ),
        pytest.param(
            "__global__ void k(float* x) { x[0] = norm8(2, x[1]); }",
            {},
            "CompileError",
            id="an undefined identifier",
        ),
        pytest.param("EXPORT void k(float* x) {}", {}, "CompileError", id="an unknown macro"),
        pytest.param(
            TYPO,
            {"options": ["-rdc=true"], "link": ["__device__ int f() { return 1; }"]},
            "CompileError",
            id="with a linked source",
        ),
    ],
)
def test_a_failure_is_found_by_the_next_process_without_a_compiler(
    source: str, given: dict[str, Any], kind: str
) -> None:
    first, second = this_process(source, **given), another_process(source, **given)

    assert first["cached"] is False
    assert (second["kind"], second["cached"], second["compiled"]) == (kind, True, False)
    assert second["explained"] is False, "its hints were kept"
    assert second["log"] == first["log"]
    assert second["message"].partition("\nCached: ")[0] == first["message"]
    assert "recompile=True" in second["message"]


@pytest.mark.needs_nvcc
def test_what_only_nvcc_can_build_fails_without_a_compiler_until_there_is_an_nvcc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = "#include <vector>\n__global__ void k(float* x) { *x = 1; }"
    folders = os.environ["PATH"].split(":")
    with monkeypatch.context() as without:
        without.setenv("PATH", ":".join(f for f in folders if not os.path.exists(f"{f}/nvcc")))
        first, second = (another_process(source, before=ONLY_ON_PATH) for _ in range(2))
    assert (first["cached"], second["cached"], second["compiled"]) == (False, True, False)
    assert "NVCC could build it" in first["message"]
    assert second["message"].partition("\nCached: ")[0] == first["message"]

    assert another_process(source, before=ONLY_ON_PATH)["hit"] is None, "NVCC builds it"


@pytest.mark.needs_compiler
def test_the_hints_of_another_toolchain_are_not_shown() -> None:
    given = this_process(TYPO)
    inputs = planned.plan(CompileRequest(TYPO, arch="sm_90a"), settings()).key_inputs
    negative = Store.open(settings()).negative
    known = negative.find(inputs)
    assert known is not None
    outdated = Hints("of another toolchain", (("Install it.", ""),))
    negative.remember(inputs, known._replace(failure=known.failure._replace(hints=outdated)))

    assert this_process(TYPO)["message"].partition("\nCached: ")[0] == given["message"]


def write(path: Path, text: str) -> Callable[[], object]:
    return lambda: path.write_text(text)


def edits(folder: Path) -> dict[str, tuple[str, list[str], Callable[[], object]]]:
    """Return sources that fail because of a file, their options, and a fix for each."""
    first, second = folder / "first", folder / "second"
    header = second / "mine.h"
    both = [f"-I{first}", f"-I{second}"]
    options_file = folder / "options.txt"
    options_file.write_text("-DBAD")
    fails = '#include "mine.h"\n'
    return {
        "edited": (fails, both, write(header, "// fine")),
        "shadowed": (fails, both, write(first / "mine.h", "// fine")),
        "added": ('#include "late.h"\n', both, write(first / "late.h", "")),
        "removed": ('#if __has_include("mine.h")\n#error\n#endif', both, header.unlink),
        "tested and added": (
            '#if !__has_include("late.h")\n#error\n#endif',
            both,
            write(second / "late.h", ""),
        ),
        "folder replaced": (
            fails,
            both,
            lambda: (second.rename(folder / "old"), second.mkdir(), header.write_text("")),
        ),
        "options file": (
            "#ifdef BAD\n#error\n#endif",
            [f"--options-file={options_file}"],
            write(options_file, ""),
        ),
    }


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    "edit",
    [
        "edited",
        "shadowed",
        "added",
        "removed",
        "tested and added",
        "folder replaced",
        "options file",
    ],
)
def test_after_each_kind_of_edit_the_compiler_runs_and_its_code_kept(
    edit: str, tmp_path: Path
) -> None:
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


@pytest.mark.needs_compiler
def test_recompile_runs_the_compiler_again() -> None:
    another_process()
    again = another_process(recompile=True)
    assert (again["cached"], again["compiled"]) == (False, True)
    assert another_process()["cached"] is True


def settings(**changes: Any) -> Settings:
    return Settings.from_environ().override(**changes)


@pytest.mark.needs_compiler
def test_recompile_removes_an_outdated_failure() -> None:
    source = "__global__ void k() {}"
    request = CompileRequest(source, arch="sm_90a")
    rtcompile.compile(source, arch="sm_90a")  # afterwards the compiler's build is known
    inputs = planned.plan(request, settings()).key_inputs
    store = Store.open(settings())
    store.clear()
    environment.forget()
    store.negative.remember(inputs, remembered())
    with pytest.raises(rtcompile.CompileError, match="identifier is undefined") as caught:
        rtcompile.compile(source, arch="sm_90a")
    assert caught.value.cached

    assert rtcompile.compile(source, arch="sm_90a", recompile=True).build.hit is None
    assert store.negative.find(inputs) is None


@pytest.mark.needs_compiler
def test_where_compiling_is_forbidden_nothing_is_found_or_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    another_process()
    cache = Path(os.environ["RTCOMPILE_CACHE_DIR"])

    def state() -> set[tuple[str, int]]:
        return {(str(path), path.stat().st_mtime_ns) for path in cache.rglob("*")}

    before = state()
    monkeypatch.setenv("RTCOMPILE_JIT", "0")
    assert another_process()["kind"] == "JitDisabled"
    assert another_process(TYPO + "//")["kind"] == "JitDisabled"
    assert state() == before


@pytest.mark.needs_compiler
def test_a_cache_in_memory_remembers_for_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    cached = []
    for _ in range(2):
        with pytest.raises(rtcompile.CompileError) as caught:
            rtcompile.compile(TYPO, arch="sm_90a")
        cached.append(caught.value.cached)
    assert cached == [False, True]
    assert not list(Path(os.environ["RTCOMPILE_CACHE_DIR"]).iterdir())


@pytest.mark.needs_compiler
def test_another_toolkits_failure_is_not_used(cuda13_prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "packaging").symlink_to(Path(packaging.__path__[0]))
    source = "#if __CUDACC_VER_MAJOR__ < 13\n#error it is old\n#endif\n__global__ void k() {}"
    assert [another_process(source)["cached"] for _ in range(2)] == [False, True]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{cuda13_prefix}:{tmp_path}:{ROOT}")
        patch.setitem(PYTHON, "options", ["-S"])  # hides CuPy and its toolkit
        assert [another_process(source)["hit"] for _ in range(2)] == [None, "disk"]
    assert another_process(source)["cached"] is True


@pytest.mark.needs_compiler
@pytest.mark.parametrize("first", ["CuPy's hook", "compile"])
def test_failures_with_and_without_fixups_are_separate(first: str) -> None:
    source = 'extern "C" __global__ void k(float* x) { __int128 a = 1; *x = (float)a; }'
    for who in sorted(["CuPy's hook", "compile"] * 2, key=lambda each: each != first):
        found = another_process(source, allow_fixups=who == "compile")
        assert ("hit" in found) == (who == "compile")
    assert found["compiled"] is False


@pytest.mark.needs_compiler
def test_a_process_that_waited_for_a_failing_build_does_not_repeat_it(
    tmp_path: Path,
) -> None:
    source = "__global__ void k() {}"
    rtcompile.compile("__global__ void first() {}", arch="sm_90a")
    store = Store.open(settings())
    inputs = planned.plan(CompileRequest(source, arch="sm_90a"), settings()).key_inputs
    given = {"source": source, "arch": "sm_90a"}
    command = [sys.executable, "-c", CHILD, json.dumps(given), "true"]
    with store.building(inputs):
        other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1.5)
        store.negative.remember(inputs, remembered())
    assert json.loads(other.communicate(timeout=60)[0])["cached"] is True


@pytest.mark.needs_compiler
def test_a_batch_finds_its_failures_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from rtcompile.compilers import nvrtc

    good = 'extern "C" __global__ void k(float* p) { *p = %d; }'
    batch = [rtcompile.CompileRequest(TYPO, arch="sm_90a")]
    batch += [rtcompile.CompileRequest(good % n, arch="sm_90a") for n in range(3)]
    with pytest.raises(rtcompile.BatchError):
        rtcompile.compile_many(batch)
    monkeypatch.setattr(nvrtc, "compile", lambda *_, **__: pytest.fail("a compiler ran"))
    with pytest.raises(rtcompile.BatchError) as caught:
        rtcompile.compile_many(batch)
    assert list(caught.value.errors) == [0]
    assert caught.value.errors[0].cached


@pytest.mark.needs_compiler
def test_is_cached_is_false_for_a_failure() -> None:
    another_process()
    assert not pipeline.is_cached(CompileRequest(TYPO, arch="sm_90a"), settings())

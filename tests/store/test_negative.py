"""Tests of the negative cache: the next process finds a reproducible failure without a compiler."""

import os

import pytest

from rtcompile.build.failures import dependencies_of
from rtcompile.files.fileset import FileSet
from rtcompile.request.object_code import Record
from rtcompile.request.units import CompileFailure, Hints
from rtcompile.store import folder, inventory
from rtcompile.store.folder import Folder
from rtcompile.store.store import Store
from tests.key_inputs import make_key_inputs, open_store

ERROR = "kernel.cu(3): error: identifier is undefined\n"
NO_HEADER = "kernel.cu:2:10: fatal error: x.h: No such file or directory\n"
PTXAS = "ptxas application ptx input, line 9; error   : Unknown symbol 'x'\n"


def failure(
    log: str = ERROR, *, kind: str = "error", trace: tuple[str, ...] | None = ()
) -> CompileFailure:
    files = None if trace is None else FileSet()
    return CompileFailure(kind, log, ("nvcc", "a b"), "nvcc", trace=trace, files=files)


def remembered(reason: str = "", log: str = ERROR) -> Record:
    return Record(FileSet(), reason=reason, failure=failure(log))


# --- which failures are kept --------------------------------------------------------------------------------


UNDEFINED = "error : Undefined reference to 'f'"
OF_THE_MACHINE = (
    "nvcc: No space left on device",
    f"{ERROR}No space left on device",
    "k.cu(3): catastrophic error: out of memory",
    "ptxas fatal   : Memory allocation failure",
    "ptxas fatal   : Could not open input file",
    "nvrtc: error: failed to open libnvrtc-builtins.so",
    "nvcc fatal   : Could not set up the environment",
)
OF_THE_SOURCE = (
    ERROR,
    'At end of source: error: expected a "}"',  # a forgotten brace
    'k.cu(1): catastrophic error: could not open source file "x.h" (no directories in search',
    PTXAS,
    NO_HEADER,
    "ptxas error   : Entry function 'k' uses too much shared data",
    "ptxas fatal   : Unresolved extern function 'f'",
    "nvrtc: error: unrecognized option -foo found",
)


def test_only_failures_that_will_recur_are_remembered():
    transient = [failure(kind=kind) for kind in ("crash", "timeout", "memory", "start")]
    # Of the second it is not known which header would be found.
    transient += [failure(trace=None), failure(NO_HEADER, trace=None)]
    transient += [failure("elfLink linker library load error", kind="link")]
    transient += [failure(UNDEFINED, kind="crash"), *map(failure, OF_THE_MACHINE)]
    lasting = [failure(UNDEFINED, kind="link"), *map(failure, OF_THE_SOURCE)]

    assert [each for each in transient if not dependencies_of(each).uncacheable] == []
    assert [each for each in lasting if dependencies_of(each).uncacheable] == []


def test_a_failure_is_found_by_equal_inputs_and_equal_contents_of_its_headers(cache, tree):
    kept = Record(tree.record("user0/a.h"), failure=failure())
    open_store(cache).keep_failure(tree.key_inputs(), kept)
    for text, is_found in (("one", True), ("two", False), ("one", True)):
        tree.write("user0/a.h", text)
        assert (open_store(cache).failure(tree.key_inputs()) is not None) is is_found
    others = {"source": "other", "linker": "another", "allow_fixups": False, "compilers": {}}
    for name, value in others.items():
        assert open_store(cache).failure(tree.key_inputs(**{name: value})) is None, name


def test_a_failure_is_the_same_value_for_the_next_process(cache):
    odd = "k\udce4.cu(1): error: “ä” is\0undefined\n"
    hints = Hints("facts", ((odd, ""), ("hint", "cause")))
    first = failure(odd)._replace(backend="nvrtc", hints=hints, files=None)
    failed = failure(odd)._replace(before=first, hints=hints, files=None)
    kept = Record(FileSet(), reason="host code", failure=failed)
    open_store(cache).keep_failure(make_key_inputs(), kept)

    found = open_store(cache).failure(make_key_inputs())
    assert found is not None
    assert found._replace(compiler="") == kept


def test_a_failure_that_depends_on_the_clock_is_not_remembered(cache):
    inputs = make_key_inputs(source="static_assert(__TIME__[7] == '0');")
    kept = open_store(cache)
    kept.keep_failure(inputs, remembered())
    assert kept.failure(inputs) is None


@pytest.mark.parametrize("on_disk", [True, False], ids=["read-only", "in memory"])
def test_in_a_read_only_cache_the_latest_failures_are_kept_in_memory(cache, on_disk, monkeypatch):
    monkeypatch.setattr(folder, "MAX_BYTES", 20 * folder.OVERHEAD)
    kept = Store(str(cache), on_disk=on_disk, size=1 << 30, writable=False)
    several = [make_key_inputs(source=str(number)) for number in range(30)]
    for inputs in several:
        kept.keep_failure(inputs, remembered())
    assert kept.failure(several[0]) is None
    assert kept.failure(several[-1]) is not None
    assert not cache.exists()


# --- its folder ----------------------------------------------------------------------------------


def test_entries_count_are_evicted_and_cleared(cache):
    kept = open_store(cache)
    for number in range(2):
        kept.keep_failure(make_key_inputs(source=str(number)), remembered())
    folder, (path, _) = Folder(str(cache)), (cache / "records").iterdir()
    usage = kept.usage()
    assert (usage.failures, usage.size) == (2, inventory.size(folder))
    assert usage.size >= 2 * path.stat().st_size
    os.utime(path, (1, 1))
    kept.prune(int(1.5 * path.stat().st_size))
    assert not path.exists()
    assert len(folder.listing("records")) == 1
    kept.clear()
    assert not folder.listing("records")

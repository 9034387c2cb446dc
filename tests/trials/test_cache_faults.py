"""Killed writers, damaged files and many processes cause no wrong object, no exception and no leak."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rtcompile.compilers import observed
from rtcompile.files import sealed
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import Header, SearchDir
from rtcompile.request import object_code as objects
from rtcompile.request.object_code import Record, decode_records, encode_records
from rtcompile.request.units import CompileFailure
from rtcompile.store.folder import Folder
from tests.key_inputs import HeaderTree, make_key_inputs, make_object, open_store
from tests.processes import started
from tests.trials.record import record, times

KILLS = times(60, 500)
MUTATIONS = times(100, 10_000)
PROCESSES = 8


def code_of(source: str) -> bytes:
    """Return the right code of a source, long enough that a kill can truncate it."""
    return f"code of {source};".encode() * 2000


SEALED = {"objects": "object", "records": "record"}


def damaged(cache: Path) -> list[Path]:
    """Return the files that no process would use."""
    folder = Folder(str(cache), writable=False)
    return [
        path
        for kind, seal in SEALED.items()
        for path in (cache / kind).glob("[!.]*")
        if sealed.unseal(seal, path.name, folder.read(kind, path.name) or b"") is None
    ]


def remove_damaged(cache: Path) -> None:
    for path in damaged(cache):
        sealed.discard(str(path))


def kept(cache: Path, source: str) -> bytes:
    """Add the right object of a source to a cache opened as in a new process; return its code."""
    store, inputs = open_store(cache), make_key_inputs(source=source)
    with store.building(inputs):
        made = make_object(code_of(source))
        assert store.add(inputs, made, observed.record((), ())).reason == ""
    return made.code


def python(script: str, *arguments: str) -> subprocess.Popen[str]:
    environ = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return started(sys.executable, "-c", script, *arguments, environ=environ)


def begin_a_writer(program: subprocess.Popen[str]) -> None:
    program.stdin.write("\n")
    program.stdin.flush()


# It forks a child for each line of its input, since starting interpreters would take most of the time.
WRITERS = """
import itertools, os, sys
from pathlib import Path
from rtcompile.compilers import observed as headers
from tests.key_inputs import make_object, make_key_inputs, open_store
from tests.trials.test_cache_faults import code_of

def write():
    store = open_store(Path(sys.argv[1]))
    print("ready", os.getpid(), flush=True)
    for i in itertools.count():
        inputs = make_key_inputs(source=str(i % 20))
        with store.building(inputs):
            store.add(inputs, make_object(code_of(inputs.source)), headers.record((), ()))
        os.write(1, b"finished\\n")  # all of it, or nothing
        if i % 10 == 9:
            store.maintain()

for _ in sys.stdin:
    child = os.fork()
    if not child:
        write()
    print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_no_wrong_object(tmp_path):
    chance = random.Random(7)
    programs = [python(WRITERS, str(tmp_path)) for _ in range(2)]
    for program in programs:
        begin_a_writer(program)
    finished = 0
    for number in range(KILLS):
        program = programs[number % 2]  # the other one works meanwhile
        ready, pid = program.stdout.readline().split()
        assert ready == "ready"
        # Wait for a number of builds and a part of the next one, independent of the machine's load.
        for _ in range(chance.choice((0, 0, 1, 2, 10, 11))):
            assert program.stdout.readline() == "finished\n"
            finished += 1
        time.sleep(chance.uniform(0.0, 0.01))
        os.kill(int(pid), signal.SIGKILL)
        while (line := program.stdout.readline()) == "finished\n":
            finished += 1
        assert line == "ended -9\n"
        begin_a_writer(program)
    for program in programs:
        os.kill(int(program.stdout.readline().split()[1]), signal.SIGKILL)
        program.communicate()
        assert program.returncode == 0
    found = wrong = 0
    for source in map(str, range(20)):
        obj = open_store(tmp_path).find(make_key_inputs(source=source))
        wrong += obj is not None and obj.code != code_of(source)
        found += obj is not None
    record("kill -9 of a process that writes to the cache", KILLS, wrong + len(damaged(tmp_path)))
    assert (wrong, damaged(tmp_path)) == (0, [])
    for source in map(str, range(20)):
        kept(tmp_path, source)  # no lock remained
    assert found
    assert finished >= KILLS * 2 // 5, "too few builds finished for the kills to meet the rest"
    assert damaged(tmp_path) == []
    assert open_store(tmp_path).usage() is not None


HAMMER = """
import random, sys
from pathlib import Path
from rtcompile.compilers import observed as headers
from tests.key_inputs import make_object, make_key_inputs, open_store
from tests.trials.test_cache_faults import code_of
cache, seed = Path(sys.argv[1]), int(sys.argv[2])
chance, built = random.Random(seed), 0
for _ in range(60):
    store = open_store(cache)
    inputs = make_key_inputs(source=str(chance.randrange(30)))
    found = store.find(inputs)
    if found is None:
        with store.building(inputs):
            found = store.find(inputs)
            if found is None:
                # Two who are in here at once for one inputs both see the file of the other.
                claim = cache / f"claim-{inputs.source}"
                claim.touch(exist_ok=False)
                found = make_object(code_of(inputs.source))
                store.add(inputs, found, headers.record((), ()))
                built += 1
        store.maintain()
    assert found.code == code_of(inputs.source)
print(built)
"""


def test_many_processes_build_each_key_once(tmp_path):
    processes = [python(HAMMER, str(tmp_path), str(seed)) for seed in range(PROCESSES)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES
    built = sum(map(int, outputs))
    assert built == len(list(tmp_path.glob("claim-*")))
    usage = open_store(tmp_path).usage()
    assert usage.misses == built


EVICTOR = """
import sys
from pathlib import Path
from tests.key_inputs import open_store
store = open_store(Path(sys.argv[1]))
for _ in range(40):
    store.prune(200_000)
"""


def test_eviction_during_reads_and_writes_causes_only_misses(tmp_path):
    evictor = python(EVICTOR, str(tmp_path))
    for source in map(str, [*range(25)] * 8):
        obj = open_store(tmp_path).find(make_key_inputs(source=source))
        assert (kept(tmp_path, source) if obj is None else obj.code) == code_of(source)
    evictor.communicate()
    assert evictor.returncode == 0


# --- bytes that rtcompile never wrote --------------------------------------------------------


SEARCH = (SearchDir("user0", "/u"), SearchDir("cudart", "/t"))


def some_records() -> bytes:
    header = Header("/u/a.h", "user0", "a.h", "ab" * 32, 1, 2, 3, 4)
    outside = header._replace(path="/x/b.h", label="", relative="/x/b.h")
    dependencies = FileSet((header, outside), ("/u/no",), ("/t/.",), ("cudart/c.h",))
    build = Record(dependencies, "cd" * 32, "nvrtc", "12.9", notes=("a note",))
    failed = Record(
        dependencies, compiler="12.9", failure=CompileFailure("error", "log", (), "nvrtc")
    )
    return encode_records("key", [build, failed, build], search=SEARCH)


def an_object() -> bytes:
    return objects.encode("key", make_object(b"code" * 50), {})


# Of each kind of file: an example, and its decoder.
FILES: dict[str, tuple[Callable[[], bytes], Callable[[bytes], object]]] = {
    "object": (an_object, lambda data: objects.decode("key", data)),
    "record": (some_records, lambda data: decode_records("key", data, SEARCH)),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_file_is_not_decoded(kind):
    (make, decode), chance = FILES[kind], random.Random(1)
    whole = make()
    assert decode(whole) is not None
    for damaged in (changed(whole, chance) for _ in range(3000)):
        assert damaged == whole or decode(damaged) is None


@pytest.mark.parametrize("kind", FILES)
def test_invalid_fields_with_a_valid_digest_are_harmless(kind):
    chance = random.Random(3)
    make, decode = FILES[kind]
    real = sealed.unseal(kind, "key", make())
    assert real is not None
    for _ in range(2000):
        fields = list(real)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(fields))
            change = chance.randrange(3)
            if change == 0:
                fields[at] = chance.randbytes(chance.randrange(40))
            elif change == 1:
                del fields[at]
            else:
                fields.insert(at, chance.randbytes(8))
        decode(sealed.seal(kind, "key", fields))
    for fewer in (SEARCH[:1], ()):  # other directories than those of the records
        decode_records("key", some_records(), fewer)


# --- a whole cache, mutated --------------------------------------------------------------------


def changed(data: bytes, chance: random.Random) -> bytes:
    """Flip a bit, cut, overwrite or extend."""
    at, way = chance.randrange(len(data)), chance.randrange(4)
    if way == 0:
        return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
    if way == 1:
        return data[:at]
    if way == 2:
        return data[:at] + chance.randbytes(min(64, len(data) - at)) + data[at + 64 :]
    return data + chance.randbytes(chance.randrange(1, 64))


def misplace(path: Path, chance: random.Random) -> None:
    """Replace a file by a folder, link or pipe."""
    other = path.with_name("other")
    kind = chance.randrange(4)
    if kind == 0:
        os.link(path, path.parent.parent / "a second name")
        return
    path.rename(other)
    if kind == 1:
        os.mkfifo(path)
        other.unlink()
    elif kind == 2:
        path.mkdir()
        other.unlink()
    else:
        path.symlink_to(other)


def test_a_mutated_cache_returns_right_objects_or_misses(tmp_path):
    chance = random.Random(11)
    cache = tmp_path / "cache"
    tree = HeaderTree(tmp_path / "tree", "user0")
    tree.write("user0/x.h", "x")
    several = [tree.key_inputs(source=str(i)) for i in range(12)]
    counts = {"changed": 0, "swapped": 0, "misplaced": 0}
    bad = dict.fromkeys(counts, 0)

    def build() -> None:
        for inputs in several:
            if open_store(cache).find(inputs) is None:
                tree.build(open_store(cache), inputs, "user0/x.h", code=code_of(inputs.source))

    def everything_is_found() -> bool:
        return all(open_store(cache).find(inputs) is not None for inputs in several)

    build()
    for _ in range(MUTATIONS):
        kind = chance.choice(("changed", "swapped", "swapped", "misplaced"))
        folder = cache / chance.choice(("objects", "records"))
        paths = sorted(folder.iterdir())
        path, other = chance.sample(paths, 2)
        if kind == "changed":
            path.write_bytes(changed(path.read_bytes(), chance))
        elif kind == "swapped":
            path.rename(folder / "aside")
            other.rename(path)
            (folder / "aside").rename(other)
        else:
            misplace(path, chance)
        right = True
        for inputs in several:
            obj = open_store(cache).find(inputs)
            right &= obj is None or obj.code == code_of(inputs.source)
        for left in (folder / "other", cache / "a second name"):
            left.unlink(missing_ok=True)
        build()
        right &= everything_is_found()
        counts[kind] += 1
        bad[kind] += not right
        # Remove entries that the mutation made unreachable; the next mutation begins with an intact cache.
        remove_damaged(cache)
        build()
    record("cache file damaged", counts["changed"], bad["changed"])
    record("cache files under each other's keys", counts["swapped"], bad["swapped"])
    record("link, pipe or folder in a cache file's tree", counts["misplaced"], bad["misplaced"])
    assert bad == dict.fromkeys(counts, 0)

"""Tests of what a hit imports, and of how each process's hits are counted."""

import pytest

from rtcompile.store.folder import Folder
from tests.processes import python

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("absent_device")]


def test_a_forked_child_finds_code_and_counts_only_its_own_hits_however_it_ends(cache):
    """Children of multiprocessing end without calling the functions registered with `atexit`."""
    program = """if True:
        import multiprocessing, os, sys, rtcompile
        find = lambda: rtcompile.compile("__global__ void k() {}", arch="sm_80").build.hit
        find()
        hits = [find() for _ in range(3)]
        from rtcompile.lookup import environment
        with environment.current().memory._guard:
            child = os.fork()  # as while another thread looks something up
        if not child:
            assert find() == "disk"
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        for _ in range(2):
            child = multiprocessing.get_context("fork").Process(target=find)
            child.start()
            child.join()
    """
    python(program, check=True, timeout=60)

    assert Folder(str(cache)).counts()["hits"] == 3 + 1 + 2


def test_no_descriptor_of_the_cache_stays_open(cache):
    program = """if True:
        import os, rtcompile
        for source in ("__global__ void k() {}", "__global__ void k() {}", "#include <nowhere>"):
            try:
                # An idle core that makes a precompiled header would hold that header's lock.
                rtcompile.compile(source, arch="sm_80", pch=False)
            except rtcompile.CompileError:
                pass
        links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        print(*(os.readlink(link) for link in links if os.path.lexists(link)))
    """
    done = python(program, check=True)
    assert str(cache) not in done.stdout


HEAVY = (
    "logging sqlite3 json pickle _hashlib subprocess tempfile re shlex typing inspect dataclasses"
)


@pytest.mark.takes_seconds
@pytest.mark.parametrize(
    ("statement", "most"),
    [
        ("import rtcompile.frontends.raw_module", 23),
        ("import rtcompile.api", 20),
        ("import rtcompile.build.many", 20),
    ],
)
def test_a_hit_loads_few_modules(statement, most):
    pytest.importorskip("cupy")
    code = (
        f"import {'cupy, ' * ('raw_module' in statement)}sys; before = set(sys.modules); {statement};"
        "print(*sorted(m for m in set(sys.modules) - before))"
    )
    done = python(code, check=True)
    loaded = set(done.stdout.split())
    assert len([name for name in loaded if name.startswith("rtcompile")]) <= most
    heavy = "typing inspect dataclasses re json functools contextlib"
    assert not loaded & {*heavy.split()}


@pytest.mark.parametrize("spelling", ["'-DN=1'", "['-DN=1']"])
def test_a_hit_imports_no_module_for_any_spelling_or_to_log_it(cache, monkeypatch, spelling):
    program = f"""if True:
        import sys
        before = {{*sys.modules}}
        import rtcompile
        found = rtcompile.compile("__global__ void k() {{}}", options={spelling}, arch="sm_80")
        print(found.build.hit)
        print(*{{*"{HEAVY}".split()}} & sys.modules.keys() - before)
    """
    for log in ("", "", "info"):
        monkeypatch.setenv("RTCOMPILE_LOG", log)
        done = python(program, check=True)
        hit, _, loaded = done.stdout.partition("\n")
        if hit == "disk":
            assert loaded == "\n"
            line = done.stderr.partition(" in ")[0]
            assert line == ("rtcompile: kernel.cu for sm_80 by nvrtc, hit (disk)" if log else "")
    assert hit == "disk"

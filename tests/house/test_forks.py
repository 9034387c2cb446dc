"""Tests of programs that fork while another thread builds: the child can build too."""

import time

import pytest

from tests.processes import python

# The program forks while another thread imports MODULE.
FORKS_MEANWHILE = """if True:
    import os, signal, sys, threading, time
    from importlib.machinery import SourceFileLoader
    import rtcompile

    def slow(loader, name):
        if name == MODULE and threading.current_thread() is builder:
            inside.set()
            time.sleep(SECONDS)
        return get_code(loader, name)

    get_code, SourceFileLoader.get_code = SourceFileLoader.get_code, slow
    inside = threading.Event()
    builder = threading.Thread(target=lambda: BEGIN, daemon=True)
    builder.start()
    inside.wait()
    child = os.fork()
    if not child:
        signal.alarm(60)  # where it would wait for ever
        BEGIN
        os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def forks_while(module: str, begin: str, seconds: float = 0.3) -> float:
    """Run the program with an import of this duration; return how long it and its child took."""
    program = FORKS_MEANWHILE.replace("MODULE", repr(module)).replace("BEGIN", begin)
    program = program.replace("SECONDS", str(seconds))
    begun = time.monotonic()
    python(program, check=True, timeout=120)
    return time.monotonic() - begun


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    ("module", "begin"),
    [
        pytest.param("rtcompile.api", "rtcompile.compile", id="ours"),
        pytest.param("json", "rtcompile.compile('', arch='sm_80')", id="what ours imports"),
    ],
)
def test_a_child_forked_during_an_import_builds(module, begin):
    forks_while(module, begin)


def test_an_unrelated_import_delays_no_fork():
    begin = "globals().get('child') == 0 or __import__('colorsys')"
    assert forks_while("colorsys", begin, seconds=600) < 60


LOCKED = """if True:
    import os, signal, sys, threading
    from rtcompile.frontends import lazy_code

    taken, done = threading.Event(), threading.Event()
    def keep_locked():
        with lazy_code.loading:
            taken.set()
            done.wait()
    threading.Thread(target=keep_locked, daemon=True).start()
    taken.wait()
    child = os.fork()
    if not child:
        signal.alarm(60)  # where it would wait for ever
        with lazy_code.loading:
            os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_finds_the_locks_of_living_objects_open():
    pytest.importorskip("cupy")
    python(LOCKED, check=True, timeout=120)

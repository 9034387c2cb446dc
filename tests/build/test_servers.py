"""Tests of builds in servers' single thread: greenlets and coroutines go on while a compiler runs."""

import importlib.util
import json
from typing import Any

import pytest

from tests.processes import python

pytestmark = pytest.mark.needs_compiler

# Types that double 40 times: a compiler that nobody ends runs for minutes.
BODY = """
import json, time

ENDLESS = "typedef int (*F0)(int);\\n" + "".join(
    f"typedef F{i} (*F{i + 1})(F{i}, F{i});\\n" for i in range(40)
) + 'extern "C" __global__ void k(F40 f) {}'
SMALL = 'extern "C" __global__ void k%d() {}'
ticks, seconds, results = [], {}, {}

def timed(name, function, *arguments, **named):
    begin = time.monotonic()
    try:
        outcome = function(*arguments, **named)
    except BaseException as error:
        outcome = type(error).__name__
    seconds[name] = time.monotonic() - begin
    return outcome

def compile(number, **more):
    import rtcompile
    return rtcompile.compile(SMALL % number, arch="sm_80", **more).build.backend

def endless(seconds):
    import rtcompile
    return rtcompile.compile(ENDLESS, arch="sm_80", timeout=seconds)

def work(spawn, wait, within):
    results["first"] = compile(0)
    ticks.clear()
    results["endless"] = timed("endless", endless, 2)
    results["ticks"] = len(ticks)
    results["several"] = [wait(each) for each in [spawn(compile, number) for number in (1, 2, 2)]]
    results["ended"] = timed("ended", within, 0.5, endless, 60)
    results["after"] = compile(3)
    results["seconds"] = seconds
    print(json.dumps(results))

def tick():
    while "seconds" not in results:
        time.sleep(0.01)
        ticks.append(0)
"""
# A library of greenlets: its imports, and how a greenlet is waited for.
GREENLETS = {
    "gevent": (
        "from gevent import monkey\nmonkey.patch_all()\nimport gevent",
        "gevent.Greenlet.get",
    ),
    "eventlet": ("import eventlet\neventlet.monkey_patch()", "lambda each: each.wait()"),
}
SERVER = """
%(imports)s
%(body)s
def within(limit, function, *arguments):
    with %(library)s.Timeout(limit):
        function(*arguments)

ticking = %(library)s.spawn(tick)
work(%(library)s.spawn, %(wait)s, within)
"""


def outcome_of(program: str) -> dict[str, Any]:
    done = python(program, timeout=120, environ={"PYTHONWARNINGS": "ignore"})
    assert done.returncode == 0, done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


@pytest.mark.some
@pytest.mark.parametrize("module", GREENLETS)
@pytest.mark.parametrize("slots", ["1", "2"])
def test_other_greenlets_go_on_while_a_compiler_runs(module, slots, monkeypatch):
    if importlib.util.find_spec(module) is None:  # an import would change this process
        pytest.skip(f"{module} is not installed")
    monkeypatch.setenv("RTCOMPILE_JOBS", slots)
    imports, wait = GREENLETS[module]
    given = {"library": module, "imports": imports, "wait": wait, "body": BODY}
    outcome = outcome_of(SERVER % given)
    assert (outcome["first"], outcome["after"]) == ("nvrtc", "nvrtc")
    assert outcome["several"] == ["nvrtc"] * 3
    assert outcome["endless"] == "CompileTimeout"
    assert outcome["ticks"] > 50, "2 s of compiling have 200 hundredths"
    # A greenlet that is ended ends its compiler.
    assert outcome["ended"] == "Timeout"
    assert outcome["seconds"]["ended"] < 5


ASYNCIO = f"""
import asyncio
import rtcompile
from rtcompile import CompileRequest, submit_many
{BODY}
async def built(source):
    (future,) = submit_many([CompileRequest(source, arch="sm_80")])
    return (await asyncio.wrap_future(future)).build.backend

async def tick():
    while True:
        await asyncio.sleep(0.01)
        ticks.append(0)

async def main():
    ticking = asyncio.create_task(tick())
    results["first"] = await built(SMALL % 0)
    ticks.clear()
    try:
        await asyncio.wait_for(built(ENDLESS), 2)
    except TimeoutError:
        results["endless"] = "TimeoutError"
    results["ticks"] = len(ticks)
    results["several"] = await asyncio.gather(*(built(SMALL % number) for number in (1, 2, 2)))
    results["in a thread"] = await asyncio.to_thread(compile, 3)

asyncio.run(main())
print(json.dumps(results))
"""


def test_other_coroutines_go_on_while_a_compiler_runs(monkeypatch):
    # With one slot, the builds after it show that the compiler of the cancelled one has ended.
    monkeypatch.setenv("RTCOMPILE_JOBS", "1")
    outcome = outcome_of(ASYNCIO)
    assert outcome["first"] == outcome["in a thread"] == "nvrtc"
    assert outcome["several"] == ["nvrtc"] * 3
    assert outcome["endless"] == "TimeoutError"
    assert outcome["ticks"] > 50

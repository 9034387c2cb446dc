"""Tests of a fleet of nodes: shared work, leases returned however a process ends, and counts."""

import json
import os
import pickle
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("zstandard")

import rtcompile
from rtcompile.extras.cluster.stores import Lease, current
from tests import nodes
from tests.processes import command, python, started

pytestmark = pytest.mark.needs_compiler


# --- shared work ---

# Simulates a compile of `seconds` on its own processor by sleeping.
BATCH = """
import json, sys, time
import rtcompile
from rtcompile.build import miss
from tests import nodes
count, seconds = json.loads(sys.argv[1])
built = miss.Miss.run
def run(self):
    time.sleep(seconds)
    return built(self)
miss.Miss.run = run
requests = [rtcompile.CompileRequest(nodes.source(n), arch="sm_80") for n in range(count)]
print("ready", flush=True)
sys.stdin.readline()
begin = time.monotonic()
codes = rtcompile.compile_many(requests)
seconds = time.monotonic() - begin
print(json.dumps({"built": [c.build.hit is None for c in codes], "seconds": seconds}))
"""


def batches(folder: Path, address: str, names: list[str], count: int, seconds: float) -> list[dict]:
    running = []
    for name in names:
        env = nodes.environment(folder, name, address, RTCOMPILE_JOBS="1")
        given = json.dumps([count, seconds])
        running.append(started(sys.executable, "-c", BATCH, given, environ=env))
    nodes.begin_together(running)
    return [json.loads(process.communicate(timeout=300)[0]) for process in running]


@pytest.mark.takes_seconds
def test_nodes_with_the_same_builds_share_the_work(tmp_path, address):
    found = batches(tmp_path, address, ["a", "b", "c", "d"], 12, 0.5)
    shares = [sum(each["built"]) for each in found]
    assert sum(shares) == 12
    assert max(shares) <= 6


@pytest.mark.takes_seconds
def test_ranks_of_one_node_share_the_work_too(tmp_path, address):
    found = batches(tmp_path, address, ["a", "a"], 6, 0.5)
    shares = [sum(each["built"]) for each in found]
    assert (sum(shares), min(shares) > 0) == (6, True)


# --- ends ---

ENDS = {
    "a signal": "os.kill(os.getpid(), 15)",
    "os._exit": "os._exit(0)",
    "a kill": "os.kill(os.getpid(), 9)",
    "a child of fork": "os._exit(0)",
}
HOLDING = """
import os, sys, time
if sys.argv[1] == "a child of fork" and os.fork():
    os.wait()
    os._exit(0)
from rtcompile.extras.cluster.stores import current
assert current().lease("k", lambda: None) is not None
{}
"""


@pytest.mark.parametrize("how", ENDS)
def test_the_lease_of_an_ended_process_is_free_on_its_machine(on, tmp_path, address, how):
    end_holding(tmp_path, address, how)
    on("b", address)
    begin = time.monotonic()
    assert isinstance(current().lease("k", lambda: None), Lease)
    assert current().stalls == 0
    assert time.monotonic() - begin < 4.0


@pytest.mark.takes_seconds
def test_the_lease_of_an_ended_process_is_free_elsewhere_after_its_time(
    on, tmp_path, address, monkeypatch
):
    """Another machine cannot see that the process has ended."""
    end_holding(tmp_path, address, "a kill")
    on("b", address)
    monkeypatch.setattr("rtcompile.extras.cluster.stores._machine", lambda: "another")
    begin = time.monotonic()
    lease = current().lease("k", lambda: None)
    assert isinstance(lease, Lease)
    assert 2.0 < time.monotonic() - begin < 20.0


def end_holding(folder: Path, address: str, how: str) -> None:
    env = {**os.environ, **nodes.environment(folder, "a", address)}
    program = HOLDING.format(ENDS[how])
    python(program, how, env=env)


def test_a_thread_that_outlives_the_main_thread_shares_its_builds(on, tmp_path):
    address = f"file://{tmp_path}/shared"
    env = {**os.environ, **nodes.environment(tmp_path, "a", address)}
    program = (
        "import threading, time, rtcompile\n"
        "def build():\n"
        "    threading.main_thread().join()\n"
        f"    rtcompile.compile({nodes.source(1)!r}, arch='sm_80')\n"
        "threading.Thread(target=build).start()"
    )
    done = python(program, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    on("b", address)
    assert rtcompile.compile(nodes.source(1), arch="sm_80").build.hit == "remote"


# --- fetched ahead ---


def test_the_builds_of_a_record_are_fetched_ahead(on, tmp_path, address, run_json):
    on("a", address)
    script, record = tmp_path / "program.py", str(tmp_path / "kernels.json")
    script.write_text(
        f"import rtcompile\nfor s in {[nodes.source(n) for n in range(5)]!r}:\n"
        "    rtcompile.compile(s, arch='sm_80')\n"
    )
    command("run", "--record", record, script, check=True)
    on("b", address)
    code, printed = run_json("warm", record)
    (row,) = printed["records"]
    assert (code, row["built"], row["there already"]) == (0, 0, 5)
    assert current().levels[0].counts["hits"] == 5
    for number in range(5):
        code = rtcompile.compile(nodes.source(number), arch="sm_80")
        assert code.build.hit in ("memory", "disk", "remote")
    on("b", address, RTCOMPILE_REMOTE="")
    assert rtcompile.compile(nodes.source(0), arch="sm_80").build.hit == "disk"


# --- counted ---


def test_the_time_that_a_store_saved_and_cost_is_counted(on, address, run_json):
    on("a", address)
    rtcompile.compile(nodes.source(1), arch="sm_80")
    assert current().levels[0].counts["misses"] == 1
    assert current().flush(10.0)
    on("b", address)
    code = rtcompile.compile(nodes.source(1), arch="sm_80")
    assert code.build.hit == "remote"
    assert pickle.loads(pickle.dumps(code.build)) == code.build
    (counts,) = run_json("cache", "info")[1]["levels"].values()
    assert (counts["hits"], counts["misses"]) == (1, 0)
    assert counts["seconds_saved"] == pytest.approx(code.build.compiled_in / 1e3, abs=0.001)
    assert current().levels[0].counts["seconds_waited"] > 0.0  # the journal has microseconds
    assert 0.0 <= counts["seconds_waited"] <= code.build.milliseconds / 1e3 + 0.001
    assert counts["bytes_read"] > 1000


def test_a_run_reports_what_each_store_cost_and_saved(on, address, tmp_path):
    on("a", address)
    rtcompile.compile(nodes.source(1), arch="sm_80")
    assert current().flush(10.0)
    on("b", address)
    script = tmp_path / "program.py"
    texts = [nodes.source(n) for n in (1, 2)]
    script.write_text(
        f"import rtcompile\nfor text in {texts!r}:\n    rtcompile.compile(text, arch='sm_80')\n"
    )
    (line,) = command("run", script, check=True).stderr.splitlines()
    assert "2 kernels: 1 from the cache (1 of them from shared stores), 1 built" in line

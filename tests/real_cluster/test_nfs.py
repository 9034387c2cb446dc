"""Tests with a real NFS: a server and two clients in a User Mode Linux that uses this machine's files."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import documentation
from tests.processes import ran

_NEEDED = ("linux.uml", "rpc.nfsd", "rpc.mountd", "rpcbind", "exportfs", "modprobe", "mkfs.ext4")

PROGRAM = """
import json, os, subprocess, sys, time
from rtcompile.extras.cluster.folder_store import FolderStore
from rtcompile.extras.cluster.entries import RemoteSettings
from tests import nodes
from pathlib import Path

printed = {}
one, two = (
    FolderStore(f"file:///mnt/{each}/kernels", RemoteSettings(()))
    for each in ("one", "two")
)

def plain(name):
    try:
        return Path(f"/mnt/two/kernels/object/{name}").read_text()
    except FileNotFoundError:
        return None

one.put("object/first", b"bytes")
printed["before"] = [two.get("object/k") is None, plain("k")]
one.put("object/k", b"bytes")
printed["remembered"] = plain("k")
printed["found"] = two.get("object/k").decode()
one.put("object/k", b"others")
printed["replaced"] = two.get("object/k").decode()
printed["lease"] = [one.create("f/lease/k", b"1"), two.create("f/lease/k", b"2")]
one.put("f/lease/k", b"3")
printed["renewed"] = two.get("f/lease/k").decode()

folder = Path("/mnt/homes")
folder.mkdir()
sources = [nodes.source(number) for number in range(6)]

def started(mount, name, first=0):
    address = f"file:///mnt/{mount}/team"
    return nodes.start(nodes.environment(folder, name, address, TMPDIR="/mnt"), sources[first:])

pair = [started("one", "a"), started("two", "b")]
printed["hits"] = [nodes.result(process)["hits"] for process in pair]
printed["later"] = nodes.result(started("two", "c"))["hits"]

subprocess.run(["rpc.nfsd", "0"], check=True)
sources = [nodes.source(7)]
printed["gone"] = nodes.result(started("one", "d"))
print(json.dumps(printed), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output of the program on a machine with NFS."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in _NEEDED if shutil.which(name, path=path) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"it takes root, and {', '.join(missing) or 'nothing else'}")
    folder = tmp_path_factory.mktemp("nfs")
    (folder / "program.py").write_text(PROGRAM)
    environment = {
        "FOLDER": folder,
        "ROOT": documentation.ROOT,
        "PYTHON": sys.executable,
        "PYTHONPATH": documentation.ROOT,
        "HOME": folder,
    }
    done = ran(
        "linux.uml",
        *("rootfstype=hostfs", "hostfs=/", "rw", "mem=2G", "con=null", "con0=null,fd:1"),
        f"init={Path(__file__).with_name('nfs_machine.sh')}",
        *(f"{name}={value}" for name, value in environment.items()),
        environ={"HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        timeout=400,
    )
    output = folder / "output"
    assert output.exists(), done.stdout[-3000:]
    lines = output.read_text().splitlines()
    assert lines[-1:] == [line for line in lines if line.startswith("{")], lines[-20:]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def test_entries_that_an_nfs_client_cached_as_missing_are_found(printed):
    assert printed["before"] == [True, None]
    assert printed["remembered"] is None  # otherwise this machine's NFS caches nothing
    assert (printed["found"], printed["replaced"]) == ("bytes", "others")


def test_one_client_of_nfs_has_a_lease(printed):
    assert (printed["lease"], printed["renewed"]) == ([True, False], "3")


def test_two_clients_of_nfs_compile_a_kernel_once(printed):
    hits = [hit for each in printed["hits"] for hit in each]
    assert (hits.count(None), hits.count("remote")) == (6, 6)
    assert printed["later"] == ["remote"] * 6


def test_an_nfs_server_that_is_gone_costs_one_warning_and_no_build(printed):
    assert printed["gone"]["hits"] == [None]
    (warning,) = printed["gone"]["warnings"]
    assert "no reply in 0.75 s" in warning
    # On an emulated machine, with a server that never responds.
    assert printed["gone"]["seconds"] < 60.0

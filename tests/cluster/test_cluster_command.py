"""Tests of ``rtcompile cache push|pull|sync``, and of the checks of stores by ``rtcompile doctor``."""

import json
import os

import pytest

pytest.importorskip("zstandard")

import rtcompile
from rtcompile.checkup import checks
from rtcompile.checkup.checks import Check
from rtcompile.cli import main
from rtcompile.extras.cluster.folder_store import FolderStore
from rtcompile.settings import Settings
from rtcompile.store.shared import StoreError
from tests import nodes, servers


def build_locally(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    with monkeypatch.context() as patch:
        patch.delenv("RTCOMPILE_REMOTE")
        rtcompile.compile(nodes.source(number), arch="sm_80")


def hits_without_a_store(monkeypatch: pytest.MonkeyPatch, number: int) -> str | None:
    with monkeypatch.context() as patch:
        patch.delenv("RTCOMPILE_REMOTE")
        patch.setenv("RTCOMPILE_JIT", "0")
        return rtcompile.compile(nodes.source(number), arch="sm_80").build.hit


@pytest.mark.needs_compiler
def test_a_pushed_cache_is_pulled_by_another_node(on, address, monkeypatch, capsys):
    on("a", address)
    for number in range(3):
        build_locally(monkeypatch, number)
    assert main(["cache", "push"]) == 0
    assert main(["cache", "push"]) == 0
    output = capsys.readouterr().out.splitlines()
    assert [line[:15] for line in output] == ["3 builds copied", "0 builds copied"]

    on("b", address)
    assert main(["cache", "pull"]) == 0
    assert [hits_without_a_store(monkeypatch, number) for number in range(3)] == ["disk"] * 3


@pytest.mark.needs_compiler
def test_a_sync_pulls_and_pushes(on, address, monkeypatch, capsys):
    on("a", address)
    build_locally(monkeypatch, 1)
    main(["cache", "push"])
    on("b", address)
    build_locally(monkeypatch, 2)
    capsys.readouterr()

    assert main(["cache", "sync", "--json"]) == 0

    done = json.loads(capsys.readouterr().out)["stores"]
    assert [(each["direction"], each["copied"]) for each in done] == [("from", 1), ("to", 1)]


@pytest.mark.needs_compiler
def test_only_verified_entries_are_pulled(on, tmp_path, monkeypatch, capsys):
    on("a", f"file://{tmp_path}/shared")
    build_locally(monkeypatch, 1)
    main(["cache", "push"])
    (path,) = (tmp_path / "shared").glob("*/*/*")  # a small kernel is one entry
    os.chmod(path, 0o600)
    path.write_bytes(path.read_bytes()[:-1])
    on("b", f"file://{tmp_path}/shared")

    with pytest.warns(rtcompile.RtcompileWarning, match="signature"):
        assert main(["cache", "pull"]) == 1
    with pytest.raises(rtcompile.JitDisabled):
        hits_without_a_store(monkeypatch, 1)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        pytest.param({"RTCOMPILE_REMOTE": ""}, "names no shared store", id="none"),
        pytest.param({"RTCOMPILE_REMOTE_MODE": "ro"}, "RTCOMPILE_REMOTE_MODE=ro", id="read-only"),
    ],
)
def test_an_impossible_push_names_the_setting(on, tmp_path, capsys, changes, what):
    on("a", f"file://{tmp_path}/shared", **changes)
    assert main(["cache", "push"]) != 0
    assert what in capsys.readouterr().err


def test_a_sync_that_may_not_write_copies_nothing(on, tmp_path, monkeypatch, capsys):
    on("a", f"file://{tmp_path}/shared", RTCOMPILE_REMOTE_MODE="ro")
    monkeypatch.setattr("rtcompile.cli.caching.pull", lambda *_: pytest.fail("it was read"))
    assert main(["cache", "sync"]) != 0
    assert "RTCOMPILE_REMOTE_MODE=ro" in capsys.readouterr().err


# --- doctor -----------------------------------------------------------------------------------


def looked_at() -> Check:
    (check,) = checks.shared_stores(Settings.from_environ())
    return check


def test_a_complete_store_is_reported_as_ok(on, address):
    on("a", address)
    check = looked_at()
    assert check.status == "ok"
    for word in ("a round trip", "reads", "writes", "clock", "gives leases"):
        assert word in check.detail


def test_a_read_only_store_is_reported_as_ok(on, address):
    on("a", address, RTCOMPILE_REMOTE_MODE="ro")
    assert (looked_at().status, "nothing is written" in looked_at().detail) == ("ok", True)


def refuse(*_: object) -> None:
    raise StoreError("Permission denied")


def no_lease(*_: object) -> None:
    raise OSError(95, "Operation not supported")


@pytest.mark.parametrize(
    ("target", "name", "harm", "what"),
    [
        pytest.param(FolderStore, "put", refuse, "cannot write", id="read-only"),
        pytest.param(os, "link", no_lease, "not supported", id="no leases"),
    ],
)
def test_missing_features_of_a_store_are_reported(
    on, tmp_path, monkeypatch, target, name, harm, what
):
    on("a", f"file://{tmp_path}/shared")
    monkeypatch.setattr(target, name, harm)
    check = looked_at()
    assert (check.status, what in check.detail + check.hint) == ("warning", True)


def test_an_unreachable_store_is_an_error_without_the_password(on):
    on("a", f"redis://:hunter2@127.0.0.1:{servers.free_port()}/0")
    check = looked_at()
    assert (check.status, "hunter2" in str(check)) == ("error", False)


def test_a_setting_that_cannot_be_used_is_an_error(on, tmp_path):
    on("a", f"file://{tmp_path}/shared", RTCOMPILE_REMOTE_KEY_FILE="/none/such")
    assert "RTCOMPILE_REMOTE_KEY_FILE" in looked_at().detail

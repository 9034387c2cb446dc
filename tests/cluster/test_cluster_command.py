"""Tests of the checks of stores by ``rtcompile doctor``."""

import os

import pytest

pytest.importorskip("zstandard")

from rtcompile.checkup import Check, checks
from rtcompile.extras.cluster.entries import StoreError
from rtcompile.extras.cluster.folder_store import FolderStore
from rtcompile.settings import Settings
from tests import servers


def looked_at() -> Check:
    (check,) = checks.shared_stores(Settings.from_environ())
    return check


@pytest.mark.parametrize(
    ("mode", "words"),
    [("rw", ["a round trip", "reads", "writes", "gives leases"]), ("ro", ["nothing is written"])],
)
def test_a_complete_store_is_reported_as_ok(on, address, mode, words):
    on("a", address, RTCOMPILE_REMOTE_MODE=mode)
    check = looked_at()
    assert (check.status, [word in check.detail for word in words]) == ("ok", [True] * len(words))


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

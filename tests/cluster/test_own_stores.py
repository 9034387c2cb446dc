"""Tests of a store from another package: the example of docs/cluster.md, found by its entry point."""

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("zstandard")

import rtcompile
from rtcompile.checkup import checks
from rtcompile.errors import InvalidRequest, RtcompileWarning
from rtcompile.extras.cluster.entries import open_store
from rtcompile.extras.cluster.stores import current
from rtcompile.settings import Settings
from tests import nodes

PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()


@pytest.fixture
def address(tmp_path, monkeypatch):
    """The address of a store whose scheme belongs to an installed package."""
    entry, code = re.findall(
        r"```(?:toml|python)\n(.*?)```", PAGE.partition("## A store of your own")[2], re.DOTALL
    )[:2]
    installed = tmp_path / "site" / "sqlite_store-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: sqlite-store\nVersion: 1.0\n")
    head, _, table = entry.partition("\n")
    assert head == '[project.entry-points."rtcompile.stores"]'
    (installed / "entry_points.txt").write_text(f"[rtcompile.stores]\n{table.replace(chr(34), '')}")
    (tmp_path / "site" / "sqlite_store.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield f"sqlite://{tmp_path}/kernels.db"
    sys.modules.pop("sqlite_store", None)


def build(source: str) -> str | None:
    code = rtcompile.compile(source, arch="sm_80")
    assert current().flush(10.0)
    return code.build.hit


@pytest.mark.needs_compiler
def test_what_one_node_built_another_gets(on, address):
    on("a", address)
    assert build(nodes.source(1)) is None
    on("b", address)
    assert build(nodes.source(1)) == "remote"


@pytest.mark.needs_compiler
def test_any_error_of_the_store_costs_one_warning(on, address, monkeypatch):
    store = type(open_store(address))

    def get(self: object, key: str) -> bytes:
        raise LookupError("no route to the vault")

    monkeypatch.setattr(store, "get", get)
    on("a", address)
    with pytest.warns(RtcompileWarning, match="no route to the vault") as caught:
        assert build(nodes.source(2)) is None
    assert len(caught) == 1
    assert build(nodes.source(3)) is None


def test_doctor_reports_a_store_without_leases(on, address):
    on("a", address)
    [check] = checks.shared_stores(Settings.from_environ())
    assert (check.status, "no leases" in check.detail) == ("ok", True)


def test_without_the_package_the_known_schemes_are_named():
    with pytest.raises(InvalidRequest, match=r"file://.*redis://.*rtcompile\.stores"):
        open_store("sqlite:///kernels.db")


def test_a_client_that_cannot_be_imported_is_named(address, tmp_path):
    (tmp_path / "site" / "sqlite_store.py").write_text("import no_such_driver\n")
    with pytest.raises(InvalidRequest, match=r"RTCOMPILE_REMOTE=sqlite://.*no_such_driver"):
        open_store(address)

"""Object stores that keep conditions, and one that ignores them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rtcompile.cluster.stores import LeasesUnsupportedError, SharedStore, open_store
from tests import servers


@pytest.fixture(scope="module")
def s3() -> Iterator[SharedStore]:
    with servers.s3() as server:
        yield open_store(server.address, ttl=60.0, group=False)


@pytest.fixture(scope="module")
def careless() -> Iterator[SharedStore]:
    with servers.s3_without_conditions() as server:
        yield open_store(server.address, ttl=60.0, group=False)


def test_what_was_put_is_got(s3: SharedStore):
    s3.put("object/abc", b"bytes" * 1000)

    assert s3.get("object/abc") == b"bytes" * 1000
    assert s3.get("object/gone") is None


def test_one_of_two_gets_the_lease_until_it_is_released(s3: SharedStore):
    assert s3.acquire("lease/k", "mine", 30.0)
    assert not s3.acquire("lease/k", "theirs", 30.0)
    s3.release("lease/k", "mine")
    assert s3.acquire("lease/k", "theirs", 30.0)


def test_a_lease_that_ended_is_taken_over(s3: SharedStore):
    assert s3.acquire("lease/old", "mine", -1.0)
    assert s3.acquire("lease/old", "theirs", 30.0)


def test_a_store_that_ignores_conditions_is_used_without_leases(careless: SharedStore):
    careless.put("object/abc", b"bytes")
    assert careless.get("object/abc") == b"bytes"
    with pytest.raises(LeasesUnsupportedError, match="ignores conditions"):
        careless.acquire("lease/k", "mine", 30.0)

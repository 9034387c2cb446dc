"""GPU tests are skipped, with the reason, where there is no device."""

import pytest

from tests import doors

HERE = "tests/gpu/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    count = doors.devices()
    for item in items:
        if HERE not in item.nodeid and HERE not in str(item.path.as_posix()):
            continue
        item.add_marker(pytest.mark.needs_gpu)
        if count == 0:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        elif count < 2 and item.get_closest_marker("multi_gpu"):
            item.add_marker(pytest.mark.skip(reason="needs two CUDA devices"))

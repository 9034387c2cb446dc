"""What every test stands on: a cache of its own, a clean environment, the other toolkit's folder."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

# A shell that starts the tests in the background has Ctrl-C ignored, in every process below it;
# the tests that send one would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_environment(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No test reads the developer's settings, writes to his cache, or uses another test's bundles."""
    for name in list(os.environ):
        if name.startswith(("RTCOMPILE_", "CUPY_")) and name != "RTCOMPILE_TEST_CUDA13":
            monkeypatch.delenv(name)
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr("rtcompile.bundles._bundles", {})


@pytest.fixture(scope="session")
def cuda13_prefix() -> Path:
    """The folder of a CUDA 13 toolkit installed from wheels (`make test` makes one)."""
    folder = os.environ.get("RTCOMPILE_TEST_CUDA13", "")
    if not folder:
        pytest.skip("RTCOMPILE_TEST_CUDA13 names no folder with CUDA 13 wheels; `make test` does")
    return Path(folder)

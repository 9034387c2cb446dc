"""A pytest plugin that puts rtcompile in CuPy's place, to run CuPy's own tests against it.

    python -m pytest -p tests.gpu.as_cupy .../cupy/tests/cupy_tests/core_tests/test_raw.py

docs/cupy.md, "Where they differ", names the tests that are expected to fail, and why.
"""

from __future__ import annotations

import cupy

import rtcompile


def pytest_configure() -> None:
    cupy.RawKernel = rtcompile.RawKernel
    cupy.RawModule = rtcompile.RawModule

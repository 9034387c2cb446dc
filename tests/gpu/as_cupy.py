"""A pytest plugin that replaces CuPy's classes by rtcompile's, to run CuPy's own tests with them.

    python -m pytest -p tests.gpu.as_cupy .../cupy/tests/cupy_tests/core_tests/test_raw.py

docs/cupy.md, "Where they differ", names the tests that are expected to fail, and why.
"""

import cupy

import rtcompile


def pytest_configure() -> None:
    cupy.RawKernel = rtcompile.RawKernel
    cupy.RawModule = rtcompile.RawModule

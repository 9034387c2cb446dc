"""A pytest plugin under which every kernel of CuPy is compiled by rtcompile, to run CuPy's own tests.

python -m pytest -p tests.gpu.all_through_us .../cupy/tests/cupy_tests/core_tests
"""

import rtcompile


def pytest_configure() -> None:
    assert rtcompile.install().active

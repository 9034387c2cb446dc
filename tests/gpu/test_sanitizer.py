"""compute-sanitizer finds neither a bad access nor a race in any example."""

from __future__ import annotations

import pytest

cp = pytest.importorskip("cupy")

from tests.gpu import random_cases, sanitizer  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("tool", sanitizer.TOOLS)
@pytest.mark.parametrize("example", random_cases.CASES)
def test_the_sanitizer_finds_nothing(example: str, tool: str) -> None:
    if sanitizer.program() is None:
        pytest.skip("compute-sanitizer is not installed")
    if example in random_cases.HOPPER:
        if cp.cuda.Device().compute_capability != "90":
            pytest.skip("needs compute capability 9.0")
        pytest.importorskip("torch")
    report = sanitizer.run(tool, example, 5, timeout=220)
    assert not report["failures"], "\n".join([*report["failures"], report["log"][-4000:]])

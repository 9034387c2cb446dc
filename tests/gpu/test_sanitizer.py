"""compute-sanitizer finds no bad access and no race in any example."""

import pytest

cp = pytest.importorskip("cupy")

from tests.gpu import random_cases, sanitizer  # noqa: E402

pytestmark = pytest.mark.skipif(sanitizer.program() is None, reason="no compute-sanitizer here")


@pytest.fixture(scope="module")
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("sanitizer"))


@pytest.mark.parametrize("tool", sanitizer.TOOLS)
def test_the_sanitizer_finds_planted_errors(tool: str) -> None:
    assert sanitizer.planted(tool) > 0


@pytest.mark.slow
@pytest.mark.parametrize("tool", sanitizer.TOOLS)
@pytest.mark.parametrize("example", random_cases.CASES)
def test_the_sanitizer_finds_no_error_in_an_example(
    example: str, tool: str, one_cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if example in random_cases.HOPPER:
        if cp.cuda.Device().compute_capability != "90":
            pytest.skip("needs compute capability 9.0")
        pytest.importorskip("torch")
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", one_cache)
    report = sanitizer.run(tool, example, 10, timeout=220)
    assert not report["failures"], "\n".join([*report["failures"], report["log"][-4000:]])

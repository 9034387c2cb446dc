"""Every example runs, is right, and rejects invalid input before any launch."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from tests.tables import from_table

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.needs_gpu


def require_capability(least: int, exactly: bool = False) -> None:
    capability = int(cp.cuda.Device().compute_capability)
    if capability < least or (exactly and capability != least):
        pytest.skip(f"needs compute capability {least}, this device has {capability}")


@from_table
def test_example_agrees_with_numpy(example, least, exactly):
    require_capability(least, exactly)
    assert import_module(f"examples.{example}").check(cp)


def test_an_edited_kernel_runs_in_its_new_form(tmp_path):
    from examples import edit_and_see

    seen = list(edit_and_see.loop(tmp_path, cp))
    assert [bool(each.error) for each in seen] == [False, False, True, False]


def half(rows: int, columns: int) -> Any:
    return cp.ones((rows, columns), cp.float16)


HOPPER_MISTAKES = [
    pytest.param(lambda: (half(8, 8).astype("f4"),) * 2, "float16 or bfloat16", id="float32"),
    pytest.param(lambda: (half(8, 8), half(8, 8).astype("f4")), "both", id="mixed"),
    pytest.param(lambda: (half(8, 8), half(16, 8)), "cannot multiply", id="shapes"),
    pytest.param(lambda: (half(0, 8), half(8, 8)), "cannot multiply", id="empty"),
    pytest.param(lambda: (half(8, 9)[:, :8], half(8, 8)), "multiples? of 16 bytes", id="pitch"),
    pytest.param(lambda: (half(8, 16)[:, 1:9], half(8, 8)), "starts at", id="misaligned"),
    pytest.param(
        lambda: (half(8, 8).T, half(8, 8)), "rows must be contiguous", id="column-major a"
    ),
    pytest.param(lambda: (half(8, 8), half(16, 16)[::2, ::2]), "contiguous", id="strided b"),
]


@pytest.mark.parametrize("example", ["sm90_gemm", "cutlass_gemm"])
@pytest.mark.parametrize(("operands", "message"), HOPPER_MISTAKES)
def test_hopper_matmul_rejects_unsupported_operands(example, operands, message):
    require_capability(90, exactly=True)
    with pytest.raises((TypeError, ValueError), match=message):
        import_module(f"examples.{example}").matmul(*operands())


def test_hopper_matmul_rejects_host_arrays():
    require_capability(90, exactly=True)
    from examples import sm90_gemm

    with pytest.raises(TypeError, match="no device memory"):
        sm90_gemm.matmul(np.ones((8, 8), np.float16), half(8, 8))


@pytest.mark.parametrize("example", ["sm90_gemm", "cutlass_gemm"])
def test_hopper_matmul_writes_exactly_its_result(example):
    require_capability(90, exactly=True)
    m, n = 300, 264
    around = cp.full((m + 2, n + 16), 7, np.float16)
    out = around[1 : m + 1, 8 : n + 8]
    out[...] = cp.nan
    import_module(f"examples.{example}").matmul(half(m, 64), half(64, n), out=out)
    assert bool((out == 64).all())
    around[1 : m + 1, 8 : n + 8] = 7
    assert bool((around == 7).all())


@pytest.mark.parametrize("example", ["sm90_gemm", "cutlass_gemm"])
def test_hopper_matmul_rejects_results_whose_columns_tma_cannot_clip(example):
    require_capability(90, exactly=True)
    operands, room = (half(8, 8), half(8, 16)[:, :9]), half(8, 24)
    with pytest.raises(ValueError, match=r"shape \(8, 16\).*stores 16 bytes or none"):
        import_module(f"examples.{example}").matmul(*operands, out=room[:, :9])
    product = import_module(f"examples.{example}").matmul(*operands, out=room[:, :16])
    assert product.shape == (8, 9)
    assert bool((product == 8).all())
    assert bool((room[:, 16:] == 1).all())


def test_hopper_matmul_runs_on_torchs_current_stream():
    require_capability(90, exactly=True)
    torch = pytest.importorskip("torch")
    from examples import sm90_gemm

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # long enough for another stream to overtake
        a = torch.full((256, 256), 2.0, device="cuda", dtype=torch.bfloat16)
        product = sm90_gemm.matmul(a, a)
        on_this_stream = product.clone()
    stream.synchronize()
    assert bool((on_this_stream == 1024).all())


def test_wmma_matmul_rejects_a_view_with_gaps():
    from examples import wmma_gemm

    with pytest.raises(ValueError, match="ascontiguousarray"):
        wmma_gemm.matmul(half(8, 16)[:, :8], half(8, 8), "float16", wmma_gemm.load())


def test_pipelined_matmul_rejects_a_transposed_view():
    from examples import pipelined_matmul

    with pytest.raises(ValueError, match="rows must be contiguous"):
        pipelined_matmul.matmul(half(8, 8).T, half(8, 8))

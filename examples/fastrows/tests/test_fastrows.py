"""Without a GPU: every kernel compiles and matches its signature. With one: the numbers are right."""

from __future__ import annotations

import importlib.util

import fastrows
import pytest


def gpu():
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    import cupy as cp

    if not cp.cuda.is_available():
        pytest.skip("no CUDA device")
    return cp


def test_each_kernel_is_what_its_signature_says():
    module = fastrows._rows
    code = module.compile("sm_90a")
    for name in module:
        module[name].check(code)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 4, 1000), (2, 70000)])
def test_softmax(shape, dtype):
    cp = gpu()
    x = cp.random.default_rng(1).standard_normal(shape).astype(dtype)
    wide = x.astype("float64")
    expected = cp.exp(wide - wide.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    tolerance = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}[dtype]
    cp.testing.assert_allclose(fastrows.softmax(x), expected, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_normalize(dtype):
    cp = gpu()
    x = (3 + 5 * cp.random.default_rng(2).standard_normal((33, 1001))).astype(dtype)
    rows = fastrows.normalize(x).astype("float64")
    tolerance = {"float16": 5e-3, "float32": 1e-4, "float64": 1e-4}[dtype]
    cp.testing.assert_allclose(rows.mean(-1), 0, atol=tolerance)
    cp.testing.assert_allclose(rows.std(-1), 1, atol=tolerance)


def test_an_empty_array_stays_empty():
    cp = gpu()
    assert fastrows.softmax(cp.empty((0, 5), "float32")).shape == (0, 5)


def test_another_element_type_is_rejected():
    cp = gpu()
    with pytest.raises(TypeError, match="int32: expected one of float32"):
        fastrows.softmax(cp.zeros((2, 2), "int32"))

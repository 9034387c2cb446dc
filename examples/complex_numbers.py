"""Complex numbers in kernels, three ways: CuPy's own header, libcu++, and translated cuComplex.

Run it: ``python -m examples.complex_numbers``.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import rtcompile

# CuPy's header has the layout of CuPy's complex64 and complex128, and operators for them.
# libcu++'s cuda::std::complex is the C++ library's.
SOURCE = r"""
#include <cupy/complex.cuh>
#include <cuda/std/complex>

template <class T> __device__ T square_plus(T z, T c) { return z * z + c; }

template <class T>
__global__ void mandelbrot(const T* c, T* z, int steps, int size) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) return;
    T value{};
    for (int step = 0; step < steps; ++step) value = square_plus(value, c[i]);
    z[i] = value;
}
"""
# What older sources use; `translate_cucomplex=True` turns it into CuPy's operators.
CUCOMPLEX_SOURCE = r"""
#include <cuComplex.h>

extern "C" __global__ void mandelbrot(const cuDoubleComplex* c, cuDoubleComplex* z, int steps, int size) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) return;
    cuDoubleComplex value = make_cuDoubleComplex(0, 0);
    for (int step = 0; step < steps; ++step) value = cuCadd(cuCmul(value, value), c[i]);
    z[i] = value;
}
"""
OPTIONS = ("-std=c++17",)
NAME_EXPRESSIONS = (
    "mandelbrot<complex<float>>",
    "mandelbrot<complex<double>>",
    "mandelbrot<cuda::std::complex<float>>",
    "mandelbrot<cuda::std::complex<double>>",
)


def compile_only(arch: str = "sm_90a") -> rtcompile.ObjectCode:
    """Compile the templates for `arch`, on any machine: no GPU is needed."""
    return rtcompile.compile(
        SOURCE, options=OPTIONS, arch=arch, name_expressions=NAME_EXPRESSIONS, name="complex.cu"
    )


@functools.cache
def load() -> dict[str, Any]:
    """Return the kernel of each way, compiled for the current device when it is first called."""
    templates = rtcompile.RawModule(code=SOURCE, options=OPTIONS, name_expressions=NAME_EXPRESSIONS)
    translated = rtcompile.RawModule(
        code=CUCOMPLEX_SOURCE, options=OPTIONS, translate_cucomplex=True
    )
    kernels = {name: templates.get_function(name) for name in NAME_EXPRESSIONS}
    return {**kernels, "cuComplex, translated": translated.get_function("mandelbrot")}


def check(cp: Any, size: int = 1001, steps: int = 10) -> dict[str, float]:
    """Compare every way with NumPy; return the relative errors.

    Raises
    ------
    AssertionError
        The error is larger than ten rounding steps.
    """
    rng = np.random.default_rng()
    errors = {}
    for name, kernel in load().items():
        # |c| <= 1/4 stays bounded, so that errors stay rounding errors.
        radius, angle = 0.25 * rng.random(size), 2 * np.pi * rng.random(size)
        dtype = np.complex64 if "float" in name else np.complex128
        c = (radius * np.exp(1j * angle)).astype(dtype)
        z = cp.full(size, cp.nan, dtype)
        kernel((-(-size // 256),), (256,), (cp.asarray(c), z, np.int32(steps), np.int32(size)))
        expected = np.zeros(size, np.complex128)
        for _ in range(steps):
            expected = expected**2 + c
        error = float(np.linalg.norm(z.get() - expected) / np.linalg.norm(expected))
        assert error <= (1e-6 if dtype is np.complex64 else 1e-14), f"{name}: error {error:.2e}"
        errors[name] = error
    return errors


if __name__ == "__main__":
    from examples._main import main

    main(compile_only, check)

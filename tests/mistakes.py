"""Typical mistakes as data: the source, and the text of the error's first line.

`docs/mistakes.md` shows them in Python, at the command and in a notebook; tests read them too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

__all__ = ["MISTAKES", "Mistake", "pretended_device"]


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    `message` is in the first line of the error, `hint` in the rest of it. `kernel` is the name requested from
    the module; a mistake that `compiles` appears only at this request.
    """

    name: str
    source: str
    message: str
    hint: str = ""
    options: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    arch: str = "sm_80"
    kernel: str = "k"
    compiles: bool = False
    timeout: float | None = None
    fallback: str | None = "never"

    def module(self) -> Any:
        """Return its `RawModule`."""
        from rtcompile import RawModule

        return RawModule(
            code=self.source,
            options=self.options,
            name_expressions=self.names or None,
            arch=self.arch,
            fallback=self.fallback,
            timeout=self.timeout,
        )


def body(text: str, parameters: str = "float* x") -> str:
    return f'extern "C" __global__ void k({parameters}) {{\n  {text}\n}}\n'


WMMA = "#include <mma.h>\nusing namespace nvcuda::wmma;\n" + body(
    "fragment<matrix_a, 16, 16, 15, __half, row_major> f;", "half* x"
)
CONCEPT = "template <class T> concept Real = true;\ntemplate <Real T> __global__ void k(T* x) {}\n"
ENDLESS = (
    "typedef void (*F0)();\n"
    + "".join(f"typedef F{i} (*F{i + 1})(F{i}, F{i}, F{i});\n" for i in range(20))
    + "__global__ void k(F20 f) {}"
)
TEMPLATE = "template <class T> __global__ void scale(T* x) { *x *= 2; }\n"

MISTAKES = (
    Mistake("an undeclared name", body("x[0] = yy;"), 'identifier "yy" is undefined'),
    Mistake("a forgotten semicolon", body("x[0] = 1"), 'expected a ";"'),
    Mistake("a forgotten brace", body("if (x) { x[0] = 1;"), 'expected a "}"'),
    Mistake("a misspelt type", body("", "flaot* x"), 'identifier "flaot" is undefined'),
    Mistake("writing to const", body("x[0] = 1;", "const float* x"), "must be a modifiable lvalue"),
    Mistake("a kernel that returns", "__global__ int k() { return 1; }", "void return type"),
    Mistake(
        "too few arguments",
        "__device__ float f(float a, float b) { return a * b; }\n" + body("x[0] = f(x[1]);"),
        "too few arguments in function call",
    ),
    Mistake(
        "a missing header",
        '#include "mine.h"\n' + body("x[0] = 1;"),
        'cannot open source file "mine.h"',
        "Add its folder with -I",
    ),
    Mistake(
        "a header of the host",
        "#include <vector>\n" + body("x[0] = 1;"),
        'cannot open source file "vector"',
        "no version for device code",
    ),
    Mistake(
        "all of CUB",
        "#include <cub/cub.cuh>\n"
        + body("*x = sizeof(cub::BlockReduce<int, 128>::TempStorage);", "int* x"),
        "error: ",
        "<cub/block/block_reduce.cuh>",
    ),
    Mistake(
        "the host's API in a kernel",
        body("cudaDeviceSynchronize();"),
        'identifier "cudaDeviceSynchronize" is undefined',
        "host's runtime API",
    ),
    Mistake(
        "an exception",
        body("if (!x) throw 1;"),
        "does not support exception handling",
        "cannot throw or catch exceptions",
    ),
    Mistake(
        "a warp function without a mask",
        body("x[0] = __shfl(x[0], 0);"),
        'identifier "__shfl" is undefined',
        "__shfl_sync",
        arch="sm_80",
    ),
    Mistake(
        "half times double",
        "#include <cuda_fp16.h>\n" + body("x[0] = x[0] * 2.5;", "__half* x"),
        'more than one operator "*" matches',
        "__double2half(x)",
    ),
    Mistake(
        "a constructor on the device",
        "struct A { int x; __device__ A() { x = threadIdx.x; } };\n__device__ A a;\n" + body(""),
        "dynamic initialization is not supported",
        "constexpr",
    ),
    Mistake(
        "C++20 without its option",
        CONCEPT,
        'identifier "concept" is undefined',
        "Use -std=c++20",
        names=("k<float>",),
    ),
    Mistake(
        "a three-way comparison in C++17",
        body("auto order = x[0] <=> x[1];"),
        "expected an expression",
        "Use -std=c++20",
    ),
    Mistake(
        "CuTe in C++14",
        "#include <cute/tensor.hpp>\n" + body(""),
        "error: ",
        "needs C++17, and the options have --std=c++14",
        options=("-std=c++14",),
    ),
    Mistake(
        "an unknown language standard",
        body(""),
        "invalid value for --std",
        options=("-std=c++23",),
    ),
    Mistake("an unknown option", body(""), "-nonsense", options=("-nonsense",)),
    Mistake("an unknown architecture", body(""), "sm_42", arch="sm_42"),
    Mistake(
        "a template with a C name",
        'extern "C" template <class T> __global__ void k(T* x) {}\n',
        'may not have extern "C" linkage',
        "name_expressions",
    ),
    Mistake(
        "a name expression of an unknown name",
        TEMPLATE,
        "error: `Real` in 'scale<Real>' is no type or constant of the source",
        'identifier "Real" is undefined',
        names=("scale<Real>",),
    ),
    Mistake(
        "too much static shared memory",
        body(
            "__shared__ float s[20000];\n  s[threadIdx.x] = *x;\n  __syncthreads();\n  *x = s[5];"
        ),
        "uses too much shared data",
        "extern __shared__",
    ),
    Mistake(
        "an undefined function",
        "extern __device__ float f(float);\n" + body("*x = f(3);"),
        "Unresolved extern function",
        "link=",
    ),
    Mistake(
        "Hopper's instructions for sm_90",
        body('asm volatile("wgmma.fence.sync.aligned;");'),
        "'wgmma.fence' not supported on .target 'sm_90'",
        "arch='sm_90a'",
        arch="sm_90",
    ),
    Mistake("an unknown WMMA shape", WMMA, "incomplete type", "not 16x16x15"),
    Mistake(
        "an unknown PTX instruction",
        body('asm volatile("mov.f33 %0, %0;" : "+f"(x[0]));'),
        "'.f33'",
    ),
    Mistake(
        "a wrong kernel name",
        'extern "C" __global__ void scale(float* x) { *x *= 2; }\n',
        "has no kernel 'scael'",
        "Is 'scale' meant?",
        kernel="scael",
        compiles=True,
    ),
    Mistake(
        'a forgotten extern "C"',
        "__global__ void scale(float* x) { *x *= 2; }\n",
        "has no kernel 'scale': its scale(float*) is C++",
        'extern "C"',
        kernel="scale",
        compiles=True,
    ),
    Mistake(
        "a template without an instance",
        TEMPLATE,
        "has no kernel 'scale': it is a template, and nothing instantiates it",
        "name_expressions=['scale<float>']",
        kernel="scale",
        compiles=True,
    ),
    Mistake(
        "an instance that was not compiled",
        TEMPLATE,
        "has no kernel 'scale<float>': a C++ name is found only if",
        "name_expressions=['scale<float>']",
        names=("scale<int>",),
        kernel="scale<float>",
        compiles=True,
    ),
    Mistake("an endless type", ENDLESS, "killed after its time limit of", "timeout=", timeout=1.0),
    Mistake(
        "a source that crashes the compiler",
        "template <class T> struct B { friend bool operator==() = default; };\n" + body(""),
        "The compiler died by signal 11",
        "backend='nvcc'",
        options=("-std=c++20",),
    ),
)


@contextmanager
def pretended_device() -> Iterator[None]:
    """Let modules load and find their kernels without a GPU, with the driver's errors."""
    import cupy

    from rtcompile.frontends import lazy_code, raw_kernel
    from rtcompile.inspect.symbols import kernel_symbols

    class DriverError(cupy.cuda.driver.CUDADriverError):
        def __init__(self, status: int, words: str) -> None:
            Exception.__init__(
                self, words
            )  # CuPy's own constructor queries the driver for the text
            self.status = status

    class Loaded:
        def __init__(self, code: bytes, names: tuple[tuple[str, str], ...]) -> None:
            self.symbols, self.mapping = kernel_symbols(code), dict(names)

        def get_function(self, name: str) -> Any:
            if name not in self.symbols:
                raise DriverError(500, "CUDA_ERROR_NOT_FOUND: named symbol not found")
            return mock.Mock(name=name)

        def get_global_var(self, name: str) -> Any:
            raise DriverError(500, "CUDA_ERROR_NOT_FOUND: named symbol not found")

    def load(code: bytes | str, names: tuple[tuple[str, str], ...]) -> Any:
        if isinstance(code, str):
            raise DriverError(301, "CUDA_ERROR_FILE_NOT_FOUND: file not found")
        if b"for sm_90a only" in code:
            raise DriverError(209, "CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available")
        return Loaded(code, names)

    with (
        mock.patch.object(raw_kernel, "current_device", return_value=0),
        mock.patch.object(lazy_code, "current_device", return_value=0),
        mock.patch.object(lazy_code, "_load", load),
    ):
        yield

"""Each kernel of openpiv and elephant runs from `rtcompile.extras.pycuda.SourceModule`, and gives what CuPy's compiler's gives.

RTCOMPILE_TEST_PYCUDA_PROGRAMS names a folder with checkouts of OpenPIV/openpiv-python-gpu and NeuralEnsemble/elephant.
The kernels are launched with made-up arguments: this tests the compiler and the launch, not the programs.
"""

import ast
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

cp = pytest.importorskip("cupy")

from rtcompile.extras.pycuda import Function, SourceModule  # noqa: E402

LENGTH = 1 << 18  # of each array; kernels get a pointer to its middle, as they look to both sides
GRID, BLOCK = (2, 2, 2), (8, 4, 1)
TYPES = {
    "float": "f4",
    "int": "i4",
    "bool": "?",
    "asset_float": "f4",
    "ULL": "u8",
    "unsigned int": "u4",
}
# The parameters of elephant's templates, as small as they may be.
VALUES = {
    "precision": "float",
    "logK": "3.0f",
    "FILT_SIZE": "2",
    "N_LARGEST": "2",
    "PMAT_COLS": "8LLU",
}
VALUES |= {"L_NUM_BLOCKS": "1", "NONZERO_SIZE": "3", "SYMMETRIC": "0", "Y_OFFSET": "0LLU", "D": "3"}


def sources() -> dict[str, str]:
    """Return the sources by file and line: arguments of `SourceModule`, and templates."""
    found = {}
    folder = Path(os.environ.get("RTCOMPILE_TEST_PYCUDA_PROGRAMS", "/nonexistent"))
    for path in sorted(folder.glob("**/openpiv/gpu/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "SourceModule":
                found[f"{path.name}:{node.lineno}"] = ast.literal_eval(node.args[0])
    for path in sorted(folder.glob("**/elephant/asset/*.cu")):
        text = path.read_text()
        if "int main" not in text:  # one is a program
            found[path.name] = re.sub(r"\{\{(\w+)\}\}", lambda at: VALUES.get(at[1], "4"), text)
    return found


def made_up(kind: str, *, count: int) -> Any:
    """Return numbers of a C type: indices below 4, or floats between 0.5 and 3.5."""
    dtype = np.dtype(TYPES[kind.strip()])
    if dtype.kind == "f":
        return np.random.default_rng(0).uniform(0.5, 3.5, count).astype(dtype)
    return np.arange(count).astype(dtype) % 4 if dtype.kind != "b" else np.ones(count, dtype)


def arguments(parameters: str) -> list[Any]:
    made = []
    for parameter in re.sub(r"\bconst\b", "", parameters).split(","):
        kind, star, _ = re.fullmatch(r"\s*([\w ]+?)\s*(\*?)\s*(\w+)\s*", parameter).groups()
        array = made_up(kind, count=LENGTH)
        made.append(
            cp.asarray(array) if star else array.dtype.type(0.5 if array.dtype.kind == "f" else 4)
        )
    return made


@pytest.mark.parametrize("source", sources().values(), ids=sources())
def test_a_kernel_gives_what_cupys_gives(source):
    ours = SourceModule(source)
    # NVRTC declares math.h's functions itself, and CuPy finds no such header where no C library's is in its folders.
    text = re.sub(r"#include\s*<math\.h>", "", source)
    cupys = cp.RawModule(code='extern "C" {\n' + text + "\n}", options=("-ftz=false",))
    for kind, name in re.findall(r"__constant__ ([\w ]+?) (\w+)\[", source):
        address, size = ours.get_global(name)
        filled = cp.asarray(made_up(kind, count=size // np.dtype(TYPES[kind]).itemsize))
        for target in (address, cupys.get_global(name)):
            target.copy_from_device(filled.data, size)
    for name, parameters in re.findall(r"__global__ void (\w+)\s*\(([^)]*)\)", source):
        results = []
        for kernel in (ours.get_function(name), cupys.get_function(name)):
            given = arguments(parameters)
            arrays = [each for each in given if isinstance(each, cp.ndarray)]
            args = [each[LENGTH // 2 :] if isinstance(each, cp.ndarray) else each for each in given]
            if isinstance(kernel, Function):
                kernel(*args, grid=GRID, block=BLOCK)
            else:
                kernel(GRID, BLOCK, tuple(args))
            results.append([array.get() for array in arrays])
        for one, other in zip(*results, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, err_msg=name)

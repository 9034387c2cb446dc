"""A kernel package for tests; a test passes only the differences."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.processes import forget_process

DECLARATION = """
from rtcompile.extras.packaging.library import KernelLibrary
library = KernelLibrary(__name__, bundle="kernels.rtcb")
module = library.module(
    "scale.cu", {"scale<float>": "float* x, float by, int n", "fill": "float* x, float value"}
)
"""
SOURCE = """
#include "common.cuh"
template <class T> __global__ void scale(T* x, T by, int n) {
    int i = index();
    if (i < n) x[i] *= by;
}
extern "C" __global__ void fill(float* x, float value) { x[index()] = value; }
"""
PLAIN = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] *= 2; }'
HEADER = "__device__ inline int index() { return blockIdx.x * blockDim.x + threadIdx.x; }\n"


class Package:
    """A package on the disk that can be imported during the test."""

    def __init__(self, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        self.name = name
        self.write("__init__.py", DECLARATION)
        self.write("scale.cu", SOURCE)
        self.write("common.cuh", HEADER)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setattr(sys, "dont_write_bytecode", True)  # edited within one tick of the clock

    @classmethod
    def in_current_folder(cls, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Package:
        """Write a package that only the current folder contains, as `python -m` finds it."""
        package = cls(folder, name, monkeypatch)
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(folder)])
        monkeypatch.chdir(folder)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return package

    @property
    def bundle(self) -> Path:
        return self.folder / "kernels.rtcb"

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def load(self) -> ModuleType:
        """Import it as a fresh process would."""
        forget_process()
        for loaded in [name for name in sys.modules if name.split(".")[0] == self.name]:
            del sys.modules[loaded]
        importlib.invalidate_caches()
        return importlib.import_module(self.name)


def edit_header(package: Package) -> None:
    package.write("common.cuh", HEADER.replace("threadIdx.x", "threadIdx.y"))

"""Programs that compile with CuPy, without a device, and the command that runs them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

CODE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
TEMPLATE = "template <class T> __global__ void f(T* x) { *x += 1; }"

# What a CuPy without a device needs to get as far as its compiler: an architecture, and a module
# that takes code without loading it.
STAND_IN = """
import cupy.cuda.compiler as compiler, cupy.cuda.function as function
class Module:
    def load(self, code): self.code = code
    def _set_mapping(self, mapping): self.mapping = mapping
function.Module = Module
compiler._get_arch = lambda: "80"
compiler._get_arch_for_options_for_nvrtc = lambda arch=None: ("-arch=sm_80", "cubin")
def compile(source, options=(), **more):
    return compiler._compile_module_with_cache(source, options, **more)
"""


class Module:
    """Takes code as ``cupy.cuda.function.Module`` does, and loads nothing."""

    code = b""
    mapping: object = "unset"

    def load(self, code: bytes) -> None:
        self.code = code

    def _set_mapping(self, mapping: object) -> None:
        self.mapping = mapping


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "program.py"
    path.write_text(STAND_IN + textwrap.dedent(text))
    return str(path)


def run(*arguments: str, cache: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rtcompile", *arguments],
        env={**os.environ, "RTCOMPILE_CACHE_DIR": str(cache), **more},
        capture_output=True,
        text=True,
        check=False,
    )

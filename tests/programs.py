"""Programs that compile with CuPy without a device, and the command that runs them."""

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rtcompile import Arch, CompileRequest
from rtcompile.extras.record import recording
from rtcompile.extras.record.program import Recorder
from tests.processes import command

CODE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
TEMPLATE = "template <class T> __global__ void f(T* x) { *x += 1; }"

# A function, and a kernel that calls it from another source.
LIBRARY = "__device__ float helper(float x) { return x * 3.0f; }"
CALLER = """extern __device__ float helper(float);
extern "C" __global__ void k(float* p) { p[threadIdx.x] = helper(p[threadIdx.x]); }"""

TWO = """
__global__ void double_it(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }
__global__ void halve_it(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] /= 2; }
"""

# Without a device, CuPy needs these fakes to reach its compiler: an architecture, and a module
# that accepts code without loading it.
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
    """A fake of ``cupy.cuda.function.Module`` that accepts code and loads nothing."""

    code = b""
    mapping: object = "unset"

    def load(self, code: bytes) -> None:
        self.code = code

    def _set_mapping(self, mapping: object) -> None:
        self.mapping = mapping


def without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let CuPy compile in this process for the architecture that is requested, or else for sm_80."""
    from cupy.cuda import compiler, function

    monkeypatch.setattr(function, "Module", Module)
    monkeypatch.setattr(compiler, "_get_arch", lambda: "80")
    monkeypatch.setattr(
        compiler, "_get_arch_for_options_for_nvrtc", lambda arch: (f"-arch=sm_{arch}", "cubin")
    )


def recorded(path: str | Path, act: Callable[[], object]) -> recording.Record:
    """Return the record of what a function requests in this process."""
    recorder = Recorder.create(str(path))
    recorder.start()
    act()
    return recorder.finish()


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "program.py"
    path.write_text(STAND_IN + textwrap.dedent(text))
    return str(path)


def other_cupy(folder: Path) -> None:
    """Create a CuPy for programs in a folder that lacks names which rtcompile needs."""
    (folder / "cupy/cuda").mkdir(parents=True)
    (folder / "cupy/__init__.py").write_text("from cupy import _version")
    (folder / "cupy/_version.py").write_text("__version__ = '15.0.0'")
    (folder / "cupy/cuda/__init__.py").touch()
    text = "def _compile_module_with_cache(source, options=()): pass"
    (folder / "cupy/cuda/compiler.py").write_text(text)


def run(*arguments: str, cache: Path, **more: str) -> Any:
    return command(*arguments, environ={"RTCOMPILE_CACHE_DIR": cache, **more})


def written_record(
    path: Path,
    headers: Sequence[Any] = (),
    contents: Mapping[str, str] | None = None,
    **changes: Any,
) -> Path:
    """Write a record of one build, as if another user had made it; return its path."""
    build = recording.RecordedBuild(CompileRequest(CODE, name="k.cu"), Arch(8, 0)).encode()
    build["compiler"], build["headers"] = "nvrtc 12.9.86", list(headers)
    build["request"].update(changes)
    record = {"format": recording.FORMAT, "builds": [build], "headers": contents or {}}
    path.write_text(json.dumps(record))
    return path

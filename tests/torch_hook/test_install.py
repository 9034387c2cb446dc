"""Tests of `rtcompile.install("torch")`, with torch if it is installed, else with a stand-in of the parts that it uses."""

import importlib.util
import sys
import textwrap
from pathlib import Path

import pytest

from tests.processes import ran

pytestmark = pytest.mark.needs_compiler

# The functions' parameters and results are those of torch 2.11 to 2.15.
STAND_IN = {
    "__init__.py": """
        from types import SimpleNamespace
        __version__ = "2.13.0+cpu"
        version = SimpleNamespace(hip=None)
        from torch import cuda
        """,
    "cuda/__init__.py": """
        def _compile_kernel(kernel_source, kernel_name, **more):
            from torch.cuda._utils import _nvrtc_compile
            return _nvrtc_compile(kernel_source, kernel_name, **more)
        """,
    "cuda/_utils.py": """
        def _nvrtc_compile(
            kernel_source, kernel_name, compute_capability=None, cuda_include_dirs=None,
            nvcc_options=None, auto_pch=False,
        ):
            return b"theirs", kernel_name
        def _get_gpu_rtc_compatible_flags():
            return ["-D__CUDA_NO_HALF_OPERATORS__"]
        """,
    "utils/__init__.py": "",
    "utils/cpp_extension.py": """
        import os
        def include_paths(device_type):
            if device_type == "cuda":
                raise OSError("CUDA_HOME environment variable is not set")
            return [os.path.join(os.path.dirname(os.path.dirname(__file__)), "include")]
        """,
}
PROGRAM = """
import rtcompile, torch
from torch.cuda import _utils
theirs = _utils._nvrtc_compile
source = '#include "factor.h"\\ntemplate <class T> __global__ void scale(T* x) { *x = FACTOR / *x; }'
given = {"compute_capability": "90", "cuda_include_dirs": ["include"], "nvcc_options": ["-DN=2"]}
"""


def run(tmp_path: Path, program: str, **files: str) -> None:
    """Run a program; its assertions are the test's."""
    if importlib.util.find_spec("torch") is None:
        for name, text in STAND_IN.items():
            path = tmp_path / "torch" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(files.get(name, text)))
    (tmp_path / "include").mkdir()
    (tmp_path / "include/factor.h").write_text("#define FACTOR 3\n")
    (tmp_path / "program.py").write_text(PROGRAM + textwrap.dedent(program))
    done = ran(sys.executable, "-m", "program", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_its_kernels_are_found_again_until_a_header_changes(tmp_path):
    run(
        tmp_path,
        """
        with rtcompile.install("torch"):
            compile = _utils._nvrtc_compile
            first = compile(source, "scale<float>", **given)
            assert first == compile(source, "scale<float>", **given)
            assert rtcompile.cache.info().misses == 1
            open("include/factor.h", "w").write("#define FACTOR 5")
            changed = compile(source, "scale<float>", **given)
            with rtcompile.install("torch"):
                pass
            assert _utils._nvrtc_compile is compile
        assert first[0][:4] == b"\\x7fELF" and first[1] == "_Z5scaleIfEvPT_"
        assert changed[0] != first[0] and changed[1] == first[1]
        assert rtcompile.cache.info().misses == 2
        assert _utils._nvrtc_compile is theirs
        """,
    )


def test_an_error_is_torchs_with_the_cause(tmp_path):
    run(
        tmp_path,
        """
        with rtcompile.install("torch"):
            try:
                _utils._nvrtc_compile("__global__ void k() { y = 3; }", "k", "90")
            except RuntimeError as error:
                text = str(error)
        assert text.startswith("Kernel compilation failed:") and "k.cu:1" in text, text
        """,
    )


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="it changes torch")
@pytest.mark.parametrize(
    ("name", "before", "after", "message"),
    [
        ("__init__.py", "2.13.0+cpu", "3.1.0", "torch 3.1.0 is not known"),
        ("__init__.py", "hip=None", "hip='6.4'", "is not known"),
        ("cuda/_utils.py", "auto_pch", "pch", "torch.cuda._utils._nvrtc_compile(kernel_source"),
    ],
    ids=["version", "ROCm", "parameters"],
)
def test_another_torch_is_left_unchanged(tmp_path, name, before, after, message):
    run(
        tmp_path,
        f"""
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert not rtcompile.install("torch").active
        assert {message!r} in str(caught[-1].message), caught[-1]
        assert _utils._nvrtc_compile is theirs
        """,
        **{name: STAND_IN[name].replace(before, after)},
    )

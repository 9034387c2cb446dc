"""Tests of queries to the driver, with fakes of cuda-python, libcuda and NVML that report two devices."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rtcompile
from tests.processes import ran
from tests.tables import from_table

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

# The compute capabilities of the devices are FIRST and SECOND; the second is current if there is a context.
LIBCUDA = Path(__file__).with_name("fake_libcuda.c").read_text()
NVML = Path(__file__).with_name("fake_nvml.c").read_text()

CUDA_PYTHON = """
import enum, sys, types
class CUresult(enum.IntEnum):
    CUDA_SUCCESS, CUDA_ERROR_OF_PYTHON = 0, 7
class CUdevice_attribute(enum.IntEnum):
    MAJOR, MINOR = 75, 76
def cuInit(flags): return CUresult(7 if flags else 0),
def cuCtxGetCurrent(): return CUresult.CUDA_SUCCESS, CONTEXT
def cuCtxGetDevice(): return CUresult.CUDA_SUCCESS, 1
def cuDeviceGet(ordinal): return CUresult.CUDA_SUCCESS, ordinal
def cuDeviceGetAttribute(attribute, device):
    both = (FIRST, SECOND)[device]
    return CUresult.CUDA_SUCCESS, both // 10 if attribute == 75 else both % 10
"""


def evaluated(
    folder: Path,
    expression: str,
    *,
    first: int = 80,
    second: int = 80,
    context: int = 0,
    broken: int = 0,
    cuda_python: str = "",
    before: str = "",
    **environ: str,
) -> str:
    """Return the value that a process with these libraries prints for an expression."""
    defined = {"FIRST": first, "SECOND": second, "CONTEXT": context, "BROKEN": broken}
    options = [f"-D{name}={value}" for name, value in defined.items()]
    for name, text in (("libcuda.so.1", LIBCUDA), ("libnvidia-ml.so.1", NVML)):
        command = ["cc", "-shared", "-fPIC", "-x", "c", *options, "-o", folder / name, "-"]
        subprocess.run(command, input=text, text=True, check=True)
    package = folder / "cuda"
    (package / "bindings").mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "bindings/__init__.py").touch()
    named = "".join(f"{name} = {value}\n" for name, value in defined.items())
    bindings = named + cuda_python if cuda_python else "raise ImportError"
    (package / "bindings/driver.py").write_text(bindings)
    program = f"from rtcompile.lookup import driver, find\n{before}\nprint({expression})"
    path = f"{folder}:{Path(rtcompile.__file__).parents[1]}"
    libraries = {"LD_LIBRARY_PATH": folder, "PYTHONPATH": path}
    done = ran(sys.executable, "-B", "-c", program, environ={**libraries, **environ})
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


CURRENT, ALL = "find.compute_capability()", "driver.capability_of_all()"
CONFIRM = "driver.confirm(lambda: (8, 0))"
USED = "driver.Driver()('cuInit', 0)"
FAILS = {
    name: f"{CUDA_PYTHON}def {name}(*_): return CUresult.CUDA_ERROR_OF_PYTHON,"
    for name in ("cuInit", "cuCtxGetCurrent")
}
NO_DEVICE = "no CUDA device to compile for (cuInit: CUDA_ERROR_OF_%s); pass arch="


@from_table
def test_the_driver_is_queried_for_devices(tmp_path, expression, given, expected):
    found = evaluated(tmp_path, expression, **given)
    assert found == expected if len(expected) < 10 else expected in found

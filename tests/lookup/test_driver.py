"""Tests of queries to the driver, with fakes of libcuda and NVML that report two devices."""

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


def evaluated(
    folder: Path,
    expression: str,
    *,
    first: int = 80,
    second: int = 80,
    context: int = 0,
    broken: int = 0,
    before: str = "",
    **environ: str,
) -> str:
    """Return the value that a process with these libraries prints for an expression."""
    defined = {"FIRST": first, "SECOND": second, "CONTEXT": context, "BROKEN": broken}
    options = [f"-D{name}={value}" for name, value in defined.items()]
    for name, text in (("libcuda.so.1", LIBCUDA), ("libnvidia-ml.so.1", NVML)):
        command = ["cc", "-shared", "-fPIC", "-x", "c", *options, "-o", folder / name, "-"]
        subprocess.run(command, input=text, text=True, check=True)
    program = f"from rtcompile.lookup import driver, find\n{before}\nprint({expression})"
    path = f"{folder}:{Path(rtcompile.__file__).parents[1]}"
    libraries = {"LD_LIBRARY_PATH": folder, "PYTHONPATH": path}
    done = ran(sys.executable, "-B", "-c", program, environ={**libraries, **environ})
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


CURRENT, ALL = "find.compute_capability()", "driver.capability_of_all()"
CONFIRM = "driver.confirm(lambda: (8, 0))"
USED = "driver.Driver()('cuInit', 0)"
NO_DEVICE = "no CUDA device to compile for (cuInit: CUDA_ERROR_OF_%s); pass arch="


@from_table
def test_the_driver_is_queried_for_devices(tmp_path, expression, given, expected):
    found = evaluated(tmp_path, expression, **given)
    assert found == expected if len(expected) < 10 else expected in found

"""Workers do not use the driver or the device, as their memory maps show on a machine with a driver."""

import time
from pathlib import Path

import rtcompile
from rtcompile.workers.process import ZygoteProcess

SOURCE = "#include <cuda/std/type_traits>\ntemplate <int N> __global__ void k(int* p) { *p = N; }"


def test_no_worker_loads_the_driver_or_starts_a_thread():
    for number in range(5):  # the third has a header precompiled, the last ones use it
        rtcompile.compile(SOURCE, arch="sm_90", name_expressions=[f"k<{number}>"])
        time.sleep(1.0 if number == 2 else 0.2)  # idle: the zygote compiles by itself
    compilers = 0
    for zygote in [Path(f"/proc/{zygote.pid}") for zygote in ZygoteProcess.alive]:
        maps = (zygote / "maps").read_text()
        compilers += "libnvrtc" in maps
        assert "libcuda.so" not in maps
        assert len(list((zygote / "task").iterdir())) == 1
    assert compilers

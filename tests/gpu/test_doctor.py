"""With a device, `doctor` launches a kernel, and the computed occupancy equals the driver's."""

import itertools

import pytest

cp = pytest.importorskip("cupy")

import rtcompile  # noqa: E402
from rtcompile.checkup import examine  # noqa: E402
from rtcompile.extras.resources import Report, limits_of  # noqa: E402
from rtcompile.request.values import Arch  # noqa: E402

KERNEL = """extern "C" __global__ void k(float* x) {
  extern __shared__ float s[];
  float a[24];
  for (int i = 0; i < 24; i++) a[i] = x[i * 7 + threadIdx.x];
  s[threadIdx.x] = a[0];
  __syncthreads();
  for (int i = 0; i < 24; i++) x[i] = a[i] * a[23 - i] + s[i];
}
"""


def test_doctor_sees_the_device_and_launches_on_it():
    found = {check.name: check for check in examine()}
    assert found["driver"].status == "ok"
    assert found["device 0"].status == "ok"
    assert "the device's own" in found["device 0"].detail
    assert found["launch a kernel"].status == "ok"
    assert found["launch a kernel"].detail.endswith("wrote 42")


def test_occupancy_without_a_device_is_the_drivers():
    module = rtcompile.RawModule(code=KERNEL)
    kernel = module.get_function("k")
    code = rtcompile.compile(KERNEL)
    blocks = cp.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
    for block, shared in itertools.product((32, 128, 500, 1024), (0, 4096, 40_000)):
        (found,) = Report.of(code, block=block, dynamic_shared=shared).kernels
        assert found.occupancy.blocks == blocks(kernel.kernel.ptr, block, shared)


def test_the_limits_are_those_of_the_device():
    device = cp.cuda.Device()
    limits = limits_of(Arch.parse(f"sm_{device.compute_capability}"))
    assert limits is not None
    attributes = device.attributes
    assert limits.warps * 32 == attributes["MaxThreadsPerMultiProcessor"]
    assert limits.shared == attributes["MaxSharedMemoryPerMultiprocessor"]
    assert limits.block_shared == attributes["MaxSharedMemoryPerBlockOptin"]
    assert limits.block_registers == attributes["MaxRegistersPerBlock"]

"""Tests of `kernel.launch` on a device: attributes and arguments take effect."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

cp = pytest.importorskip("cupy")

import rtcompile  # noqa: E402

SOURCE = Path(__file__).with_name("launching.cu").read_text()
HOPPER = int(cp.cuda.Device().compute_capability) >= 90 if cp.cuda.is_available() else False


@pytest.fixture(scope="module")
def module() -> Any:
    return rtcompile.RawModule(code=SOURCE)


@pytest.mark.skipif(not HOPPER, reason="no clusters before compute capability 9.0")
@pytest.mark.parametrize("cluster", [(1,), (2,), (2, 4), (16,)])
def test_a_cluster_has_the_requested_size(module, cluster):
    out = cp.zeros(3, cp.int32)
    module.get_function("cluster_size").launch((32, 4), 64, (out,), cluster=cluster)
    assert out.tolist() == [cluster[0], (*cluster, 1)[1], 128]


@pytest.mark.skipif(HOPPER or not cp.cuda.is_available(), reason="this device has clusters")
def test_a_device_without_clusters_is_an_error(module):
    with pytest.raises(rtcompile.InvalidRequest, match="has no clusters"):
        module.get_function("cluster_size").launch(2, 32, (cp.zeros(3, cp.int32),), cluster=2)


def test_arguments_of_all_types_arrive_unchanged(module):
    out = cp.zeros(14)
    opaque = np.frombuffer(bytes(range(128)), "V128")
    arguments = (
        out, True, -8, np.int16(-16), -32, -(1 << 40), 1 << 63, np.float32(0.5), 0.25, 1 + 2j,
        np.array([(3, 4.5)], "i4,f4"), opaque, None,
    )  # fmt: skip
    module.get_function("types").launch(1, 1, arguments)
    expected = [1, -8, -16, -32, -(1 << 40), 1 << 63, 0.5, 0.25, 1, 2, 3, 4.5, 127, 1]
    assert out.tolist() == expected


class OnlyDlpack:
    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_an_array_of_dlpack_is_written_in_place(module):
    out = cp.zeros(3, cp.int32)
    module.get_function("cluster_size").launch(3, 32, (OnlyDlpack(out),))
    assert out[2] == 3


def test_shared_memory_above_48_kib_needs_no_further_call(module):
    out = cp.zeros(1, cp.int32)
    module.get_function("dynamic").launch(1, 1, (out, 15_000), shared_mem=60_000)
    assert out[0] == 5
    with pytest.raises(rtcompile.DriverError, match="more than a block of this device can have"):
        module.get_function("dynamic").launch(1, 1, (out, 1), shared_mem=1 << 20)


def test_dependent_launches_with_priority_keep_their_order(module):
    x = cp.zeros(1 << 20, cp.int32)
    add = module.get_function("add")
    cp.cuda.Device().synchronize()
    with cp.cuda.Stream(non_blocking=True) as stream:
        for _ in range(5):
            add.launch(64, 256, (x,), programmatic=HOPPER, priority=0)
        stream.synchronize()
    assert bool((x == 121).all())


def test_a_cooperative_grid_synchronises_and_a_too_large_one_is_an_error(module):
    meet, counts = module.get_function("meet"), cp.zeros(2, cp.int32)
    blocks = cp.cuda.Device().attributes["MultiProcessorCount"]
    meet.launch(blocks, 32, (counts, counts[1:]), cooperative=True)
    assert counts.tolist() == [blocks, blocks]
    with pytest.raises(rtcompile.DriverError, match="COOPERATIVE_LAUNCH_TOO_LARGE"):
        meet.launch(1 << 20, 1024, (counts, counts[1:]), cooperative=True)


def test_a_kernel_that_is_not_loaded_does_not_change_a_capture():
    source = 'extern "C" __global__ void one(int* x) { atomicAdd(x, 1); }'
    x = cp.zeros(1, cp.int32)
    loaded = rtcompile.RawKernel(source, "one")
    loaded.launch(1, 1, (x,))
    cp.cuda.Device().synchronize()
    with cp.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        other = rtcompile.RawKernel(source + "\n// another", "one")
        with pytest.raises(rtcompile.DriverError, match=r"^one would have to be compiled"):
            other.launch(1, 1, (x,))
        loaded.launch(1, 1, (x,))
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
    assert x[0] == 4


def test_tensors_of_pytorch_are_processed_in_its_stream(module):
    torch = pytest.importorskip("torch")
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(100_000_000)  # long enough for another stream to overtake
        x = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
        module.get_function("add").launch(64, 256, (x,))
        assert bool((x == 1).all())


def test_a_launch_from_a_fresh_thread_has_a_context(module):
    from concurrent.futures import ThreadPoolExecutor

    out = cp.zeros(3, cp.int32)
    kernel = module.get_function("cluster_size")
    cp.cuda.Device().synchronize()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(lambda: kernel.launch(2, 32, (out,))).result()
    cp.cuda.Device().synchronize()
    assert out[2] == 2

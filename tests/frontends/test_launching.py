"""Tests of `kernel.launch` with a fake driver: its calls, errors before any call, and repeated launches."""

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

cupy = pytest.importorskip("cupy")
real = pytest.importorskip("cuda.bindings.driver")

import rtcompile  # noqa: E402
from rtcompile.extras import launching as tensors  # noqa: E402
from rtcompile.extras.launching import launch as launching  # noqa: E402
from tests.processes import functions_of  # noqa: E402
from tests.tables import from_table  # noqa: E402

OK = real.CUresult.CUDA_SUCCESS
INVALID = real.CUresult.CUDA_ERROR_INVALID_VALUE
CODE = 'extern "C" __global__ void k() {}'


class Driver:
    """A fake driver that records its calls, with the real values and classes."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.launched: list[Any] = []
        self.parameters: list[bytes] = []
        self.attributes: dict[str, int] = {}
        self.has_clusters = 1
        self.largest_cluster = 8
        self.status = OK

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)

    def cuFuncGetParamInfo(self, function: Any, index: int) -> Any:
        if index >= len(self.sizes):
            return INVALID, 0, 0
        return OK, 8 * index, self.sizes[index]

    def cuFuncGetAttribute(self, name: Any, function: Any) -> Any:
        return OK, self.attributes.get(name.name, 49152)

    def cuFuncSetAttribute(self, function: Any, name: Any, value: int) -> Any:
        if value > 200_000:
            return (INVALID,)
        self.attributes[name.name] = value
        return (OK,)

    def cuDeviceGetAttribute(self, name: Any, device: Any) -> Any:
        return OK, self.has_clusters

    def cuOccupancyMaxPotentialClusterSize(self, function: Any, config: Any) -> Any:
        allowed = self.attributes.get("CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED")
        return OK, 16 if allowed else self.largest_cluster

    def cuCtxGetStreamPriorityRange(self) -> Any:
        return OK, 0, -5

    def cuGetErrorString(self, status: Any) -> Any:
        return OK, b"words of the driver"

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: int, extra: Any) -> Any:
        if self.status is OK:
            self.launched.append(config)
            pointers = (ctypes.c_void_p * len(self.sizes)).from_address(parameters)
            self.parameters = [
                ctypes.string_at(pointer, size)
                for pointer, size in zip(pointers, self.sizes, strict=True)
            ]
        return (self.status,)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that launches a kernel with parameters of these sizes; it returns the fake driver."""

    def launch(sizes: tuple[int, ...] = (), args: Any = (), **how: Any) -> Driver:
        driver = how.pop("driver", None) or Driver(*sizes)
        monkeypatch.setattr(launching, "bindings", lambda: driver)
        monkeypatch.setattr(launching, "ordinal", lambda loading=False: 0)
        stream = SimpleNamespace(ptr=7)
        monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: stream)
        capturing = how.pop("capturing", False)
        runtime = SimpleNamespace(setDevice=lambda d: None, streamIsCapturing=lambda s: capturing)
        monkeypatch.setattr(launching, "runtime", runtime)
        kernel = how.pop("kernel", None) or rtcompile.RawKernel(CODE, "k")
        if how.pop("loaded", True):
            played = kernel.__dict__.setdefault("played", SimpleNamespace(ptr=99))
            functions_of(kernel)[0] = played
        else:
            functions_of(kernel).clear()
        kernel.launch(how.pop("grid", 4), how.pop("block", 32), args, **how)
        return driver

    return launch


def device_memory(address: int = 4096) -> Any:
    interface = {"shape": (4,), "typestr": "<f4", "data": (address, False), "version": 3}
    return SimpleNamespace(__cuda_array_interface__=interface)


@from_table
def test_an_argument_becomes_the_bytes_of_its_parameter(launched, value, size, expected):
    assert launched((size,), (value,)).parameters == [expected]


@from_table
def test_an_argument_that_does_not_fit_is_named_and_nothing_is_launched(
    launched, value, size, message
):
    driver = Driver(size)
    with pytest.raises(rtcompile.InvalidRequest, match=message):
        launched(args=(value,), driver=driver)
    assert not driver.launched


def test_without_parameter_sizes_arguments_are_converted_as_in_cupy(launched):
    class Older(Driver):
        def cuFuncGetParamInfo(self, function: Any, index: int) -> Any:
            raise RuntimeError("Function 'cuFuncGetParamInfo' not found")

    assert launched(args=(5,), driver=Older(8)).parameters == [b"\5" + bytes(7)]
    for value in (1 << 64, np.zeros(0)):
        with pytest.raises(rtcompile.InvalidRequest, match="k: argument 0 is "):
            launched(args=(value,), driver=Older(8))


def test_the_arguments_are_in_the_launch(launched):
    driver = launched(
        grid=(16, 2), block=(64,), cluster=(8, 2), cooperative=True, programmatic=True,
        shared_mem=100_000, priority=-3,
    )  # fmt: skip
    (config,) = driver.launched
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (16, 2, 1)
    assert (config.blockDimX, config.sharedMemBytes, int(config.hStream)) == (64, 100_000, 7)
    cluster, cooperative, programmatic, priority = config.attrs[:4]
    size = cluster.value.clusterDim
    assert (size.x, size.y, size.z) == (8, 2, 1)
    assert cooperative.value.cooperative == 1
    assert programmatic.value.programmaticStreamSerializationAllowed == 1
    assert priority.value.priority == -3
    assert [one.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_") for one in config.attrs[:4]] == [
        "CLUSTER_DIMENSION", "COOPERATIVE", "PROGRAMMATIC_STREAM_SERIALIZATION", "PRIORITY",
    ]  # fmt: skip
    assert driver.attributes == {
        "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": 100_000,
        "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED": 1,
    }


@from_table
def test_an_impossible_launch_is_rejected_before_the_driver(launched, how, message):
    with pytest.raises(rtcompile.InvalidRequest, match=message):
        launched(**how)


def test_an_unsupported_cluster_is_an_error_with_the_devices_limit(launched):
    driver = Driver()
    driver.largest_cluster = 4
    with pytest.raises(
        rtcompile.InvalidRequest, match=r"has 8 blocks, .* k can have 4 with 0 bytes"
    ):
        launched(driver=driver, cluster=8, grid=8)
    driver.has_clusters = 0
    with pytest.raises(rtcompile.InvalidRequest, match=r"no clusters .* compute capability 9.0"):
        launched(driver=driver, cluster=2)


def test_too_much_shared_memory_is_an_error(launched):
    with pytest.raises(rtcompile.DriverError, match="more than a block of this device can have"):
        launched(shared_mem=500_000)


def test_a_driver_error_contains_its_text_and_number(launched):
    driver = Driver()
    driver.status = INVALID
    with pytest.raises(
        rtcompile.DriverError, match=r"launch of k was rejected: .*words of"
    ) as caught:
        launched(driver=driver)
    assert caught.value.status == 1


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(SimpleNamespace(ptr=5), id="cupy"),
        pytest.param(SimpleNamespace(cuda_stream=5), id="torch"),
        pytest.param(SimpleNamespace(__cuda_stream__=lambda: (0, 5)), id="protocol"),
        pytest.param(5, id="handle"),
    ],
)
def test_streams_of_other_libraries_are_accepted(launched, stream):
    (config,) = launched(stream=stream).launched
    assert int(config.hStream) == 5


class Tensor:
    """A fake of PyTorch's tensor."""

    dtype = "torch.bfloat16"
    shape = (2, 16)

    def __init__(self, device: int | None) -> None:
        self.is_cuda = device is not None
        self.device = SimpleNamespace(index=device)

    def data_ptr(self) -> int:
        return 12288

    def stride(self) -> tuple[int, ...]:
        return (16, 1)

    def element_size(self) -> int:
        return 2


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = SimpleNamespace(
        current_stream=lambda device: SimpleNamespace(cuda_stream=70 + device)
    )
    monkeypatch.setitem(
        __import__("sys").modules, "torch", SimpleNamespace(Tensor=Tensor, cuda=streams)
    )


@pytest.mark.usefixtures("torch")
def test_a_tensor_of_pytorch_selects_its_current_stream(launched):
    driver = launched((8,), (Tensor(0),))
    assert driver.parameters == [(12288).to_bytes(8, "little")]
    assert int(driver.launched[0].hStream) == 70
    (config,) = launched((8,), (Tensor(0),), stream=5).launched
    assert int(config.hStream) == 5


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(
    ("device", "message"), [(1, "on device 1, and the current one is 0"), (None, "pass .*cuda")]
)
def test_a_tensor_on_another_device_is_an_error(launched, device, message):
    with pytest.raises(rtcompile.InvalidRequest, match=message):
        launched((8,), (Tensor(device),))


def test_a_kernel_that_is_not_loaded_is_an_error_in_a_capture(launched):
    with pytest.raises(rtcompile.DriverError, match=r"^k would have to be compiled or loaded") as e:
        launched(loaded=False, capturing=True)
    assert e.value.status == 900
    launched(loaded=True, capturing=True)


# --- repeated launches: an equal one has the first one's configuration, any other is checked --------------


SIZES = (8, 4, 4, 2, 8, 8, 1)


def array_at(address: int) -> Any:
    memory = cupy.cuda.UnownedMemory(address, 12, None, 0)
    return cupy.ndarray((3,), "f", memptr=cupy.cuda.MemoryPointer(memory, 0))


def arguments(number: int) -> tuple[Any, ...]:
    return (
        array_at(4096 + number), -number, np.float32(number), np.float16(number), None,
        float(number), number % 2 == 0,
    )  # fmt: skip


@pytest.fixture
def again(launched: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that launches one kernel; its `checked` counts the configurations that were checked."""
    kernel, driver = rtcompile.RawKernel(CODE, "k"), Driver(*SIZES)
    checked = launching._Loaded._checked

    def counting(*given: Any) -> Any:
        launch.checked += 1
        return checked(*given)

    monkeypatch.setattr(launching._Loaded, "_checked", counting)

    def launch(args: Any, **how: Any) -> list[bytes]:
        launched(args=args, kernel=kernel, driver=driver, **how)
        return driver.parameters

    launch.checked, launch.driver = 0, driver  # type: ignore[attr-defined]
    return launch


def test_a_repeated_launch_passes_the_same_bytes_to_the_driver(again, launched):
    for number in range(4):
        first = launched(SIZES, arguments(number)).parameters
        assert again(arguments(number)) == first
    assert again.checked == 5  # the first launch of each of four kernels, and the first of `again`
    configurations = {id(each) for each in again.driver.launched}
    assert len(configurations) == 1


@from_table
def test_another_kind_of_launch_is_checked_again(again, how):
    again(arguments(1))
    again(arguments(1), **how)
    assert again.checked == 2
    one, other = again.driver.launched
    fields = ("gridDimX", "gridDimY", "blockDimX", "sharedMemBytes", "numAttrs")
    seen = [[getattr(each, name) for name in fields] + [int(each.hStream)] for each in (one, other)]
    assert seen[0] != seen[1] or how == {"grid": [4, 1]}


@from_table
def test_an_unfitting_argument_is_reported_in_repeated_launches(again, position, value, message):
    for number in (1, 2):
        again(arguments(number))
    wrong = list(arguments(3))
    wrong[position] = value
    for _ in range(2):
        with pytest.raises(rtcompile.InvalidRequest, match=message):
            again(tuple(wrong))
    with pytest.raises(rtcompile.InvalidRequest, match="takes 7 arguments, not 2"):
        again(arguments(3)[:2])
    assert again(arguments(4))[1] == (-4).to_bytes(4, "little", signed=True)


def test_what_follows_a_launch_is_converted_and_checked_as_it_was(again):
    again(arguments(1))
    largest = list(arguments(1))
    largest[1] = (1 << 32) - 1
    assert again(tuple(largest))[1] == b"\xff" * 4
    for given in (iter(arguments(2)), list(arguments(2))):
        assert again(given)[1] == (-2).to_bytes(4, "little", signed=True)
    again.driver.status = INVALID
    with pytest.raises(rtcompile.DriverError, match="INVALID_VALUE"):
        again(arguments(1))


def test_threads_that_launch_at_once_do_not_share_the_bytes(again):
    again(arguments(0))
    again(arguments(0))
    inside, go_on = threading.Event(), threading.Event()
    take = Driver.cuLaunchKernelEx
    seen: list[bytes] = []

    def slowly(self: Any, *given: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            assert go_on.wait(30)
        done = take(self, *given)
        seen.append(self.parameters[1])
        return done

    again.driver.cuLaunchKernelEx = slowly.__get__(again.driver)
    other = threading.Thread(target=again, args=(arguments(1),))
    other.start()
    assert inside.wait(30)
    again(arguments(2))
    go_on.set()
    other.join()
    assert seen == [
        (-2).to_bytes(4, "little", signed=True),
        (-1).to_bytes(4, "little", signed=True),
    ]


def test_a_kernel_that_was_built_again_is_checked_again(again, launched):
    kernel = rtcompile.RawKernel(CODE, "k")
    launched((8,), (None,), kernel=kernel)
    kernel.__dict__["played"] = SimpleNamespace(ptr=100)
    driver = launched((8, 4), (None, 7), kernel=kernel)
    assert driver.parameters == [bytes(8), (7).to_bytes(4, "little")]


# --- tensor maps -------------------------------------------------------------------------------------


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that encodes a tensor map with a fake driver; it returns the driver's arguments."""

    def encode(array: Any, box: Any, **more: Any) -> Any:
        passed: list[Any] = []

        def encode_tiled(*arguments: Any) -> Any:
            passed[:] = arguments
            return OK, SimpleNamespace(opaque=range(16))

        driver = SimpleNamespace(
            **{name: getattr(real, name) for name in dir(real) if "CUtensorMap" in name},
            cuuint32_t=int,
            cuuint64_t=int,
            cuTensorMapEncodeTiled=encode_tiled,
        )
        monkeypatch.setattr(tensors, "bindings", lambda: driver)
        found = rtcompile.tensor_map(array, box, **more)
        assert (found.shape, found.dtype) == ((1,), np.dtype("V128"))
        assert found.tobytes() == np.arange(16, dtype=np.uint64).tobytes()
        return passed

    return encode


def array(shape=(64, 64), strides=(128, 2), pointer=4096, typestr="<f2") -> Any:
    interface = {
        "shape": shape, "strides": strides, "data": (pointer, False), "typestr": typestr,
        "version": 3,
    }  # fmt: skip
    return SimpleNamespace(__cuda_array_interface__=interface)


def test_a_tensor_map_describes_the_contiguous_dimension_first(encoded):
    kind, rank, pointer, shape, strides, box, steps, layout, swizzle, promotion, fill = encoded(
        array((40, 64), (256, 2)), (32, 64), swizzle=128
    )
    assert (kind.name, rank, pointer) == ("CU_TENSOR_MAP_DATA_TYPE_FLOAT16", 2, 4096)
    assert (shape, strides, box, steps) == ([64, 40], [256], [64, 32], [1, 1])
    assert swizzle.name == "CU_TENSOR_MAP_SWIZZLE_128B"
    assert layout.name == "CU_TENSOR_MAP_INTERLEAVE_NONE"
    assert promotion.name == "CU_TENSOR_MAP_L2_PROMOTION_L2_256B"
    assert fill.name == "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"


def test_a_dimension_of_one_element_may_have_any_stride(encoded):
    strides = encoded(array((1, 1, 65), (0, 2, 2)), (1, 1, 64))[4]
    assert strides == [144, 144]
    assert encoded(array((5,), None), (8,))[4] == []


@pytest.mark.usefixtures("torch")
def test_a_bfloat16_tensor_of_pytorch_is_mapped(encoded):
    assert encoded(Tensor(0), (2, 16))[0].name == "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16"
    assert encoded(array(typestr="<u2"), (1, 8), dtype="bfloat16")[0].name.endswith("BFLOAT16")


@from_table
def test_arrays_that_tma_cannot_address_are_rejected_with_the_reason(
    encoded, given, box, more, message
):
    with pytest.raises(rtcompile.InvalidRequest, match=message):
        encoded(array(**given), box, **more)


@pytest.mark.parametrize("value", [np.zeros((4, 8)), 3, None])
def test_a_value_without_device_memory_has_no_tensor_map(encoded, value):
    with pytest.raises(rtcompile.InvalidRequest, match="is not a device array"):
        encoded(value, (4, 8))

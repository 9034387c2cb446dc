"""Tests of repeated launches: an equal one reuses the first one's configuration, any other is checked."""

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

cupy = pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver")

import rtcompile  # noqa: E402
from rtcompile.extras.launching import launch as launching  # noqa: E402
from tests.frontends.test_launching import CODE, INVALID, Driver, launched  # noqa: E402
from tests.tables import from_table  # noqa: E402

__all__ = ["launched"]
SIZES = (8, 4, 4, 2, 8, 8, 1)


def array(address: int) -> Any:
    memory = cupy.cuda.UnownedMemory(address, 12, None, 0)
    return cupy.ndarray((3,), "f", memptr=cupy.cuda.MemoryPointer(memory, 0))


def arguments(number: int) -> tuple[Any, ...]:
    return (
        array(4096 + number), -number, np.float32(number), np.float16(number), None,
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

"""Bundled kernels of a package run on the device without compiling, and check their arguments."""

import pickle
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

cp = pytest.importorskip("cupy")

from rtcompile import InvalidRequest  # noqa: E402
from rtcompile.cli import bundling  # noqa: E402
from tests.packages import Package  # noqa: E402
from tests.processes import python, ran  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """A package with a bundle for the device and nothing else, where nothing can be compiled."""
    package = Package(tmp_path, "shipped_on_gpu", monkeypatch)
    package.load()
    bundling.bundle([package.name], package.bundle, archs=(device_arch(),))
    monkeypatch.setenv("RTCOMPILE_JIT", "0")
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", "/proc/nowhere")
    return package


def device_arch() -> str:
    number = cp.cuda.Device().compute_capability
    return f"sm_{number}a" if int(number) >= 90 else f"sm_{number}"


def test_a_bundled_kernel_runs(package):
    kernel = package.load().module["scale<float>"]
    x = cp.arange(1000, dtype="f4")
    kernel((8,), (128,), (x, 3, x.size))
    cp.testing.assert_array_equal(x, 3 * cp.arange(1000, dtype="f4"))
    assert kernel.module.raw.build.hit == "bundle"
    assert kernel.raw.num_regs > 0


def test_wrong_arguments_do_not_reach_the_device(package):
    kernel = package.load().module["scale<float>"]
    with pytest.raises(InvalidRequest, match=r"argument 0 \(float\* x\) is an array of float64"):
        kernel((1,), (32,), (cp.zeros(32), 3, 32))
    with pytest.raises(InvalidRequest, match=r"pass array\.item"):
        kernel((1,), (32,), (cp.zeros(32, "f4"), cp.float32(3) * cp.ones(()), 32))


def test_threads_may_call_one_kernel(package):
    kernel = package.load().module["fill"]

    def fill(value: int) -> float:
        with cp.cuda.Stream(non_blocking=True) as stream:
            x = cp.empty(256, "f4")
            kernel((1,), (256,), (x, value))
            stream.synchronize()
            return float(x.sum()) / 256

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(fill, range(32))) == list(range(32))


def test_a_pickled_kernel_runs(package):
    kernel = pickle.loads(pickle.dumps(package.load().module["fill"]))
    x = cp.zeros(32, "f4")
    kernel((1,), (32,), (x, 2.5))
    assert float(x.sum()) == 80


@pytest.mark.multi_gpu
def test_a_kernel_runs_on_each_device(package):
    kernel = package.load().module["fill"]
    for device in range(cp.cuda.runtime.getDeviceCount()):
        with cp.cuda.Device(device):
            x = cp.zeros(32, "f4")
            kernel((1,), (32,), (x, device + 1))
            assert float(x.sum()) == 32 * (device + 1)


def test_arrays_of_other_libraries_are_taken(package):
    torch = pytest.importorskip("torch")
    x = torch.ones(64, device="cuda")
    package.load().module["scale<float>"]((1,), (64,), (x, 3, 64))
    torch.cuda.synchronize()
    assert float(x.sum()) == 192


@pytest.mark.parametrize("arch", ["own", "older", "ptx"])
def test_the_example_package_passes_its_tests_without_compiling(tmp_path, arch):
    """The build is for this device, for an older device of its generation, or PTX."""
    major = int(cp.cuda.Device().compute_capability) // 10
    archs = {"own": device_arch(), "older": f"sm_{major}0", "ptx": "compute_80"}
    project = tmp_path / "fastrows"
    shutil.copytree(ROOT / "examples/fastrows", project)
    environ = {"PYTHONPATH": f"{project}:{ROOT}"}
    bundle = project / "fastrows/kernels.rtcb"
    code = (
        "from rtcompile.cli import bundling; import sys;"
        "bundling.bundle(['fastrows'], sys.argv[1], archs=sys.argv[2:])"
    )
    built_for = [archs[arch], device_arch()] if arch == "own" else [archs[arch]]
    python(code, bundle, *built_for, environ=environ, check=True)
    words = [sys.executable, "-m", "pytest", "-q", "-k", "softmax or normalize", "tests"]
    environ |= {"RTCOMPILE_JIT": "0", "RTCOMPILE_CACHE_DIR": str(tmp_path / "none")}
    done = ran(*words, cwd=project, environ=environ)
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout
    assert not (tmp_path / "none").exists()

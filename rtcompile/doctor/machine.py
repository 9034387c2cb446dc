"""Doctor's checks of what is installed: the system, the driver and its devices, CuPy, the toolkit."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata

from rtcompile._version import __version__
from rtcompile.core import arch as archs
from rtcompile.errors import UnsupportedArch
from rtcompile.settings import Settings
from rtcompile.toolkit import Toolchain
from rtcompile.toolkit.catalogue import PARTS


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked: its name, such as "compile WMMA", and the finding."""

    name: str
    # "ok", "note" (an optional part is missing), "warning" or "error" (it does not work).
    status: str
    detail: str
    hint: str = ""  # what to install or unset; empty if there is nothing to do


_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_IMPORT_SECONDS = 60.0

# Errors of cuInit with a known cause outside the driver.
_CU_INIT = {
    3: "the driver is not initialised; was this process forked from one that used CUDA?",
    34: "a stub of libcuda is loaded (a toolkit's lib64/stubs): take it off LD_LIBRARY_PATH",
    100: "no CUDA device is visible; look at CUDA_VISIBLE_DEVICES and `nvidia-smi`",
    803: "libcuda and the kernel's driver are of different versions: reboot, or reinstall the driver",
    804: "this compatibility libcuda does not go with the kernel's driver",
    999: "the driver failed; look at `nvidia-smi` and `dmesg`",
}


class Driver:
    """libcuda, which is called without CuPy and cuda-python, since either may be broken."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name: str, *arguments: object) -> None:
        """Call a function; an error is an OSError whose `errno` is the driver's number."""
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            with suppress(AttributeError):  # an old stub of libcuda
                self._library.cuGetErrorName(code, ctypes.byref(text))
            raise OSError(code, f"{name}: {(text.value or b'').decode()} ({code})")

    def capability(self, ordinal: int) -> tuple[int, int]:
        """Return the compute capability of a device."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self("cuDeviceGetAttribute", ctypes.byref(major), _MAJOR, ordinal)
        self("cuDeviceGetAttribute", ctypes.byref(minor), _MINOR, ordinal)
        return major.value, minor.value


def system() -> Iterator[Check]:
    """Report rtcompile, Python and the platform."""
    here = f"rtcompile {__version__}, Python {platform.python_version()}, {platform.platform()}"
    supported = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    if supported:
        yield Check("system", "ok", here)
    else:
        yield Check("system", "error", here, "rtcompile compiles on Linux x86-64 and aarch64.")


def devices(settings: Settings, toolchain: Toolchain) -> Iterator[Check]:
    """Report the driver and each device, with the architecture that is compiled for it."""
    try:
        driver = Driver()
    except OSError:
        yield Check("driver", "note", "no NVIDIA driver: kernels compile with arch=, none run here")
        return
    version, count = ctypes.c_int(), ctypes.c_int()
    driver("cuDriverGetVersion", ctypes.byref(version))
    yield _driver((version.value // 1000, version.value % 1000 // 10), toolchain)
    try:
        driver("cuInit", 0)
    except OSError as error:
        code = error.errno or 0
        status = "note" if code == 100 else "error"
        yield Check("device", status, f"cuInit gave {code}", _CU_INIT.get(code, ""))
        return
    driver("cuDeviceGetCount", ctypes.byref(count))
    for ordinal in range(count.value):
        yield _device(driver, ordinal, toolchain)


def _driver(version: tuple[int, int], toolchain: Toolchain) -> Check:
    detail = "supports CUDA {}.{}".format(*version)
    nvrtc = toolchain.nvrtc
    if nvrtc is not None and nvrtc.version_pair[0] > version[0]:
        step = f"Upgrade the driver, or install NVRTC and headers of CUDA {version[0]}."
        return Check(
            "driver", "error", f"{detail}; it loads no code of NVRTC {nvrtc.version}", step
        )
    return Check("driver", "ok", detail)


def _device(driver: Driver, ordinal: int, toolchain: Toolchain) -> Check:
    name = ctypes.create_string_buffer(100)
    memory = ctypes.c_size_t()
    driver("cuDeviceGetName", name, 100, ordinal)
    driver("cuDeviceTotalMem_v2", ctypes.byref(memory), ordinal)
    capability = driver.capability(ordinal)
    label = f"device {ordinal}"
    detail = "{}, compute capability {}.{}, {:.0f} GiB".format(
        name.value.decode(errors="replace"), *capability, memory.value / 2**30
    )
    if toolchain.nvrtc is None:
        return Check(label, "ok", detail)
    try:
        choice = archs.choose(capability, toolchain.nvrtc.version_pair)
    except UnsupportedArch as error:
        return Check(label, "error", detail, str(error))
    status = "ok" if choice.why == "the device's own" else "warning"
    return Check(label, status, f"{detail}: compiled for {choice.arch} ({choice.why})")


def packages(settings: Settings, toolchain: Toolchain) -> Iterator[Check]:
    """Report CuPy and cuda-python: installed only once, importable, of NVRTC's CUDA version."""
    yield _cupy(toolchain)
    try:
        yield Check("cuda-python", "ok", metadata.version("cuda-bindings"))
    except metadata.PackageNotFoundError:
        step = "`pip install cuda-python`, or give arch= everywhere."
        yield Check(
            "cuda-python", "note", "not installed: no device can be asked for its arch", step
        )


def _cupy(toolchain: Toolchain) -> Check:
    found = {
        name: distribution.version
        for distribution in metadata.distributions()
        if (name := str(distribution.metadata["Name"]).lower()) in ("cupy", *_CUPY_WHEELS)
    }
    if not found:
        step = "RawModule and RawKernel need it: `pip install cupy-cuda12x` (or 13x)."
        return Check("cupy", "note", "not installed: rtcompile.compile works without", step)
    detail = ", ".join(f"{name} {version}" for name, version in sorted(found.items()))
    if len(found) > 1:
        step = "They overwrite each other's files: `pip uninstall` all of them, then install one."
        return Check("cupy", "error", detail, step)
    major = _CUPY_WHEELS.get(next(iter(found)))
    nvrtc = toolchain.nvrtc
    if major and nvrtc and nvrtc.version_pair[0] != major:
        step = f"Install the CuPy for CUDA {nvrtc.version_pair[0]}, or CUDA {major} beside it."
        return Check(
            "cupy", "warning", f"{detail} is for CUDA {major}, NVRTC {nvrtc.version}", step
        )
    problem = _cupy_import_problem()
    return Check("cupy", "error" if problem else "ok", f"{detail}{problem}")


_CUPY_WHEELS = {"cupy-cuda11x": 11, "cupy-cuda12x": 12, "cupy-cuda13x": 13}


def _cupy_import_problem() -> str:
    """Import CuPy in another process, which a broken extension module may crash."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; import cupy"],
        capture_output=True,
        text=True,
        timeout=_IMPORT_SECONDS,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return f" does not import: {last}"


# part -> the status of a check when it is missing
_GRAVITY = {
    "nvrtc": "error",
    "cudart": "error",
    "crt": "error",
    "cccl": "error",
    "nvjitlink": "note",
    "cudadevrt": "note",
    "nvcc": "note",
    "host_compiler": "note",
    "cutlass": "note",
    "curand": "note",
    "cupy": "note",
}


def toolkit_parts(settings: Settings, toolchain: Toolchain) -> Iterator[Check]:
    """Report every part, then every problem that is not yet reported."""
    reported = []
    for part, gravity in _GRAVITY.items():
        if part in toolchain.missing:
            fact, step = _split(toolchain.missing[part])
            # If there is another compiler, this is a warning and no error.
            instead = part == "nvrtc" and toolchain.nvcc is not None
            status = "warning" if instead else gravity
            if status == "note" and toolchain.missing[part] in toolchain.problems:
                status = "warning"  # it is installed, in an unusable version
            yield Check(_name(part), status, fact, step)
            reported.append(toolchain.missing[part])
            continue
        version, via = toolchain.versions.get(part, ""), toolchain.found_via.get(part, "")
        found = [text for text in (version, via, _place(part, toolchain)) if text]
        if found:
            yield Check(_name(part), "ok", ", ".join(found))
    # Missing parts are reported above. The other problems are about parts that have a replacement,
    # except for NVRTC without its builtins library.
    halved = toolchain.nvrtc is not None and not toolchain.nvrtc.preload
    for directory in toolchain.search:
        if directory.is_provided:
            version, via = toolchain.versions[directory.label], toolchain.found_via[directory.label]
            yield Check(directory.label, "ok", f"{version}, {via}, {directory.path}")
    for problem in toolchain.problems:
        if problem not in reported:
            fact, step = _split(problem)
            fatal = halved and "libnvrtc-builtins" in problem
            yield Check("toolkit", "error" if fatal else "warning", fact, step)


def _name(part: str) -> str:
    return "cupy headers" if part == "cupy" else part.replace("_", " ")


def _place(part: str, toolchain: Toolchain) -> str:
    found = getattr(toolchain, part, None)
    if found is not None:
        return found if isinstance(found, str) else str(found.path)
    labelled = next((d.path for d in toolchain.search if d.label == part), "")
    return labelled or _read_from(part, toolchain)


def _read_from(part: str, toolchain: Toolchain) -> str:
    """Return the folder from which builds read a part that shares its folder with others."""
    markers = [marker for each in PARTS if each.name == part for marker in each.markers]
    return next(
        (d.path for d in toolchain.search for m in markers if os.path.isfile(f"{d.path}/{m}")), ""
    )


def _split(text: str) -> tuple[str, str]:
    """Split "fact. Next step." into the fact and the step."""
    head, mark, rest = text.partition(". ")
    return (f"{head}.", rest) if mark else (text, "")

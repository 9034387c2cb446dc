"""Doctor's checks of the machine, the toolkit, the cache and the shared stores."""

from __future__ import annotations

import ctypes
import os
import platform
import secrets
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata

from rtcompile._version import __version__
from rtcompile.errors import InvalidRequest, UnsupportedArch
from rtcompile.files import sealed
from rtcompile.files.sealed import UntrustedError
from rtcompile.lookup.driver import Driver
from rtcompile.request import arch as archs
from rtcompile.settings import Settings
from rtcompile.store import inventory
from rtcompile.store.folder import Folder
from rtcompile.store.remote import Remote
from rtcompile.store.shared import (
    LeasesUnsupportedError,
    LeasingStore,
    RemoteSettings,
    SharedStore,
    first_line,
)
from rtcompile.store.store import Store
from rtcompile.store.tier import within
from rtcompile.toolkit.catalogue import PARTS
from rtcompile.toolkit.model import Toolchain


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked: its name, such as "compile WMMA", and the finding."""

    name: str
    # "ok", "note" (an optional part is missing), "warning" or "error" (it does not work).
    status: str
    detail: str
    hint: str = ""  # what to install or unset; empty if there is nothing to do


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


def system() -> Iterator[Check]:
    """Report rtcompile, Python and the platform."""
    here = f"rtcompile {__version__}, Python {platform.python_version()}, {platform.platform()}"
    supported = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    if supported:
        yield Check("system", "ok", here)
    else:
        yield Check("system", "error", here, "rtcompile compiles on Linux x86-64 and aarch64.")


def devices(toolchain: Toolchain) -> Iterator[Check]:
    """Report the driver and each device, with the architecture that is compiled for it."""
    try:
        driver = Driver()
    except OSError:
        yield Check("driver", "note", "no NVIDIA driver: kernels compile with arch=, none run here")
        return
    version = driver.integer("cuDriverGetVersion")
    yield _driver((version // 1000, version % 1000 // 10), toolchain)
    try:
        driver("cuInit", 0)
    except OSError as error:
        code = error.errno or 0
        status = "note" if code == 100 else "error"
        yield Check("device", status, f"cuInit gave {code}", _CU_INIT.get(code, ""))
        return
    for ordinal in range(driver.integer("cuDeviceGetCount")):
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


def packages(toolchain: Toolchain) -> Iterator[Check]:
    """Report CuPy and cuda-python: installed only once, importable, of NVRTC's CUDA version."""
    yield _cupy(toolchain)
    try:
        yield Check("cuda-python", "ok", metadata.version("cuda-bindings"))
    except metadata.PackageNotFoundError:
        lacking = "not installed: kernel.launch and tensor_map need it"
        yield Check("cuda-python", "note", lacking, "`pip install cuda-python`")


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
_SEVERITY = {
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


def toolkit_parts(toolchain: Toolchain) -> Iterator[Check]:
    """Report every part, then every other problem."""
    reported = []
    for part, severity in _SEVERITY.items():
        if part in toolchain.missing:
            fact, step = _split(toolchain.missing[part])
            # If there is another compiler, this is only a warning.
            instead = part == "nvrtc" and toolchain.nvcc is not None
            status = "warning" if instead else severity
            if status == "note" and toolchain.missing[part] in toolchain.problems:
                status = "warning"  # it is installed, in an unusable version
            yield Check(_name(part), status, fact, step)
            reported.append(toolchain.missing[part])
            continue
        version, via = toolchain.versions.get(part, ""), toolchain.found_via.get(part, "")
        found = [text for text in (version, via, _path_of(part, toolchain)) if text]
        if found:
            yield Check(_name(part), "ok", ", ".join(found))
    # Missing parts were reported above. The other problems are about parts with a replacement,
    # except for NVRTC without its builtins library.
    lacks_builtins = toolchain.nvrtc is not None and not toolchain.nvrtc.preload
    for directory in toolchain.search:
        if directory.is_provided:
            version, via = toolchain.versions[directory.label], toolchain.found_via[directory.label]
            yield Check(directory.label, "ok", f"{version}, {via}, {directory.path}")
    for problem in toolchain.problems:
        if problem not in reported:
            fact, step = _split(problem)
            fatal = lacks_builtins and "libnvrtc-builtins" in problem
            yield Check("toolkit", "error" if fatal else "warning", fact, step)


def _name(part: str) -> str:
    return "cupy headers" if part == "cupy" else part.replace("_", " ")


def _path_of(part: str, toolchain: Toolchain) -> str:
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


# --- The cache and the shared stores ---------------------------------------------------------------

# File systems on which locks between machines are slow or unreliable.
_SHARED = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "afs", "fuse.sshfs", "9p",
}  # fmt: skip
_VOLATILE = {"tmpfs", "ramfs"}
_LOW_SPACE = 1 << 30
_MOST_VERIFIED = 2000


def cache_checks(settings: Settings) -> Iterator[Check]:
    """Report the cache directory and its contents."""
    path = settings.cache_dir
    if not settings.cache_on_disk:
        yield Check("cache", "note", "in memory only", "CUPY_CACHE_IN_MEMORY=1 asks for that.")
        return
    folder = Folder(path)
    try:
        if settings.jit:
            folder.prepare()
            with folder.open("objects") as objects:
                sealed.publish(".probe", b"", dir_fd=objects)
                sealed.discard(".probe", dir_fd=objects)
        elif not folder.check():
            yield Check(
                "cache",
                "note",
                f"{path}: it does not exist, and RTCOMPILE_JIT=0 forbids creating it",
            )
            return
    except UntrustedError as error:
        yield Check(
            "cache", "error", str(error), "Set RTCOMPILE_CACHE_DIR to a folder of your own."
        )
        return
    except OSError as error:
        reason = error.strerror or error
        step = "Set RTCOMPILE_CACHE_DIR to a folder that you can write to."
        yield Check("cache", "warning", f"{path}: {reason}; builds are kept in memory", step)
        return
    yield Check("cache", "ok", path)
    yield _file_system(path)
    yield _contents(folder, settings)


def _file_system(path: str) -> Check:
    kind = _kind_of_file_system(path)
    free = shutil.disk_usage(path).free
    detail = f"{kind or 'unknown'}, {free / 2**30:.1f} GiB free"
    if kind in _SHARED:
        step = "A local disk is faster and locks better: set RTCOMPILE_CACHE_DIR."
        return Check("cache file system", "warning", detail, step)
    if free < _LOW_SPACE:
        step = "Make room, or set RTCOMPILE_CACHE_DIR: a precompiled header alone takes 300 MB."
        return Check("cache file system", "warning", detail, step)
    if kind in _VOLATILE:
        step = "It is empty after a reboot."
        return Check("cache file system", "note", detail, step)
    return Check("cache file system", "ok", detail)


def _kind_of_file_system(path: str) -> str:
    """Return the type of the file system that contains `path`, ``""`` if it is unknown."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    device = os.stat(path).st_dev
    numbers = f"{os.major(device)}:{os.minor(device)}"
    kinds = [
        line.partition(" - ")[2].split()[0]
        for line in lines
        if line.split()[2] == numbers and " - " in line
    ]
    return kinds[-1] if kinds else ""


def _contents(folder: Folder, settings: Settings) -> Check:
    stored = list(inventory.stored(folder))
    size = inventory.size(folder)
    detail = f"{len(stored)} files, {size / 2**20:.0f} MiB of {settings.cache_size / 2**20:.0f}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        usage = Store.open(settings).usage()
    if usage is not None:
        detail += f", {usage.hits} hits, {usage.misses} builds"
    elif settings.jit:
        return Check("cache contents", "warning", f"{detail}; its statistics cannot be written")
    if len(stored) > _MOST_VERIFIED:
        return Check("cache contents", "ok", f"{detail}; `rtcompile cache verify` reads them all")
    unusable = list(inventory.unusable(folder))
    others = sum(of_another_version for _, of_another_version in unusable)
    if others:
        detail += f"; {others} of another version of rtcompile"
    if damaged := len(unusable) - others:
        step = "They are not used; `rtcompile cache verify` removes them."
        return Check("cache contents", "warning", f"{detail}; {damaged} damaged", step)
    if others:
        step = (
            "This version does not use them. You need do nothing: they are evicted when the cache is "
            "full; `rtcompile cache prune --size 100M` evicts the least recently used files now."
        )
        return Check("cache contents", "note", detail, step)
    return Check("cache contents", "ok", f"{detail}; all verify")


_MOST_SECONDS = 5.0  # for all requests to one store
_PROMPT_SECONDS = 0.1


def shared_stores(settings: Settings) -> Iterator[Check]:
    """Try each store: round trip, clock, lease, rights."""
    try:
        found = RemoteSettings.from_environ()
        if found.shares_nothing:
            yield Check("shared stores", "warning", found.shares_nothing)
        if not settings.remote:
            return
        stores = Remote(found)
    except InvalidRequest as error:
        yield Check("shared stores", "error", str(error), "Builds go on without them.")
        return
    for tier in stores.tiers:
        check, _, problem = within(_MOST_SECONDS, partial(_try, tier.store, found.mode))
        check = check or _unreachable(tier.store, problem)
        signer = stores.envelope.keys[0]
        yield replace(check, detail=f"{check.detail}; key {signer.fingerprint} ({signer.kind})")


def _unreachable(store: SharedStore, problem: str) -> Check:
    step = "Builds go on without it. Is the server there, and are address and password right?"
    return Check(_check_name(store), "error", f"{store.name}: {problem}", step)


def _check_name(store: SharedStore) -> str:
    return f"shared store {store.name.partition(':')[0]}"


def _skew(store: SharedStore, probe: str) -> str:
    if not hasattr(store, "clock"):
        return ""
    skew = store.clock(probe) - time.time()
    return f"; its clock is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}"


def _try(store: SharedStore, mode: str) -> Check:
    name = _check_name(store)
    probe = f"probe/{secrets.token_hex(8)}"
    begin = time.monotonic()
    try:
        store.get(probe)
        seconds = time.monotonic() - begin
        begin = time.monotonic()  # the first request also opened the connection
        store.get(probe)
        seconds = min(seconds, time.monotonic() - begin)
    except Exception as error:  # noqa: BLE001  # a store's client may raise anything
        return _unreachable(store, first_line(error))
    detail = f"{store.name}: {seconds * 1e3:.1f} ms a round trip; reads"
    if mode != "rw":
        return Check(name, "ok", f"{detail} (RTCOMPILE_REMOTE_MODE={mode}: nothing is written)")
    try:
        store.put(probe, b"probe")
    except Exception as error:  # noqa: BLE001  # a store's client may raise anything
        step = "Grant the right, or set RTCOMPILE_REMOTE_MODE=ro."
        return Check(name, "warning", f"{detail}, cannot write: {first_line(error)}", step)
    if not isinstance(store, LeasingStore):
        return Check(
            name, "ok", f"{detail}, writes; has no leases: nodes may build the same at once"
        )
    try:
        detail += f", writes{_skew(store, probe)}"
        leased = f"{probe}-lease"
        claims = [store.create(leased, each, 10.0) for each in (b"one", b"another")]
        claims.append(store.replace(leased, b"one", None, 10.0))
    except LeasesUnsupportedError as error:
        return Check(name, "warning", detail, f"{error}.")
    except Exception as error:  # noqa: BLE001  # a store's client may raise anything
        details = f"{detail}; {first_line(error)}"
        return Check(name, "warning", details, "It does not always respond.")
    finally:
        with suppress(Exception):
            store.replace(probe, b"probe", None, 10.0)
            if hasattr(store, "flush"):
                store.flush()
    if claims != [True, False, True]:
        step = "Two nodes may build the same at once."
        return Check(name, "warning", f"{detail}; its leases do not hold", step)
    detail += "; gives leases"
    if seconds > _PROMPT_SECONDS:
        step = "Small kernels compile in that time; put a nearer store first in RTCOMPILE_REMOTE."
        return Check(name, "warning", detail, step)
    return Check(name, "ok", detail)

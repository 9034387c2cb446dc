"""Doctor's checks of the machine, the toolkit, the cache and the shared stores."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata

from rtcompile import __version__
from rtcompile.errors import InvalidRequest, UnsupportedArch
from rtcompile.extras.cluster.entries import (
    LeasesUnsupportedError,
    RemoteSettings,
    SharedStore,
    first_line,
)
from rtcompile.extras.cluster.stores import Stores
from rtcompile.extras.record import recording
from rtcompile.files.sealed import UntrustedError
from rtcompile.lookup.driver import Driver
from rtcompile.messages import catalogue
from rtcompile.messages.facts import BuildContext
from rtcompile.request import arch as archs
from rtcompile.settings import Settings
from rtcompile.store import inventory
from rtcompile.store.folder import Folder
from rtcompile.store.store import Store
from rtcompile.toolkit.catalogue import PART
from rtcompile.toolkit.model import Toolchain


@dataclass(frozen=True, slots=True)
class Check:
    """One check of `doctor` and its finding.

    Attributes
    ----------
    name : str
        What was checked, ``"compile WMMA"``.
    status : {"ok", "note", "warning", "error"}
        ``"note"`` means that an optional part is missing, ``"error"`` that something does not work.
    detail : str
        The finding.
    hint : str
        What to install, change or unset; empty if there is nothing to do.
    """

    name: str
    status: str
    detail: str
    hint: str = ""


def system() -> Iterator[Check]:
    """Report rtcompile, Python and the platform."""
    here = f"rtcompile {__version__}, Python {platform.python_version()}, {platform.platform()}"
    supported = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    step = "" if supported else "rtcompile compiles on Linux x86-64 and aarch64."
    yield Check("system", "error" if step else "ok", here, step)


def devices(toolchain: Toolchain) -> Iterator[Check]:
    """Report the driver and each device, with the architecture that is compiled for it."""
    try:
        driver = Driver()
    except OSError:
        detail = "no NVIDIA driver: kernels can be compiled with arch=, but not run here"
        yield Check("driver", "note", detail)
        return
    version = driver.integer("cuDriverGetVersion")
    major, nvrtc = version // 1000, toolchain.nvrtc
    detail = f"supports CUDA {major}.{version % 1000 // 10}"
    if nvrtc is None or nvrtc.version_pair[0] <= major:
        yield Check("driver", "ok", detail)
    else:
        step = f"Upgrade the driver, or install NVRTC and headers of CUDA {major}."
        detail += f"; it cannot load code of NVRTC {nvrtc.version}"
        yield Check("driver", "error", detail, step)
    try:
        driver("cuInit", 0)
    except OSError as error:
        status = "note" if error.errno == 100 else "error"
        headers = BuildContext(search=toolchain.search)  # they name the error
        hint = catalogue.hint_for(f"CUDA error {error.errno}", headers)
        yield Check("device", status, f"cuInit gave {error.errno}", hint)
        return
    for ordinal in range(driver.integer("cuDeviceGetCount")):
        yield _device(driver, ordinal, toolchain)


def _device(driver: Driver, ordinal: int, toolchain: Toolchain) -> Check:
    name = ctypes.create_string_buffer(100)
    memory = ctypes.c_size_t()
    driver("cuDeviceGetName", name, 100, ordinal)
    driver("cuDeviceTotalMem_v2", ctypes.byref(memory), ordinal)
    capability = driver.capability(ordinal)
    detail = "{}, compute capability {}.{}, {:.0f} GiB".format(
        name.value.decode(errors="replace"), *capability, memory.value / 2**30
    )
    status, step = "ok", ""
    if toolchain.nvrtc is not None:
        try:
            choice = archs.choose(capability, toolchain.nvrtc.version_pair)
            status = "ok" if choice.why == "the device's own" else "warning"
            detail += f": compiled for {choice.arch} ({choice.why})"
        except UnsupportedArch as error:
            status, step = "error", str(error)
    return Check(f"device {ordinal}", status, detail, step)


def packages(toolchain: Toolchain) -> Iterator[Check]:
    """Report cuda-python, and CuPy: whether it is installed once, importable, and of NVRTC's CUDA version."""
    yield _cupy(toolchain)
    try:
        yield Check("cuda-python", "ok", metadata.version("cuda-bindings"))
    except metadata.PackageNotFoundError:
        why = "not installed: kernel.launch and tensor_map need it"
        yield Check("cuda-python", "note", why, "`pip install cuda-python`")


def _cupy(toolchain: Toolchain) -> Check:
    found = recording.cupys()
    if not found:
        step = "RawModule and RawKernel need it: `pip install cupy-cuda12x` (or 13x)."
        return Check("cupy", "note", "not installed: rtcompile.compile works without it", step)
    detail = ", ".join(f"{name} {version}" for name, version in sorted(found.items()))
    if len(found) > 1:
        step = "They overwrite each other's files: `pip uninstall` all of them, then install one."
        return Check("cupy", "error", detail, step)
    wheel, nvrtc = re.search(r"cuda(\d+)x", detail), toolchain.nvrtc
    major = int(wheel[1]) if wheel else 0
    if major and nvrtc and nvrtc.version_pair[0] != major:
        step = f"Install the CuPy for CUDA {nvrtc.version_pair[0]}, or CUDA {major} beside it."
        detail += f" is for CUDA {major}, NVRTC {nvrtc.version}"
        return Check("cupy", "warning", detail, step)
    _, problem = by_python("import cupy", 60.0, {})
    if problem:
        step = "CuPy makes a folder when it is imported: set CUPY_CACHE_DIR to one it can write."
        hint = step if "[Errno" in problem else ""
        return Check("cupy", "error", f"{detail} does not import: {problem}", hint)
    return Check("cupy", "ok", detail)


def by_python(program: str, seconds: float, environ: Mapping[str, str]) -> tuple[str, str]:
    """Run a program that may crash in another process; return what it printed, and why it failed or ""."""
    path = f"import sys; sys.path[:] = {sys.path!r}\n"
    environ = {**os.environ, "PYTHONWARNINGS": "ignore", **environ}
    words = [sys.executable, "-c", path + program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, env=environ)
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return done.stdout.strip(), last if done.returncode else ""


# The parts in the order of their checks; the first are required.
_REQUIRED = ("nvrtc", "cudart", "crt", "cccl")
_OPTIONAL = ("nvjitlink", "cudadevrt", "nvcc", "host_compiler", "cutlass", "curand", "cupy")


def toolkit_parts(toolchain: Toolchain) -> Iterator[Check]:
    """Report every part, then every other problem."""
    reported = []
    for part in (*_REQUIRED, *_OPTIONAL):
        if part in toolchain.missing:
            problem = toolchain.missing[part]
            # A missing required part is less severe if there is another compiler; an optional part is more severe
            # if its installed version is unusable.
            if part in _OPTIONAL:
                status = "warning" if problem in toolchain.problems else "note"
            else:
                status = "warning" if part == "nvrtc" and toolchain.nvcc else "error"
            yield Check(_name(part), status, *_split(problem))
            reported.append(problem)
            continue
        version, via = toolchain.versions.get(part, ""), toolchain.found_via.get(part, "")
        found = [text for text in (version, via, _path_of(part, toolchain)) if text]
        if found:
            yield Check(_name(part), "ok", ", ".join(found))
    # Missing parts were reported above. The other problems are about parts with a replacement,
    # except for NVRTC without its builtins library.
    lacks_builtins = toolchain.nvrtc is not None and not toolchain.nvrtc.preload
    for problem in toolchain.problems:
        if problem not in reported:
            fatal = lacks_builtins and "libnvrtc-builtins" in problem
            yield Check("toolkit", "error" if fatal else "warning", *_split(problem))


def _name(part: str) -> str:
    return "cupy headers" if part == "cupy" else part.replace("_", " ")


def _path_of(part: str, toolchain: Toolchain) -> str:
    found = getattr(toolchain, part, None)
    if found is not None:
        return found if isinstance(found, str) else str(found.path)
    # A part may share its folder with others, under the label of the first.
    markers = PART[part].markers if part in PART else ()
    labelled = (d.path for d in toolchain.search if d.label == part)
    shared = (d.path for d in toolchain.search for m in markers if os.path.isfile(f"{d.path}/{m}"))
    return next(labelled, "") or next(shared, "")


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


def cache_checks(settings: Settings) -> Iterator[Check]:
    """Report the cache directory and its contents."""
    path = settings.cache_dir
    if not settings.cache_on_disk:
        yield Check("cache", "note", "in memory only", "CUPY_CACHE_IN_MEMORY=1 is set.")
        return
    folder = Folder(path)
    try:
        if settings.jit:
            folder.prepare()
            folder.publish("objects", ".probe", b"")
            folder.discard("objects", ".probe")
        elif not folder.check():
            detail = f"{path}: it does not exist, and RTCOMPILE_JIT=0 forbids creating it"
            yield Check("cache", "note", detail)
            return
    except UntrustedError as error:
        step = "Set RTCOMPILE_CACHE_DIR to a folder of your own."
        yield Check("cache", "error", str(error), step)
        return
    except OSError as error:
        detail = f"{path}: {error.strerror or error}; builds are kept in memory"
        step = "Set RTCOMPILE_CACHE_DIR to a folder that you can write to."
        yield Check("cache", "warning", detail, step)
        return
    yield Check("cache", "ok", path)
    yield _file_system(path)
    yield _contents(folder, settings)


def _file_system(path: str) -> Check:
    device, kind = os.stat(path).st_dev, ""
    with suppress(OSError), open("/proc/self/mountinfo", errors="replace") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            if before.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                kind = after.split()[0]
    free = shutil.disk_usage(path).free
    status, step = "ok", ""
    if kind in _SHARED:
        step = "A local disk is faster and locks better: set RTCOMPILE_CACHE_DIR."
        status = "warning"
    elif free < _LOW_SPACE:
        step = "Make room, or set RTCOMPILE_CACHE_DIR: a precompiled header alone takes 300 MB."
        status = "warning"
    elif kind in _VOLATILE:
        status, step = "note", "It is empty after a reboot."
    detail = f"{kind or 'unknown'}, {free / 2**30:.1f} GiB free"
    return Check("cache file system", status, detail, step)


def _contents(folder: Folder, settings: Settings) -> Check:
    stored = list(inventory.units(folder))
    size = sum(unit.size for unit in stored)
    detail = f"{len(stored)} files, {size / 2**20:.0f} MiB of {settings.cache_size / 2**20:.0f}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        usage = Store.open(settings).usage()
    if usage is not None:
        detail += f", {usage.hits} hits, {usage.misses} builds"
    elif settings.jit:
        detail += "; its statistics cannot be written"
        return Check("cache contents", "warning", detail)
    return Check("cache contents", "ok", detail)


_MOST_SECONDS = 5.0  # for all requests to one store
_PROMPT_SECONDS = 0.1


def shared_stores(settings: Settings) -> Iterator[Check]:
    """Try each store: round trip, lease, rights."""
    try:
        if not settings.remote:
            return
        found = RemoteSettings.from_environ()
        stores = Stores(found)
    except InvalidRequest as error:
        yield Check("shared stores", "error", str(error), "Builds work without them.")
        return
    for level in stores.levels:
        try:
            tried = level.limited(partial(_try, level.store, found.mode), _MOST_SECONDS)
        except Exception as error:  # noqa: BLE001  # a store's client may raise anything
            step = (
                "Builds work without it. Is the server running, and are address and password right?"
            )
            tried = "error", first_line(error), step
        (status, detail, step), signer = tried, level.keys[0]
        detail = f"{level.store.name}: {detail}; key {signer.fingerprint} ({signer.kind})"
        yield Check(f"shared store {level.store.name.partition(':')[0]}", status, detail, step)


def _try(store: SharedStore, mode: str) -> tuple[str, str, str]:
    """Return the status, the detail and the next step of a store; raise what its client raises."""
    seconds = []
    for _ in range(2):  # the first request also opens the connection
        begin = time.monotonic()
        store.get("probe/doctor")
        seconds.append(time.monotonic() - begin)
    detail = f"{min(seconds) * 1e3:.1f} ms a round trip; reads"
    if mode != "rw":
        return "ok", f"{detail} (RTCOMPILE_REMOTE_MODE={mode}: nothing is written)", ""
    try:
        store.put("probe/doctor", b"probe")
    except Exception as error:  # noqa: BLE001  # a store's client may raise anything
        step = "Grant the right, or set RTCOMPILE_REMOTE_MODE=ro."
        return "warning", f"{detail}, cannot write: {first_line(error)}", step
    detail += ", writes"
    try:
        leased = f"probe/lease/{secrets.token_hex(8)}"
        claims = [store.create(leased, each) for each in (b"one", b"another")]
    except LeasesUnsupportedError as error:
        return "warning", detail, f"{error}."
    except Exception as error:  # noqa: BLE001  # a store's client may raise anything
        return "warning", f"{detail}; {first_line(error)}", "It does not always respond."
    if claims != [True, False]:
        step = "Two nodes may build the same kernel at once."
        return "warning", f"{detail}; its leases do not exclude each other", step
    detail += "; gives leases"
    if min(seconds) > _PROMPT_SECONDS:
        step = "Small kernels compile in that time; put a nearer store first in RTCOMPILE_REMOTE."
        return "warning", detail, step
    return "ok", detail, ""

"""`Query`: what every level of the look-up is given: a request, its environment and its device.

cuda-python's answer counts. On a hit CuPy is asked instead if it is loaded: importing cuda-python
takes 20 ms, and both ask the same driver.
"""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock

from rtcompile.errors import ToolkitNotFound, UnsupportedArch
from rtcompile.lookup import environment as environments
from rtcompile.lookup.environment import Environment, digest
from rtcompile.request.object_code import ObjectCode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rtcompile.files.fileset import FileSet
    from rtcompile.request.request import CompileRequest
    from rtcompile.settings import Settings


# --- Finds the compute capability of the current device -------------------------------------------

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*, the same in cudaDevAttr*
_known: dict[int, tuple[int, int]] = {}
_confirmed: dict[int, tuple[int, int]] = {}


def loaded(name: str) -> Any:
    """Return a module that is imported already; None while another thread is importing it still."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def compute_capability() -> tuple[int, int]:
    """Return (major, minor) of the current device, from cuda-python or CuPy, whichever is loaded."""
    cupy = loaded("cupy")
    runtime = None if cupy is None else cupy.cuda.runtime
    if runtime is None:
        return confirmed_compute_capability()
    try:
        device = runtime.getDevice()
        if device not in _known:
            _known[device] = (
                runtime.deviceGetAttribute(_MAJOR, device),
                runtime.deviceGetAttribute(_MINOR, device),
            )
    except runtime.CUDARuntimeError as error:
        raise no_device(str(error)) from None
    return _known[device]


def confirmed_compute_capability() -> tuple[int, int]:
    """Return (major, minor) of the current device, from cuda-python, with the same errors."""
    try:
        from cuda.bindings import driver
    except ImportError:
        if loaded("cupy") is not None:
            return compute_capability()
        raise ToolkitNotFound(
            "the device's compute capability is read through cuda-python, which is not installed; "
            "`pip install cuda-python`, or pass arch='sm_90a' to compile without asking a device"
        ) from None

    def ask(function: Any, *arguments: Any) -> Any:
        status, *values = function(*arguments)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise no_device(f"{function.__name__}: {status.name}")
        return values[0] if values else None

    try:
        ask(driver.cuInit, 0)
    except RuntimeError as error:  # cuda-python raises it where there is no libcuda
        raise no_device(str(error)) from None
    context = ask(driver.cuCtxGetCurrent)
    # Without a context the runtime's current device is 0: cudaSetDevice makes one (CUDA 12 on).
    device = ask(driver.cuCtxGetDevice) if int(context) else ask(driver.cuDeviceGet, 0)
    ordinal = int(device)
    if ordinal not in _confirmed:
        attribute = driver.CUdevice_attribute
        _confirmed[ordinal] = (
            ask(
                driver.cuDeviceGetAttribute,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                device,
            ),
            ask(
                driver.cuDeviceGetAttribute,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                device,
            ),
        )
    return _confirmed[ordinal]


def driver_version() -> int:
    """Return the CUDA version that the driver supports, 13000 for 13.0; 0 without a driver."""
    try:
        from cuda.bindings import driver

        status, version = driver.cuDriverGetVersion()
    except (ImportError, RuntimeError):  # no cuda-python; no libcuda
        return 0
    return int(version) if status == driver.CUresult.CUDA_SUCCESS else 0


def no_device(evidence: str, loading: bool = False) -> UnsupportedArch:
    """Return the error for a machine without a device, where one is to be compiled for or loaded on."""
    if loading:
        return UnsupportedArch(
            f"no CUDA device to load and run the code on ({evidence}); with arch='sm_90a' (or "
            "another) it compiles without one, and object_code, report() and RawKernel.advise() "
            "tell of it"
        )
    return UnsupportedArch(
        f"no CUDA device to compile for ({evidence}); "
        "pass arch='sm_90a' (or another) to compile without one"
    )


# --- `Query` --------------------------------------------------------------------------------------

INDEX = "index"  # the cache's folder of index entries

# Options that name no path, so they mean the same in every working directory.
WITHOUT_PATH = (
    "--define-macro=",
    "--device-debug",
    "--fmad=",
    "--gpu-architecture=",
    "--maxrregcount=",
    "--std=",
    "--use_fast_math",
    "-D",
    "-U",
    "-arch=",
    "-default-device",
    "-ftz=",
    "-lineinfo",
    "-std=",
    "-use_fast_math",
)
_ANYWHERE = (*WITHOUT_PATH, "-I/")


class Query:
    """One look-up: a request in an environment, for a device.

    `identity` is everything that can change the result, besides files and the environment; None if
    planning is needed to know it. The levels that need a plan make it on first need, as `plan`; a batch has a
    `planner`, which plans similar requests once.
    `capability` is None where the request names its architecture, or there is no device. With
    `recent`, the toolkit's headers that were found unchanged within the last second count as
    unchanged: CuPy's own kernels follow one another and share a hundred headers. `failed` says whether
    the index states that the last build failed; the negative cache then has its error.
    """

    __slots__ = (
        "begun",
        "capability",
        "environment",
        "failed",
        "identity",
        "plan",
        "planner",
        "recent",
        "request",
        "settings",
    )

    def __init__(
        self,
        request: CompileRequest,
        settings: Settings,
        environment: Environment,
        capability: tuple[int, int] | None,
        links: tuple[object, ...] | None,
    ) -> None:
        self.request = request
        self.settings = settings
        self.environment = environment
        self.capability = capability
        self.recent = False
        self.failed = False
        self.begun = 0.0  # when it was planned
        self.plan: Any = None  # a `build.plan.Plan`
        self.planner: Callable[[CompileRequest, Settings], Any] | None = None  # returns such a plan
        self.identity: tuple[object, ...] | None = None
        if links is None:
            return
        try:
            directory = os.getcwd() if depends_on_directory(request) else ""
        except OSError:  # the working directory was removed
            return
        arch = request.arch
        gives_way = request.may_pass_over_arch and arch is None and _names_architecture(request)
        self.identity = (
            request.source,
            request.options,
            request.name_expressions,
            request.name,
            request.backend,
            request.target,
            request.headers,
            links,
            None if arch is None else (arch.major, arch.minor, arch.suffix),
            capability,
            directory,
            settings.fallback,
            request.allow_fixups,
            gives_way,
            settings.debug,
            settings.ptx,
        )

    def name(self) -> str:
        """Return the name of the index entry; "" without an identity or a toolchain that is known."""
        signature = self.environment.signature() if self.identity is not None else ""
        if not signature:
            return ""
        # The repr of nested tuples of texts, numbers and None is another one for each of them.
        return digest(INDEX, [self.environment.key, signature, repr(self.identity)])


def depends_on_directory(request: CompileRequest) -> bool:
    """Say whether an option may name a path that is relative to the working directory."""
    known = request._memo.get("directory")
    if known is None:
        # One string may hold several options: "-DN=1 -I include".
        known = False
        for option in request.options:
            for word in option.split():
                known = known or not word.startswith(_ANYWHERE)
        request._memo["directory"] = known
    return bool(known)


def _names_architecture(request: CompileRequest) -> bool:
    return any("arch" in option or "code" in option for option in request.options)


def query_of(
    request: CompileRequest, settings: Settings, capability: tuple[int, int] | None = None
) -> Query:
    """Return the look-up of a request; it has no identity where planning is needed to look it up.

    That is so if `link` holds sources or paths, whose files no index entry records, or if the working
    directory was removed. `capability` is given to look up for another device.
    """
    links = _links(request) if request.link else ()
    environment = environments.current()
    if environment.settings.cache_dir != settings.cache_dir:
        links = None
    if request.arch is None and capability is None:
        from rtcompile.errors import ToolkitNotFound, UnsupportedArch

        try:
            capability = compute_capability()
        except (ToolkitNotFound, UnsupportedArch):
            capability = None  # planning raises this error, unless the options name an architecture
    elif request.arch is not None:
        capability = None
    return Query(request, settings, environment, capability, links)


def _links(request: CompileRequest) -> tuple[object, ...] | None:
    found: list[object] = []
    for item in request.link:
        if not isinstance(item, ObjectCode):
            return None
        found += [item.kind, digest("link", [item.code])]
    return tuple(found)


# --- what was found --------------------------------------------------------------------------------

_MAX_BYTES = 128 << 20
_OVERHEAD = 2048  # bytes of an entry besides its code and texts


class Found:
    """The code of a request, and the files that it depends on.

    `object_key` names the cache's object of it, to which an index entry may lead.
    """

    __slots__ = ("files", "obj", "object_key")

    def __init__(self, obj: ObjectCode, files: FileSet, object_key: str = "") -> None:
        self.obj = obj
        self.files = files
        self.object_key = object_key


class Memory:
    """Codes by the identity of their requests."""

    __slots__ = ("_bytes", "_found", "_guard")

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Found] = {}
        self._bytes = 0
        self._guard = allocate_lock()

    def find(self, identity: tuple[object, ...]) -> Found | None:
        """Return what was kept; the caller checks its files."""
        return self._found.get(identity)

    def keep(self, identity: tuple[object, ...], found: Found) -> None:
        """Keep what was found in place of what was kept before."""
        with self._guard:
            before = self._found.pop(identity, None)
            if before is not None:
                self._bytes -= _size(identity, before)
            self._found[identity] = found
            self._bytes += _size(identity, found)
            while self._bytes > _MAX_BYTES and len(self._found) > 1:
                oldest = next(iter(self._found))
                self._bytes -= _size(oldest, self._found.pop(oldest))


def _size(identity: tuple[object, ...], found: Found) -> int:
    return _OVERHEAD + len(found.obj.code) + len(found.obj.build.log) + len(repr(identity))

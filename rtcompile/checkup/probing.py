"""Doctor's own builds: compiles one source of each kind, and launches one kernel."""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from rtcompile.build import pipeline
from rtcompile.checkup.checks import Check
from rtcompile.compilers import nvrtc
from rtcompile.errors import CompileError, RtcompileError
from rtcompile.lookup.driver import Driver
from rtcompile.named import NamedTuple
from rtcompile.request import arch as archs
from rtcompile.request.request import CompileRequest
from rtcompile.request.units import CompileFailure, Limits, TranslationUnit
from rtcompile.request.values import Arch
from rtcompile.settings import Settings
from rtcompile.toolkit.model import Library, Toolchain
from rtcompile.workers import pool

if TYPE_CHECKING:
    from rtcompile.request.values import Backend

_SECONDS = 120.0  # for one probe, also on a slow machine; RTCOMPILE_TIMEOUT sets another
_WITHOUT_PCH = "Builds work without them; header-heavy ones take three to ten times as long."


_SOURCES = os.path.join(os.path.dirname(__file__), "probes")


class _Probe(NamedTuple):
    """A source that must compile, and the parts of the toolkit that it needs."""

    name: str
    file: str
    needs: str
    backend: Backend = "nvrtc"
    options: tuple[str, ...] = ()
    name_expressions: tuple[str, ...] = ()


_PROBES = (
    _Probe("compile plain CUDA", "plain.cu", "", name_expressions=("k<int>",)),
    _Probe("compile std headers", "std_headers.cu", "cccl"),
    _Probe("compile WMMA", "wmma.cu", "cudart crt"),
    _Probe("compile cooperative groups", "cooperative_groups.cu", "cudart crt cccl"),
    _Probe("compile CUB", "cub.cu", "cudart cccl"),
    _Probe("compile CuTe", "cute.cu", "cudart crt cccl cutlass"),
    _Probe("link with the device runtime", "device_runtime.cu", "cudart crt nvjitlink cudadevrt"),
    _Probe("link LTO-IR", "lto.cu", "nvjitlink", options=("-dlto",)),
    _Probe("compile with NVCC", "nvcc.cu", "nvcc host_compiler", backend="nvcc"),
)


def workers(settings: Settings, toolchain: Toolchain) -> Iterator[Check]:
    """Start a worker, compile an empty source, and check whether headers can be precompiled."""
    library = toolchain.nvrtc
    if library is None:
        return
    begin = time.monotonic()
    unit = TranslationUnit("", "doctor.cu", (), (), "ptx", Arch(8, 0))
    try:
        reply, _ = nvrtc.observe(
            "compile_unit", unit, library, Limits(settings.timeout or _SECONDS)
        )
    except RtcompileError as error:
        yield _failed("worker", error)
        return
    if isinstance(reply, CompileFailure):
        yield Check("worker", "error", f"{library.path} was tried. {reply.log}")
        return
    milliseconds = (time.monotonic() - begin) * 1e3
    yield Check("worker", "ok", f"NVRTC {library.version} responds after {milliseconds:.0f} ms")
    if library.version_pair < nvrtc.FIRST_WITH_PCH:
        step = "NVRTC 12.8 and newer parse header-heavy sources three to ten times faster."
        yield Check("precompiled headers", "note", f"NVRTC {library.version} has none", step)
    elif not settings.pch:
        yield Check("precompiled headers", "note", "off", "RTCOMPILE_PCH=0 is set.")
    else:
        yield _precompiles(library, toolchain)


def _precompiles(library: Library, toolchain: Toolchain) -> Check:
    name = "precompiled headers"
    flags = ("-arch=compute_80", *(f"-I{directory.path}" for directory in toolchain.search))
    source = "#include <cuda/std/array>\n"
    unit = TranslationUnit(source, "doctor.cu", flags, (), "ptx", Arch(8, 0))
    milliseconds = []
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        path = os.fsencode(f"{folder}/made.pch")
        for more in ({"create_pch": path}, {"pch": path}):
            reply, _ = nvrtc.observe("compile_unit", unit, library, Limits(_SECONDS), **more)
            if isinstance(reply, CompileFailure):
                return Check(name, "warning", f"a compile ended in a {reply.kind}", _WITHOUT_PCH)
            if reply["pch"] is None:
                detail = "this system does not place NVRTC's heap at the required address"
                return Check(name, "warning", detail, _WITHOUT_PCH)
            if reply["error"] or not reply["pch"]:
                problem = (reply["log"].splitlines() or ["not usable"])[0]
                return Check(name, "warning", problem, _WITHOUT_PCH)
            _, begin, end = reply["spans"][0]
            milliseconds.append((end - begin) * 1e3)
    made, used = milliseconds
    return Check(name, "ok", f"made in {made:.0f} ms, used in {used:.0f} ms")


def probes(settings: Settings, toolchain: Toolchain) -> Iterator[Check]:
    """Compile each kind of source without the cache; launch one kernel if there is a device."""
    seconds = settings.timeout or _SECONDS
    settings = settings.replace(cache_on_disk=False, jit=True, pch=False, timeout=seconds)
    driver, arch = _driver(), Arch(8, 0)
    if driver is not None and toolchain.nvrtc is not None:
        with suppress(RtcompileError):
            arch = archs.choose(driver.capability(0), toolchain.nvrtc.version_pair).arch
    # No more threads than workers: the reported time includes waiting for a worker.
    with ThreadPoolExecutor(pool.slots()) as threads:
        waiting = [threads.submit(_run, probe, settings, toolchain, arch) for probe in _PROBES]
        for result in waiting:
            yield result.result()
    if driver is not None:
        yield _launch(driver, settings, arch)


def _run(probe: _Probe, settings: Settings, toolchain: Toolchain, arch: Arch) -> Check:
    compiler = () if probe.backend == "nvcc" else ("nvrtc",)
    lacking = [part for part in (*compiler, *probe.needs.split()) if part in toolchain.missing]
    if lacking:
        return Check(probe.name, "note", f"not tried without {', '.join(lacking)}")
    with open(os.path.join(_SOURCES, probe.file), encoding="utf-8") as file:
        source = file.read()
    request = CompileRequest(
        source=source,
        options=probe.options,
        arch=arch,
        name_expressions=probe.name_expressions,
        backend=probe.backend,
        name=probe.file,
    )
    try:
        code = pipeline.build(request, settings)
    except RtcompileError as error:
        return _failed(probe.name, error)
    build = code.build
    return Check(probe.name, "ok", f"{code.arch} by {build.backend} in {build.milliseconds:.0f} ms")


def _failed(name: str, error: RtcompileError) -> Check:
    if isinstance(error, CompileError) and error.diagnostics:
        hint = next((d.hint for d in error.diagnostics if d.hint), "")
        return Check(name, "error", str(error.diagnostics[0]), hint)
    fact, _, step = str(error).partition("\n")
    return Check(name, "error", fact, step.strip())


def _driver() -> Driver | None:
    """Return the driver with a context on the first device; None if that fails."""
    context = ctypes.c_void_p()
    try:
        driver = Driver()
        driver("cuInit", 0)
        driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        driver("cuCtxSetCurrent", context)
    except OSError:
        return None
    return driver


def _run_kernel(driver: Driver, code: bytes, name: bytes) -> int:
    """Load the code, run the kernel in one thread, and return the int that it wrote."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    address, result = ctypes.c_uint64(), ctypes.c_int()
    driver("cuModuleLoadData", ctypes.byref(module), code)
    driver("cuModuleGetFunction", ctypes.byref(function), module, name)
    driver("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4))
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(address))
    driver("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
    driver("cuMemcpyDtoH_v2", ctypes.byref(result), address, ctypes.c_size_t(4))
    driver("cuMemFree_v2", address)
    return result.value


def _launch(driver: Driver, settings: Settings, arch: Arch) -> Check:
    name = "launch a kernel"
    source = 'extern "C" __global__ void k(int* x) { *x = 42; }'
    try:
        code = pipeline.build(CompileRequest(source=source, arch=arch), settings)
        result = _run_kernel(driver, code.code, b"k")
    except RtcompileError as error:
        return _failed(name, error)
    except OSError as error:
        step = "The driver rejected a kernel that compiled."
        return Check(name, "error", f"{error.strerror}", step)
    if result != 42:
        return Check(name, "error", f"the kernel wrote {result}, not 42")
    return Check(name, "ok", f"compiled for {code.arch}, wrote 42")

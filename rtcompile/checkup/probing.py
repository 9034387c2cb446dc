"""Doctor's own builds: compiles one source of each kind, and launches one kernel."""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from rtcompile.build import pipeline
from rtcompile.checkup.checks import Check
from rtcompile.compilers import nvrtc
from rtcompile.errors import CompileError, RtcompileError
from rtcompile.files.sealed import read_text
from rtcompile.lookup.driver import Driver
from rtcompile.request import arch as archs
from rtcompile.request.request import CompileRequest
from rtcompile.request.units import CompileFailure, Limits, TranslationUnit
from rtcompile.request.values import Arch
from rtcompile.settings import Settings
from rtcompile.toolkit.model import Library, Toolchain
from rtcompile.workers import pool

_SECONDS = 120.0  # for one probe, also on a slow machine; RTCOMPILE_TIMEOUT sets another
_WITHOUT_PCH = "Builds work without them; header-heavy ones take three to ten times as long."

_SOURCES = os.path.join(os.path.dirname(__file__), "probes")
# The source of each probe, the parts of the toolkit that it needs, and further arguments of its request.
_PROBES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "compile plain CUDA": ("plain.cu", "nvrtc", {"name_expressions": ("k<int>",)}),
    "compile std headers": ("std_headers.cu", "nvrtc cccl", {}),
    "compile WMMA": ("wmma.cu", "nvrtc cudart crt", {}),
    "compile cooperative groups": ("cooperative_groups.cu", "nvrtc cudart crt cccl", {}),
    "compile CUB": ("cub.cu", "nvrtc cudart cccl", {}),
    "compile CuTe": ("cute.cu", "nvrtc cudart crt cccl cutlass", {}),
    "link with the device runtime": (
        "device_runtime.cu",
        "nvrtc cudart crt nvjitlink cudadevrt",
        {},
    ),
    "link LTO-IR": ("lto.cu", "nvrtc nvjitlink", {"options": ("-dlto",)}),
    "compile with NVCC": ("nvcc.cu", "nvcc host_compiler", {"backend": "nvcc"}),
}


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
        waiting = [threads.submit(_run, name, settings, toolchain, arch) for name in _PROBES]
        for result in waiting:
            yield result.result()
    if driver is not None:
        yield _launch(driver, settings, arch)


def _run(name: str, settings: Settings, toolchain: Toolchain, arch: Arch) -> Check:
    file, needs, arguments = _PROBES[name]
    lacking = [part for part in needs.split() if part in toolchain.missing]
    if lacking:
        return Check(name, "note", f"not tried without {', '.join(lacking)}")
    source = read_text(os.path.join(_SOURCES, file))
    try:
        request = CompileRequest(source=source, arch=arch, name=file, **arguments)
        code = pipeline.build(request, settings)
    except RtcompileError as error:
        return _failed(name, error)
    build = code.build
    return Check(name, "ok", f"{code.arch} by {build.backend} in {build.milliseconds:.0f} ms")


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


def _launch(driver: Driver, settings: Settings, arch: Arch) -> Check:
    """Compile a kernel, and run it in one thread; it writes a number."""
    name = "launch a kernel"
    source = 'extern "C" __global__ void k(int* x) { *x = 42; }'
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    address, result = ctypes.c_uint64(), ctypes.c_int()
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(address))
    try:
        code = pipeline.build(CompileRequest(source=source, arch=arch), settings)
        driver("cuModuleLoadData", ctypes.byref(module), code.code)
        driver("cuModuleGetFunction", ctypes.byref(function), module, b"k")
        driver("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4))
        driver("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
        driver("cuMemcpyDtoH_v2", ctypes.byref(result), address, ctypes.c_size_t(4))
        driver("cuMemFree_v2", address)
    except RtcompileError as error:
        return _failed(name, error)
    except OSError as error:
        step = "The driver rejected a kernel that compiled."
        return Check(name, "error", f"{error.strerror}", step)
    if result.value != 42:
        return Check(name, "error", f"the kernel wrote {result.value}, not 42")
    return Check(name, "ok", f"compiled for {code.arch}, wrote 42")

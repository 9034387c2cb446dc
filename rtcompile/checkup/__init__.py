"""`rtcompile doctor` checks everything that builds need, and `rtcompile explain` explains messages: both as functions."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rtcompile import toolkit
from rtcompile.build import pipeline
from rtcompile.checkup import checks
from rtcompile.checkup.checks import Check
from rtcompile.compilers import nvrtc
from rtcompile.errors import CompileError, InvalidRequest, RtcompileError, public, shown
from rtcompile.files.sealed import read_text
from rtcompile.lookup.find import compute_capability
from rtcompile.messages import catalogue, diagnostics
from rtcompile.messages.available import device_functions, missing_header
from rtcompile.messages.facts import BuildContext
from rtcompile.request import arch as archs
from rtcompile.request import values
from rtcompile.request.request import CompileRequest
from rtcompile.request.units import CompileFailure, Limits, TranslationUnit
from rtcompile.request.values import Arch
from rtcompile.settings import Settings
from rtcompile.toolkit.model import Library, Toolchain
from rtcompile.workers import pool

if TYPE_CHECKING:
    from rtcompile.diagnostic import Diagnostic


@public
def explain(
    message: str | BaseException, *, arch: str | Arch | None = None
) -> tuple[Diagnostic, ...]:
    """Explain a message of a compiler, a linker, the driver or the dynamic loader.

    Parameters
    ----------
    message : str or exception
        A message, a whole log, a Python traceback, or an exception.
    arch : str or Arch, optional
        The architecture that was compiled for, if the message depends on it.

    Returns
    -------
    tuple of Diagnostic
        The messages that were found, errors first; `hint` has the cause and what to do, and is empty
        if nothing is known.

    Raises
    ------
    InvalidRequest
        `message` is neither a str nor an exception, or `arch` is invalid.

    Examples
    --------
    >>> print(rtcompile.explain("CUDA_ERROR_STUB_LIBRARY")[0].hint)
    CUDA_ERROR_STUB_LIBRARY: libcuda.so of a toolkit's stubs folder was loaded...
    """
    if isinstance(message, BaseException):
        message = f"{type(message).__name__}: {message}"
    if not isinstance(message, str):
        raise InvalidRequest(f"message must be a str or an exception, not {shown(message)}")
    toolchain = toolkit.current()
    context = BuildContext(
        arch=Arch.parse(arch) if isinstance(arch, str) else arch,
        versions=toolchain.versions,
        search=toolchain.search,
        package_of=partial(missing_header, toolchain=toolchain),
        device_names=partial(device_functions, toolchain),
    )
    return catalogue.annotate(diagnostics.parse(message_in(message)), context)


@public
def doctor(*, probes: bool = True) -> tuple[Check, ...]:
    """Check everything that builds need: compilers, headers, versions, the device, the cache.

    Parameters
    ----------
    probes : bool
        Also compile a few kernels, and launch one by CuPy where there is a device.

    Returns
    -------
    tuple of Check
        Each has a `name`, a `status` ("ok", "note", "warning", "error"), a `detail`, and in `hint` what
        to do.

    Examples
    --------
    >>> {check.status for check in rtcompile.doctor(probes=False)} <= {"ok", "note", "warning", "error"}
    True
    """
    return tuple(examine(probes=values.truth("probes", probes)))


def examine(*, probes: bool = True) -> Iterator[Check]:
    """Yield each check of this environment when it is done; `probes` adds compiling sources and a launch."""
    yield from checks.system()
    try:
        settings = Settings.from_environ()
    except RtcompileError as error:
        step = "Correct the variable, or unset it."
        yield Check("settings", "error", str(error), step)
        settings = Settings.from_environ({})
    toolchain = toolkit.current()
    parts = {
        "toolkit": partial(checks.toolkit_parts, toolchain),
        "device": partial(checks.devices, toolchain),
        "packages": partial(checks.packages, toolchain),
        "cache": partial(checks.cache_checks, settings),
        "shared stores": partial(checks.shared_stores, settings),
    }
    if probes:
        parts["precompiled headers"] = partial(precompiled, settings, toolchain)
        parts["probes"] = partial(builds, settings, toolchain)
    for name, check in parts.items():
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001  # a broken installation can raise anything
            yield Check(name, "error", f"the check itself failed: {error!r}")


def verdict(checks: Iterable[Check]) -> int:
    """Return the exit code: 0 without problems, 1 with warnings, 2 with errors."""
    return max(({"error": 2, "warning": 1}.get(each.status, 0) for each in checks), default=0)


# --- The message in a pasted traceback --------------------------------------------------------------

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# The last part of a traceback of Python or IPython begins with the error's class, dotted or not.
_RAISED = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*"
    r"(?:Error|Exception|Request|NotFound|Arch|Disabled|Crashed|Timeout)(?:: |$)",
    re.MULTILINE,
)
_TRACEBACK = re.compile(
    r"^(?:Traceback \(most recent call last\):|-{40,}$|During handling of the above|"
    r"The above exception was|\s*File \"[^\"]*\", line \d+)",
    re.MULTILINE,
)
# The hint that rtcompile added to the compiler's message; `explain` computes it again.
_OWN_HINT = re.compile(r"^  hint: .*(?:\n {8}\S.*)*\n?", re.MULTILINE)
_ALSO = re.compile(r"^  also: ", re.MULTILINE)


def message_in(text: str) -> str:
    """Return the message in a pasted traceback, coloured or not; any other text unchanged."""
    text = _ESCAPE.sub("", text).replace("\r\n", "\n")
    raised = list(_RAISED.finditer(text))
    if raised and (_TRACEBACK.search(text) or text.lstrip().startswith(raised[0][0])):
        text = text[raised[-1].end() :]
        after = _TRACEBACK.search(text)
        text = text[: after.start()] if after else text
    return _ALSO.sub("", _OWN_HINT.sub("", text))


# --- Doctor's own builds: one source of each kind, and the launch of one kernel -------------------

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


def precompiled(settings: Settings, toolchain: Toolchain) -> Iterator[Check]:
    """Check whether headers can be precompiled, and whether that helps."""
    library, name = toolchain.nvrtc, "precompiled headers"
    if library is None:
        return
    if library.version_pair < nvrtc.FIRST_WITH_PCH:
        step = "NVRTC 12.8 and newer parse header-heavy sources three to ten times faster."
        yield Check(name, "note", f"NVRTC {library.version} has none", step)
    elif not settings.pch:
        yield Check(name, "note", "off", "RTCOMPILE_PCH=0 is set.")
    else:
        try:
            yield _precompiles(name, library, toolchain)
        except RtcompileError as error:
            yield _failed(name, error)


def _precompiles(name: str, library: Library, toolchain: Toolchain) -> Check:
    flags = ("-arch=compute_80", *(f"-I{directory.path}" for directory in toolchain.search))
    source = "#include <cuda/std/array>\n"
    unit = TranslationUnit(source, "doctor.cu", flags, (), "ptx", Arch(8, 0))
    milliseconds = []
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        path = os.fsencode(f"{folder}/made.pch")
        for more in ({"create_pch": path}, {"pch": path}):
            reply = nvrtc.observe(unit, library, Limits(_SECONDS), **more)
            if isinstance(reply, CompileFailure):
                problem = f"{library.path} failed when it was tried. {reply.log}"
            elif reply["pch"] is None:
                problem = "this system does not place NVRTC's heap at the required address"
            elif reply["error"] or not reply["pch"]:
                problem = (reply["log"].splitlines() or ["not usable"])[0]
            else:
                milliseconds.append(sum(reply["milliseconds"].values()))
                continue
            return Check(name, "warning", problem, _WITHOUT_PCH)
    made, used = milliseconds
    return Check(name, "ok", f"made in {made:.0f} ms, used in {used:.0f} ms")


def builds(settings: Settings, toolchain: Toolchain) -> Iterator[Check]:
    """Compile each kind of source without the cache; launch one kernel if there is a device."""
    seconds = settings.timeout or _SECONDS
    settings = settings._replace(cache_on_disk=False, jit=True, pch=False, timeout=seconds)
    arch, has_device = Arch(8, 0), False
    with suppress(RtcompileError):
        capability = compute_capability()
        has_device = True
        arch = archs.choose(capability, toolchain.require_nvrtc().version_pair).arch
    # No more threads than workers: the reported time includes waiting for a worker.
    with ThreadPoolExecutor(pool.slots()) as threads:
        waiting = [threads.submit(_run, name, settings, toolchain, arch) for name in _PROBES]
        for result in waiting:
            yield result.result()
    if has_device:
        yield _launch(seconds)


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


# Launches a kernel that writes a number, like a program of a user.
_LAUNCHING = """
import cupy, rtcompile
kernel = rtcompile.RawKernel('extern "C" __global__ void k(int* x) { *x = 42; }', "k")
x = cupy.zeros(1, "i")
kernel((1,), (1,), (x,))
print(f"compiled for {kernel.object_code.arch}, wrote {x[0]}")
"""


def _launch(seconds: float) -> Check:
    name = "launch a kernel"
    if find_spec("cupy") is None:
        return Check(name, "note", "not tried without cupy")
    uncached = {"RTCOMPILE_JIT": "1", "CUPY_CACHE_IN_MEMORY": "1"}
    printed, problem = checks.by_python(_LAUNCHING, seconds, uncached)
    if problem or not printed.endswith("wrote 42"):
        return Check(name, "error", problem or printed)
    return Check(name, "ok", printed)

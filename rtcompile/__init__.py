"""rtcompile: CUDA C++ compiled at run time for CuPy, with the right architecture, headers and cache.

``from rtcompile import RawModule`` is `cupy.RawModule`. Importing this package loads neither CuPy,
CUDA nor a compiler: each public name is imported when it is first used (PEP 562).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rtcompile._version import __version__

if TYPE_CHECKING:
    from rtcompile.api import compile
    from rtcompile.bundles import use_bundle
    from rtcompile.core.arch import Arch
    from rtcompile.core.request import BuildInfo, CompileRequest, ObjectCode
    from rtcompile.errors import (
        BatchError,
        CompileError,
        CompilerCrashed,
        CompileTimeout,
        DriverError,
        InvalidRequest,
        JitDisabled,
        JitifyError,
        LinkError,
        RtcompileError,
        RtcompileWarning,
        ToolkitNotFound,
        UnsupportedArch,
    )
    from rtcompile.everywhere.seam import Installation, install, uninstall
    from rtcompile.kernels import RawKernel, RawModule
    from rtcompile.library import KernelLibrary
    from rtcompile.many import BuildFuture, compile_many, submit_many
    from rtcompile.messages.diagnostics import Diagnostic

__all__ = [
    "Arch",
    "BatchError",
    "BuildFuture",
    "BuildInfo",
    "CompileError",
    "CompileRequest",
    "CompileTimeout",
    "CompilerCrashed",
    "Diagnostic",
    "DriverError",
    "Installation",
    "InvalidRequest",
    "JitDisabled",
    "JitifyError",
    "KernelLibrary",
    "LinkError",
    "ObjectCode",
    "RawKernel",
    "RawModule",
    "RtcompileError",
    "RtcompileWarning",
    "ToolkitNotFound",
    "UnsupportedArch",
    "__version__",
    "compile",
    "compile_many",
    "install",
    "submit_many",
    "uninstall",
    "use_bundle",
]

_HOME = {
    "Arch": "core.arch",
    "BatchError": "errors",
    "BuildFuture": "many",
    "BuildInfo": "core.request",
    "CompileError": "errors",
    "CompileRequest": "core.request",
    "CompileTimeout": "errors",
    "CompilerCrashed": "errors",
    "DriverError": "errors",
    "Diagnostic": "messages.diagnostics",
    "Installation": "everywhere.seam",
    "InvalidRequest": "errors",
    "JitDisabled": "errors",
    "JitifyError": "errors",
    "KernelLibrary": "library",
    "LinkError": "errors",
    "ObjectCode": "core.request",
    "RawKernel": "kernels",
    "RawModule": "kernels",
    "RtcompileError": "errors",
    "RtcompileWarning": "errors",
    "ToolkitNotFound": "errors",
    "UnsupportedArch": "errors",
    "compile": "api",
    "compile_many": "many",
    "install": "everywhere.seam",
    "load_ipython_extension": "notebook",
    "submit_many": "many",
    "uninstall": "everywhere.seam",
    "use_bundle": "bundles",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'rtcompile' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"rtcompile.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

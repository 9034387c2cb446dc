"""rtcompile: CUDA C++ compiled at run time for CuPy, with the right architecture, headers and cache.

``from rtcompile import RawModule`` is `cupy.RawModule`. Importing this package loads neither CuPy,
CUDA nor a compiler: each public name is imported when it is first used (PEP 562). Type checkers read
``__init__.pyi``.
"""

from __future__ import annotations

if type(__spec__.loader).__name__ == "zipimporter":
    raise ImportError(
        "rtcompile can't run from an archive: compilers read its headers, and workers its modules, as "
        "files. Install it (pip install rtcompile), or unpack the archive before it is imported."
    )

from rtcompile import forks as forks  # before another thread imports any other part

__version__ = "0.2.0"

# The public names, by the module that defines them.
_NAMES = {
    "api": "compile",
    "checkup": "doctor explain",
    "build.many": "compile_many submit_many",
    "lookup.bundles": "use_bundle",
    "errors": (
        "BatchError CompileError CompileTimeout CompilerCrashed CupyNotFound DriverError "
        "ExecutorError InvalidRequest JitDisabled JitifyError LinkError RtcompileError "
        "RtcompileWarning ToolkitNotFound UnsupportedArch"
    ),
    "extras.cluster.pages": "sharing submit_to",
    "extras.launching": "tensor_map",
    "extras.launching.launch": "launch",
    "extras.notebook": "load_ipython_extension",
    "extras.packaging.library": "KernelLibrary",
    "extras.progress": "first_wait shown_progress",
    "extras.reproducer": "write_reproducer",
    "frontends.cupy_hook": "install uninstall",
    "frontends.raw_kernel": "RawKernel",
    "frontends.raw_module": "RawModule",
    "cubin": "symbols",
    "request.object_code": "ObjectCode",
    "request.request": "CompileRequest",
    "request.values": "Arch",
}
# The names of `rtcompile.types`, in the same way.
_RESULTS = {
    "build.batch": "BuildFuture",
    "cache": "CacheInfo",
    "checkup.checks": "Check",
    "diagnostic": "Diagnostic",
    "extras.devtools": "Profile TemplateCost",
    "extras.packaging.library": "Kernel KernelModule Parameter",
    "extras.resources": "KernelReport Occupancy Report Spills",
    "files.headers": "Header",
    "frontends.cupy_hook": "Installation",
    "request.object_code": "BuildInfo",
}
_HOME = {
    name: module
    for table in (_NAMES, _RESULTS)
    for module, names in table.items()
    for name in names.split()
}
_TYPES = frozenset(name for names in _RESULTS.values() for name in names.split())
_MODULES = {"cache", "messages", "types"}
_OF_PYTHON = {"compile"}  # ``from rtcompile import *`` must not replace Python's own function
# Names for IPython, and names by which the core imports an extra when a program needs it.
_NOT_LISTED = {
    *("load_ipython_extension", "launch", "symbols", "write_reproducer"),
    *("first_wait", "sharing", "shown_progress", "submit_to"),
}
_NEED_CUPY = [_NAMES["frontends.raw_kernel"], _NAMES["frontends.raw_module"]]


def __getattr__(name: str) -> object:
    if name == "__all__":
        return [name for name in __dir__() if name not in _OF_PYTHON]
    if name in _MODULES:
        from importlib import import_module

        return import_module(f"rtcompile.{name}")
    if name not in _HOME or name in _TYPES:
        raise AttributeError(f"module 'rtcompile' has no attribute {name!r}")
    value = globals()[name] = _load(name)
    return value


def _load(name: str) -> object:
    """Import a public name; a class gets the module from which users import it."""
    from importlib import import_module

    try:
        value: object = getattr(import_module(f"rtcompile.{_HOME[name]}"), name)
    except AttributeError as error:
        from rtcompile.errors import inside_import

        raise (inside_import() or error) from None
    except ModuleNotFoundError as error:
        if name not in _NEED_CUPY or error.name != "cupy":
            raise
        from rtcompile.errors import CupyNotFound

        raise CupyNotFound(
            f"{name} needs CuPy, which is not installed: pip install cupy-cuda13x (or cupy-cuda12x)"
        ) from None
    if isinstance(value, type):  # for tracebacks, reprs and help()
        value.__module__ = "rtcompile.types" if name in _TYPES else "rtcompile"
    return value


def __dir__() -> list[str]:
    from importlib.util import find_spec

    lacking = () if find_spec("cupy") else _NEED_CUPY
    return sorted({"__version__", *_MODULES, *_HOME} - _NOT_LISTED - {*lacking, *_TYPES})

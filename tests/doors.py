"""Every function and class through which a program requests a kernel (a *door*), and a fake device.

A timed process imports this module first, so the module imports nothing that rtcompile would import.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Request = Callable[..., Any]

CAPABILITY = (8, 0)  # of the fake device

# Each door's arguments besides source and options, by their names in `rtcompile.compile`.
_POLICY = {"fallback", "pch", "timeout"}
_OURS = _POLICY | {"arch", "headers"}
TAKES = {
    "compile": _OURS | {"name_expressions"},
    "compile_many": _OURS | {"name_expressions"},
    "RawKernel": _OURS | {"jitify"},
    "RawModule": _OURS | {"name_expressions", "jitify"},
    "install": {"name_expressions", "jitify"},
    "cell": {"arch", "headers", "name_expressions"},
}
WITHOUT_CUPY = ("compile", "compile_many")


# --- a fake device ------------------------------------------------------------------


class Module:
    """A fake of ``cupy.cuda.function.Module`` that accepts code and loads nothing."""

    code = b""
    mapping: dict[str, str]

    def load(self, code: bytes) -> None:
        self.code = code

    def _set_mapping(self, mapping: dict[str, str] | None) -> None:
        self.mapping = mapping or {}

    def get_function(self, name: str) -> Module:
        return self


def devices() -> int:
    """Return how many devices CuPy has here."""
    try:
        import cupy
    except ImportError:
        return 0
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


def pretend_device() -> None:
    """Let CuPy find one device; call this before rtcompile is imported."""
    import cupy
    from cupy.cuda import compiler, function, runtime

    major, minor = CAPABILITY
    attributes = {75: major, 76: minor}
    runtime.getDevice = lambda: 0
    runtime.deviceGetAttribute = lambda attribute, device: attributes[attribute]
    runtime.runtimeGetVersion = lambda: 12090
    function.Module = Module
    compiler._get_arch = lambda: f"{major}{minor}"
    compiler._get_arch_for_options_for_nvrtc = lambda arch=None: (
        f"-arch=sm_{arch or compiler._get_arch()}",
        "cubin",
    )
    memoize = cupy.memoize
    cupy.memoize = lambda for_each_device=False: memoize()  # CuPy's own would query the driver


def passed(build: Callable[[], Any]) -> tuple[int, int, int]:
    """Call `build`; return how many functions and modules of rtcompile ran, and the number of calls."""
    import threading

    functions: list[tuple[str, str]] = []

    def note(frame: Any, event: str, argument: object) -> None:
        code = frame.f_code
        at = code.co_filename.rfind("/rtcompile/")
        if event == "call" and at >= 0 and not code.co_name.startswith("<"):
            functions.append((code.co_filename[at:], getattr(code, "co_qualname", code.co_name)))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        build()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return len({*functions}), len({module for module, _ in functions}), len(functions)


# --- the doors -----------------------------------------------------------------------------------


def door(name: str, cubin: bool = True) -> Request:
    """Import a door; return a function that requests a kernel ``k`` through it.

    The function returns the code. Without `cubin` it returns what the program gets, so that reading the
    code takes no time: a loaded function if there is a device.
    """
    if name in WITHOUT_CUPY:
        return {"compile": _compile, "compile_many": _compile_many}[name]()
    made: Request = {
        "RawKernel": _kernel,
        "RawModule": _module,
        "install": _install,
        "cell": _cell,
    }[name](cubin)
    return made


def _compile() -> Request:
    from rtcompile import compile

    return lambda source, options=(), **more: compile(source, options=options, **more).code


def _compile_many() -> Request:
    from rtcompile import CompileRequest, compile_many

    def build(source: str, options: Any = (), **more: Any) -> bytes:
        policy = {name: more.pop(name) for name in _POLICY & more.keys()}
        [code] = compile_many([CompileRequest(source, options, **more)], progress=False, **policy)
        return bytes(code.code)

    return build


def _kernel(cubin: bool) -> Request:
    from rtcompile import RawKernel

    def build(source: str, options: Any = (), **more: Any) -> Any:
        kernel = RawKernel(source, "k", options, **more)
        return _code(kernel.kernel, kernel) if cubin else kernel.kernel

    return build


def _module(cubin: bool) -> Request:
    from rtcompile import RawModule

    def build(source: str, options: Any = (), **more: Any) -> Any:
        module = RawModule(code=source, options=options, **more)
        if cubin:
            return _code(module.module, module)
        [name] = more.get("name_expressions", ["k"])
        return module.get_function(name).kernel

    return build


def _code(loaded: Any, of: Any) -> bytes:
    return bytes(loaded.code if isinstance(loaded, Module) else of.object_code.code)


def _install(cubin: bool) -> Request:
    import cupy
    from cupy.cuda import compiler, function

    import rtcompile

    rtcompile.install()

    def by_compiler(source: str, options: Any = (), **more: Any) -> Any:
        return compiler._compile_module_with_cache(source, options, **more).code

    def by_kernel(source: str, options: Any = (), **more: Any) -> Any:
        if "name_expressions" not in more:
            return cupy.RawKernel(source, "k", options, **more).kernel
        [name] = more["name_expressions"]
        return cupy.RawModule(code=source, options=options, **more).get_function(name).kernel

    return by_compiler if cubin or function.Module is Module else by_kernel


def ipython() -> Any:
    """Start an IPython shell in this process, without a history."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    return InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))


def _cell(cubin: bool) -> Request:
    shell = ipython()
    shell.run_line_magic("load_ext", "rtcompile")
    notebook = type(shell.magics_manager.registry["CudaMagics"])
    notebooks: dict[Any, Any] = {}  # one for each set of headers

    def build(
        source: str,
        options: str = "",
        name_expressions: Any = (),
        arch: str = "",
        headers: Any = (),
    ) -> Any:
        texts = tuple(dict(headers).items())
        is_new = texts not in notebooks
        shell.register_magics(notebooks.setdefault(texts, notebook(shell)))
        for name, text in texts if is_new else ():
            shell.run_cell_magic("cuda_header", name, text)
        of_arch = [f"--arch={arch}"] if arch else []
        line = " ".join([options, *of_arch, *(f"-n '{name}'" for name in name_expressions)])
        module = shell.run_cell_magic("cuda", line, source)
        # `make gates` runs older commits too, whose cells are no dictionaries.
        [kernel] = getattr(module, "kernels", module).values()
        for name in name_expressions:  # an instance of a template: "k<char>"
            kernel = kernel[name.split("<")[1].rstrip(">")]
        return bytes(kernel.code.code) if cubin else kernel

    return build

"""Replaces the function through which CuPy compiles every kernel, if CuPy has the names that are used here."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import IO, Any, Literal

from rtcompile.build import pipeline
from rtcompile.errors import CompileError, ToolkitNotFound, adopt_cupy, public, warn
from rtcompile.lookup import environment
from rtcompile.lookup.find import Query, query_of
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.request.values import Arch, text, truth, working_directory

_NAME = "_compile_module_with_cache"
_TESTED = "14.0 to 14.2"
# CuPy's undocumented names; if ``cupy.cuda.compiler`` lacks one, CuPy compiles its kernels itself.
NEEDED = (
    *(_NAME, "_get_arch", "_get_arch_for_options_for_nvrtc", "runtime.is_hip"),
    *("function.Module.load", "function.Module._set_mapping"),
)
_guard = threading.Lock()
_original: Callable[..., Any] | None = None
_signature = inspect.Signature()  # of CuPy's function


class Installation:
    """The result of `install`; as a context manager, it uninstalls rtcompile at the end.

    Attributes
    ----------
    active : bool
        Whether rtcompile compiles CuPy's kernels now. False if CuPy's version is not supported.
    problem : str
        Why rtcompile is not active; ``""`` if it is.
    """

    def __init__(self, ours: bool, problem: str = "") -> None:
        self.problem = text("problem", problem)
        self.active = not self.problem
        self._ours = truth("ours", ours)

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            uninstall()

    def __repr__(self) -> str:
        return f"<Installation active={self.active}>"


def install() -> Installation:
    """Let rtcompile compile every kernel of CuPy, and of the libraries that use CuPy.

    Elementwise and reduction kernels, CUB, fusion, ``cupyx.jit``, and ``cupy.RawKernel`` and
    ``cupy.RawModule`` of other libraries are built with the options and headers that CuPy gives
    them, but with rtcompile's cache, workers and precompiled headers. CuPy still compiles its cuFFT
    callbacks, which need LTO-IR. Kernels that CuPy has loaded stay loaded.

    A second call has no effect. This function imports CuPy.

    Returns
    -------
    Installation
        A context manager that uninstalls at its end, unless rtcompile was installed before it.

    Warns
    -----
    RtcompileWarning
        This version of CuPy is not supported; it is left unchanged.

    Raises
    ------
    ImportError
        CuPy is not installed.

    Examples
    --------
    >>> with rtcompile.install():  # doctest: +SKIP
    ...     cupy.arange(10).sum()
    """
    from cupy.cuda import compiler  # may be loaded while CuPy itself is still being imported

    global _original, _signature
    with _guard:
        if _original is not None:
            return Installation(ours=False)
        problem = _unknown(compiler)
        if not problem:
            _original = getattr(compiler, _NAME)
            _signature = inspect.signature(_original)
            same = [*_signature.parameters] == [*inspect.signature(_compile).parameters]
            setattr(compiler, _NAME, _compile if same else _compile_as_called)
            return Installation(ours=True)
    problem += (
        ". CuPy compiles its kernels itself, as before. rtcompile is "
        f"tested with CuPy {_TESTED}: install one of these, or a newer rtcompile."
    )
    warn(f"rtcompile.install(): {problem}")
    return Installation(ours=False, problem=problem)


def uninstall() -> None:
    """Restore CuPy's own compile function, if rtcompile has replaced it.

    Examples
    --------
    >>> rtcompile.uninstall()
    """
    global _original
    with _guard:
        if _original is None:
            return
        setattr(sys.modules["cupy.cuda.compiler"], _NAME, _original)
        _original = None


def _unknown(compiler: Any) -> str:
    """Return why this CuPy is not supported, ``""`` if it is."""
    version = getattr(sys.modules.get("cupy._version"), "__version__", "of an unknown version")
    for name in NEEDED:
        try:
            attrgetter(name)(compiler)
        except AttributeError:
            return f"CuPy {version} has no cupy.cuda.compiler.{name}"
    given = inspect.signature(getattr(compiler, _NAME)).parameters
    needed = {name for name, each in given.items() if each.default is each.empty}
    if needed != {"source"} or "options" not in given:
        return f"CuPy {version} has cupy.cuda.compiler.{_NAME}({', '.join(given)})"
    return ""


def _compile_as_called(*given: Any, **more: Any) -> Any:
    """Compile for a CuPy whose function has other parameters; CuPy compiles if it passes arguments unknown here."""
    assert _original is not None
    bound = _signature.bind(*given, **more).arguments
    known, theirs = inspect.signature(_compile).parameters, _signature.parameters
    if any(bound[name] != theirs[name].default for name in bound.keys() - known.keys()):
        return _original(*given, **more)
    return _compile(**{name: value for name, value in bound.items() if name in known})


@public
def _compile(
    source: str,
    options: Sequence[str] = (),
    *,
    arch: str | None = None,
    extra_source: str | None = None,
    backend: Literal["nvrtc", "nvcc"] = "nvrtc",
    enable_cooperative_groups: bool = False,
    name_expressions: Sequence[str] | None = None,
    log_stream: IO[str] | None = None,
    jitify: bool = False,
    to_ltoir: bool = False,
) -> Any:
    """Return the ``cupy.cuda.function.Module`` of a source, as CuPy's function does."""
    given = dict(locals())
    from cupy.cuda import compiler, function, runtime

    def by_cupy() -> Any:
        theirs = {name: value for name, value in given.items() if name in _signature.parameters}
        return (_original or getattr(compiler, _NAME))(**theirs)

    is_known = isinstance(backend, str) and backend in ("nvrtc", "nvcc")
    if to_ltoir or runtime.is_hip or not is_known:
        return by_cupy()
    if name_expressions is not None and backend != "nvrtc":
        raise NotImplementedError  # as CuPy does
    if jitify:  # it also searches the working directory, last of all
        options = (*options, "-idirafter", working_directory("jitify=True"))
    flag, kind = compiler._get_arch_for_options_for_nvrtc(str(arch or compiler._get_arch()))
    settings = environment.current().settings
    source, options = with_pass_in_text(source, tuple(options))
    request = CompileRequest(
        source,
        options=(*options, "-ftz=true"),
        arch=Arch.parse(flag.partition("=")[2].replace("compute_", "sm_")),
        name_expressions=tuple(name_expressions or ()),
        name=program_name(source),
        backend=backend,
        target="ptx" if settings.ptx or kind == "ptx" else "cubin",
        allow_fixups=False,  # programs test which sources CuPy rejects
    )
    query = query_of(request, settings)
    query.recent = True
    code = pipeline.find(query)
    code = build(query) if code is None else code
    if code is None:
        return by_cupy()
    if log_stream is not None:
        log_stream.write(code.build.log)
    module = function.Module()
    module.load(code.code)
    module._set_mapping(dict(code.lowered_names) if name_expressions else None)
    return module


# --- Sources of CuPy's own kernels ------------------------------------------------------------------

_KERNEL = re.compile(r"\b__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)")
# From `cupy/_core/_cub_reduction.pyx`.
CUB_INCLUDES = "#include <cub/block/block_reduce.cuh>\n#include <cub/block/block_load.cuh>\n"
_CUB_PASSES = ("-DFIRST_PASS=1", "-DSECOND_PASS=1")
_CUB_OPTION = "-DCUB_DISABLE_BF16_SUPPORT"  # CuPy passes it after -std=
_CUB = 1  # in CuPy's list of accelerators


def program_name(source: str) -> str:
    """Return the name of the program's first kernel, for logs and reports."""
    kernel = _KERNEL.search(source)
    return f"{kernel[1]}.cu" if kernel else "cupy.cu"


def with_pass_in_text(source: str, options: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Move a CUB reduction's macro from the options to the source, so all passes share a precompiled header."""
    # No header uses the macro, and defining it in the blank line after the headers keeps line numbers.
    found = [option for option in options if option in _CUB_PASSES]
    if len(found) != 1:
        return source, options
    from rtcompile.request import cxx  # a hit without such an option does not pay for it

    prefix, rest = cxx.split_prefix(source)
    own = prefix.removesuffix(CUB_INCLUDES)
    if own == prefix or not rest.startswith("\n\n") or not _has_only_cupys_headers(own):
        return source, options
    name, _, value = found[0].removeprefix("-D").partition("=")
    head = source[: len(source) - len(rest)]
    remaining = tuple(option for option in options if option not in _CUB_PASSES)
    return f"{head}\n#define {name} {value}{rest[1:]}", remaining


def _has_only_cupys_headers(prefix: str) -> bool:
    return all(line.startswith(_OWN_HEADERS) for line in prefix.splitlines())


# --- Builds of kernels that the look-up did not find ------------------------------------------------

_warned_of_missing_toolkit = False
_has_precompiled_cub = False

# CuPy's own kernels begin with the same headers. A program with 31 everyday operations builds 49 of these kernels.
_OWN_KERNELS = 49
_OWN_HEADERS = "#include <cupy/"


def build(query: Query) -> ObjectCode | None:
    """Build a CuPy request that was not found; None if CuPy has to compile it itself."""
    global _warned_of_missing_toolkit
    from rtcompile.build import planned  # a hit does not need it

    settings = query.settings
    try:
        from rtcompile.compilers import pch  # takes 5 ms, which hits do not need

        is_own = query.request.source.startswith(_OWN_HEADERS)
        token = pch.expected.set(_OWN_KERNELS if is_own else pch.expected.get())
        try:
            if is_own and not _has_precompiled_cub:
                _precompile_cub(query)
            return planned.compile(query)
        finally:
            pch.expected.reset(token)
    except CompileError as error:
        if settings.dump_source_on_error:
            adopt_cupy()
            error.dump(sys.stderr)  # type: ignore[attr-defined]  # of CuPy's class
        raise
    except ToolkitNotFound as missing:
        if not settings.jit:  # otherwise CuPy would compile it
            raise
        if not _warned_of_missing_toolkit:
            _warned_of_missing_toolkit = True
            warn(f"rtcompile.install(): {missing} Until then CuPy compiles its kernels itself.")
        return None


def _precompile_cub(query: Query) -> None:
    """Have an idle core make the header of CuPy's reductions by CUB, which follow the first kernels and take seconds."""
    global _has_precompiled_cub
    from cupy import _core

    from rtcompile.build import planned
    from rtcompile.request import cxx

    request = query.request
    own = cxx.split_prefix(request.source)[0]
    used: list[int] = getattr(_core, "get_reduction_accelerators", list)()
    if not _has_only_cupys_headers(own) or _CUB not in used:
        return
    _has_precompiled_cub = True
    standard = next(
        (i for i, o in enumerate(request.options) if "-std=" in o), len(request.options)
    )
    options = *request.options[: standard + 1], _CUB_OPTION, *request.options[standard + 1 :]
    later = request.replace(source=own + CUB_INCLUDES, options=options, name_expressions=())
    planned.precompile(query_of(later, query.settings))

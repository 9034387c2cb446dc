"""`rtcompile.compile`: source in, code out, with neither a GPU nor CuPy when `arch` is given."""

from __future__ import annotations

from rtcompile.build import pipeline
from rtcompile.errors import public
from rtcompile.lookup import environment
from rtcompile.request.request import DEFAULT_NAME, CompileRequest
from rtcompile.settings import refuse_contradiction

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence
    from typing import IO, Any

    from rtcompile.request.object_code import ObjectCode
    from rtcompile.request.values import Arch, Backend, Fallback, Target


@public
def compile(
    source: str,
    *,
    options: Sequence[str] | str = (),
    arch: str | Arch | None = None,
    name_expressions: Iterable[str] = (),
    name: str = DEFAULT_NAME,
    backend: Backend = "auto",
    target: Target = "cubin",
    link: Sequence[Any] = (),
    headers: Mapping[str, str] | None = None,
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    fallback: Fallback | None = None,
    pch: bool | None = None,
    timeout: float | None = None,
    memory_limit: int | str | None = None,
    recompile: bool = False,
    log_stream: IO[str] | None = None,
    trace: str | os.PathLike[str] | None = None,
) -> ObjectCode:
    """Compile CUDA C++ to a cubin, PTX or LTO-IR, or find it in the cache.

    The same path as `RawModule`, with the same implicit options (``-ftz=true``, default device
    execution space, C++17 unless given), up to the bytes.

    Parameters
    ----------
    source : str
        CUDA C++ source of one translation unit.
    options : sequence of str, or str
        Compiler options, in NVRTC's or nvcc's spelling.
    arch : str or Arch, optional
        ``"sm_90a"``. None: that of the current device.
    name_expressions : iterable of str
        C++ name expressions, ``"f<float>"``; `ObjectCode.lowered_names` maps them to symbols.
    name : str
        The program's name in diagnostics.
    backend : {"auto", "nvrtc", "nvcc"}
        The compiler: ``"auto"`` is NVRTC, and NVCC for what NVRTC cannot handle; the others are that one alone.
    target : {"cubin", "ptx", "ltoir", "object", "fatbin"}
        The kind of code to produce: ``"object"`` is relocatable machine code, to be linked;
        ``"fatbin"`` is NVCC's.
    link : sequence
        Further inputs for the linker: source strings, `CompileRequest`\\ s, `ObjectCode`\\ s (ours or
        ``cuda.core``'s), and paths to cubin, PTX, LTO-IR, fatbin, object or archive files.
    headers : mapping of str to str, optional
        Headers as texts, ``{"tile.cuh": text}``: found before those of all directories but the
        source's own, also under a name that the toolkit has. The text is part of the key.
    include_dirs : sequence of path-like
        Folders of headers, as ``-I`` in the options names them.
    fallback : {"auto", "never", "always", "nvrtc-first"}, optional
        What ``backend="auto"`` means: NVCC may, must not or must compile. With ``"nvrtc-first"``, NVRTC compiles
        what ``backend="nvcc"`` requests, and NVCC what NVRTC rejects. ``RTCOMPILE_FALLBACK`` sets the default; it
        never overrides ``backend="nvrtc"``, nor, except for ``"nvrtc-first"``, ``backend="nvcc"``.
    pch : bool, optional
        Whether precompiled headers may be used; ``RTCOMPILE_PCH`` sets the default.
    timeout : float, optional
        Seconds after which the compiler is killed. All work on the build counts, and the wait for
        another that builds the same; ``RTCOMPILE_TIMEOUT`` sets the default.
    memory_limit : int or str, optional
        Bytes (or ``"2G"``) after which the compiler is killed; ``RTCOMPILE_MEMORY_LIMIT``.
    recompile : bool
        Compile although the code is in the cache or in a bundle, and keep the new code.
    log_stream : file object, optional
        Receives the compiler's log, warnings included, also when the code came from the cache.
    trace : path-like, optional
        File for a Chrome trace of the build; ``RTCOMPILE_TRACE`` sets the default.

    Returns
    -------
    ObjectCode
        The code, its lowered names, and how it was built.

    Raises
    ------
    InvalidRequest
        An argument is invalid.
    CompileError
        The compiler rejected the source; `CompilerCrashed`, `CompileTimeout` and `LinkError` are
        its kinds.
    ToolkitNotFound, UnsupportedArch
        A compiler or header is not installed, or the compiler does not know the architecture.

    Warns
    -----
    RtcompileWarning
        The source has a ``__global__`` function, and the code no kernel: a template that nothing instantiates.

    Examples
    --------
    >>> source = 'extern "C" __global__ void k(int* p) { *p = 1; }'
    >>> code = rtcompile.compile(source, arch="sm_90a")
    >>> code.kind, str(code.arch), code.build.backend
    ('cubin', 'sm_90a', 'nvrtc')
    """
    request = CompileRequest(
        source=source,
        options=options,
        arch=arch,
        name_expressions=name_expressions,
        name=name,
        backend=backend,
        target=target,
        link=link,
        headers=() if headers is None else headers,
        include_dirs=include_dirs,
    )
    refuse_contradiction(request.backend, fallback)
    settings = environment.current().settings.override(
        fallback=fallback,
        pch=pch,
        timeout=timeout,
        memory_limit=memory_limit,
        recompile=recompile,
    )
    if log_stream is not None:
        from rtcompile import logs

        logs.check_stream(log_stream)
    if trace is None:
        code = pipeline.build(request, settings)
    else:
        from rtcompile import tracing  # 4 ms that only a trace needs

        with tracing.into(trace):
            code = pipeline.build(request, settings)
    pipeline.check_kernels(request, code)
    if log_stream is not None:
        log_stream.write(code.build.log)
    return code

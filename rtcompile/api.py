"""`rtcompile.compile` compiles a source to code; with `arch` it needs neither a GPU nor CuPy."""

from __future__ import annotations

from rtcompile.build import pipeline
from rtcompile.errors import public
from rtcompile.lookup import environment
from rtcompile.request.request import DEFAULT_NAME, CompileRequest
from rtcompile.request.values import check_stream
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
) -> ObjectCode:
    """Compile CUDA C++ to a cubin, PTX or LTO-IR, or find it in the cache.

    The code is that of a `RawModule` with the same arguments: the same options are implied
    (``-ftz=true``, default device execution space, C++17 unless given).

    Parameters
    ----------
    source : str
        CUDA C++ source of one translation unit.
    options : sequence of str, or str
        Compiler options, in NVRTC's or nvcc's spelling.
    arch : str or Arch, optional
        The architecture, ``"sm_90a"``; by default that of the current device.
    name_expressions : iterable of str
        C++ name expressions, ``"f<float>"``; `ObjectCode.lowered_names` maps them to symbols.
    name : str
        The program's name in diagnostics.
    backend : {"auto", "nvrtc", "nvcc"}
        The compiler; ``"auto"`` uses NVRTC, and NVCC for sources that NVRTC cannot handle.
    target : {"cubin", "ptx", "ltoir", "object", "fatbin"}
        The kind of code to produce: ``"object"`` is relocatable machine code, to be linked;
        ``"fatbin"`` is NVCC's.
    link : sequence
        Further inputs for the linker: source strings, `CompileRequest`\\ s, `ObjectCode`\\ s (ours or
        ``cuda.core``'s), and paths to cubin, PTX, LTO-IR, fatbin, object or archive files.
    headers : mapping of str to str, optional
        Texts of headers by name, ``{"tile.cuh": text}``. Only the source's own directory is searched before
        them, so they can replace a toolkit's header. The texts are part of the cache key.
    include_dirs : sequence of path-like
        Folders of headers, as ``-I`` in the options names them.
    fallback : {"auto", "never", "always", "nvrtc-first"}, optional
        What ``backend="auto"`` means: NVCC may, must not or must compile. With ``"nvrtc-first"``, NVRTC is tried first
        even for ``backend="nvcc"``, and NVCC compiles what NVRTC rejects. ``RTCOMPILE_FALLBACK`` sets the default,
        which never overrides ``backend="nvrtc"``, and overrides ``backend="nvcc"`` only as ``"nvrtc-first"``.
    pch : bool, optional
        Whether precompiled headers may be used; ``RTCOMPILE_PCH`` sets the default.
    timeout : float, optional
        Seconds after which the compiler is killed. They include all work on the build, and waiting while
        another process compiles the same build; ``RTCOMPILE_TIMEOUT`` sets the default.
    memory_limit : int or str, optional
        Bytes (or ``"2G"``) above which the compiler is killed; ``RTCOMPILE_MEMORY_LIMIT`` sets the default.
    recompile : bool
        Compile even if the code is in the cache or in a bundle, and store the new code.
    log_stream : file object, optional
        Receives the compiler's log, warnings included, even if the code comes from the cache.

    Returns
    -------
    ObjectCode
        The code, its lowered names, and how it was built.

    Raises
    ------
    InvalidRequest
        An argument is invalid.
    CompileError
        The compiler rejected the source. Its subclasses are `CompilerCrashed`, `CompileTimeout` and `LinkError`.
    ToolkitNotFound, UnsupportedArch
        A compiler or header is not installed, or the compiler does not know the architecture.
    JitDisabled
        The code is not in the cache, and ``RTCOMPILE_JIT=0`` forbids compiling.

    Warns
    -----
    RtcompileWarning
        The source has a ``__global__`` function, but the code has no kernel: nothing instantiates the template.

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
        fallback=fallback, pch=pch, timeout=timeout, memory_limit=memory_limit, recompile=recompile
    )
    if log_stream is not None:
        check_stream(log_stream)
    code = pipeline.build(request, settings)
    pipeline.check_kernels(request, code)
    if log_stream is not None:
        log_stream.write(code.build.log)
    return code

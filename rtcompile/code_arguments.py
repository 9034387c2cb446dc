"""What `RawModule` and `RawKernel` are given, checked: for all that is more than plain words."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rtcompile.core.arch import Arch
from rtcompile.core.request import DEFAULT_NAME, CompileRequest, one_of, text, truth
from rtcompile.core.request import path as checked_path
from rtcompile.errors import InvalidRequest
from rtcompile.settings import Settings

__all__ = ["checked"]

_BACKENDS = ("nvrtc", "nvcc")

# cuComplex.h is replaced by CuPy's complex types where translate_cucomplex asks for it.
_CUCOMPLEX = r"(?m)^[ \t]*#[ \t]*include[ \t]*<[ \t]*cuComplex\.h[ \t]*>[^\n]*"
_CUPY_HEADERS = tuple(
    f"--pre-include=cupy/{header}"
    for header in ("complex.cuh", "carray.cuh", "atomics.cuh", "math_constants.h")
)


def checked(
    *,
    code: str | None,
    path: str | os.PathLike[str] | None = None,
    options: Sequence[str] | str,
    backend: str,
    translate_cucomplex: bool,
    enable_cooperative_groups: bool,
    name_expressions: Iterable[str] | None = None,
    jitify: bool | None,
    arch: str | Arch | None,
    link: Sequence[Any],
    headers: Mapping[str, str] | None,
    fallback: str | None,
    pch: bool | None,
    timeout: float | None,
    memory_limit: int | str | None,
    recompile: bool = False,
    name: str = DEFAULT_NAME,
) -> tuple[dict[str, Any], CompileRequest | None]:
    """Return the arguments in their normal form, and the request that they make: none of a file.

    Raises
    ------
    InvalidRequest
        An argument of a wrong type or value, or two that contradict each other.
    """
    if (code is None) == (path is None):
        given = "neither was" if code is None else "both were"
        raise InvalidRequest(f"exactly one of code= and path= must be given; {given}")
    jitify = None if jitify is None else truth("jitify", jitify)
    path = None if path is None else checked_path("path", path)
    if path is not None and (name_expressions is not None or jitify):
        raise InvalidRequest("name_expressions= and jitify= need code=, not path=")
    backend = one_of("backend", "nvcc" if code is None else backend, _BACKENDS)
    if name_expressions is not None and backend == "nvcc":
        # The first half is CuPy's own message, which existing code may match.
        raise InvalidRequest(
            "only nvrtc supports retrieving the mangled names for the given name expressions; "
            "with backend='nvrtc', fallback='always' builds with NVCC and retrieves them too"
        )
    translate_cucomplex = code is not None and translate_cucomplex
    if jitify and backend != "nvrtc":
        raise InvalidRequest("jitify=True is for backend='nvrtc'")
    translate_cucomplex = truth("translate_cucomplex", translate_cucomplex)
    # Checked now, whatever the environment says when the build is made.
    Settings("").override(
        fallback=fallback,
        pch=pch,
        timeout=timeout,
        memory_limit=memory_limit,
        recompile=recompile,
    )
    request = CompileRequest(
        source="" if code is None else text("code", code),
        options=options,
        arch=arch,
        name_expressions=() if name_expressions is None else name_expressions,
        backend="nvcc" if backend == "nvcc" else "auto",
        link=link,
        name=name,
        headers=() if headers is None else headers,
    )
    arguments: dict[str, Any] = {
        "code": None if code is None else request.source,
        "path": path,
        "options": request.options,
        "backend": backend,
        "translate_cucomplex": translate_cucomplex,
        "enable_cooperative_groups": truth("enable_cooperative_groups", enable_cooperative_groups),
        "name_expressions": None if name_expressions is None else request.name_expressions,
        "jitify": jitify,
        "arch": arch,
        "link": request.link,
        "headers": dict(request.headers) or None,
        "fallback": fallback,
        "pch": pch,
        "timeout": timeout,
        "memory_limit": memory_limit,
        "recompile": bool(recompile),
        "name": request.name,
    }
    if code is None:
        return arguments, None
    if translate_cucomplex:
        source = re.sub(_CUCOMPLEX, "#include <cupy/cuComplex_bridge.h>", request.source)
        options = (*request.options, *_CUPY_HEADERS)
        request = request.replace(source=source, options=options)
    return arguments, request

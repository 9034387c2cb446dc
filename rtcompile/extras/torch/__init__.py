"""Lets rtcompile compile what `torch.cuda._compile_kernel` compiles: `rtcompile.install("torch")`.

torch compiles such kernels without a cache, by one private function, which `install` replaces.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.cuda import _utils

import rtcompile
from rtcompile import CompileRequest, RtcompileError

_NAME = "_nvrtc_compile"
_KNOWN = ("2.11", "2.12", "2.13", "2.14", "2.15")  # releases whose function was read
_original: Callable[..., Any] | None = None


def _compile(
    kernel_source: str,
    kernel_name: str,
    compute_capability: str | None = None,
    cuda_include_dirs: Sequence[str] | None = None,
    nvcc_options: Sequence[str] | None = None,
    auto_pch: bool = False,  # noqa: ARG001  # rtcompile decides about precompiled headers
) -> tuple[bytes, str]:
    """Return the cubin of a kernel and its symbol, as torch's function does."""
    from torch.utils.cpp_extension import include_paths

    if compute_capability is None:
        compute_capability = "{}{}".format(*torch.cuda.get_device_capability())
    # rtcompile finds the toolkit's headers. include_paths("cuda") needs CUDA_HOME, which may be of another version.
    folders = [*include_paths("cpu"), *map(os.fspath, cuda_include_dirs or ())]
    options = [*(f"-I{folder}" for folder in folders), *(nvcc_options or ())]
    options += _utils._get_gpu_rtc_compatible_flags()
    if not any(option.lstrip("-").startswith(("ftz", "use_fast_math")) for option in options):
        options.append("-ftz=false")  # NVRTC's default, which is not rtcompile's
    request = CompileRequest(
        kernel_source,
        options=options,
        arch=f"sm_{compute_capability}",
        name_expressions=(kernel_name,),
        name=f"{kernel_name}.cu",
        backend="nvrtc",
        allow_fixups=False,
    )
    (code,) = rtcompile.compile_many([request], progress=False, errors="return")
    if isinstance(code, RtcompileError):
        raise RuntimeError(f"Kernel compilation failed:\n{code}")
    return code.code, code.lowered_names[kernel_name]


def install() -> str | None:
    """Replace torch's function; return why that is impossible, ``""`` if it is done, None if it was done before."""
    global _original
    if _original is not None:
        return None
    theirs = getattr(_utils, _NAME, None)
    parameters = [*inspect.signature(theirs).parameters] if theirs else []
    version = str(torch.__version__)
    if torch.version.hip or not version.startswith(tuple(f"{known}." for known in _KNOWN)):
        problem = (
            f"torch {version} is not known; rtcompile is tested with {', '.join(_KNOWN)} for CUDA"
        )
    elif parameters != [*inspect.signature(_compile).parameters]:
        problem = f"torch {version} has torch.cuda._utils.{_NAME}({', '.join(parameters)})"
    else:
        _original = theirs
        setattr(_utils, _NAME, _compile)
        return ""
    return f"{problem}. torch compiles its kernels itself, as before."


def uninstall() -> None:
    """Restore torch's function."""
    global _original
    if _original is not None:
        setattr(_utils, _NAME, _original)
        _original = None

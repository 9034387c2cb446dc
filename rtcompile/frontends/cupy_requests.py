"""The requests that CuPy's own compile function makes, as CuPy's compiler would be given them."""

from __future__ import annotations

import re

from rtcompile.request.request import CompileRequest
from rtcompile.request.values import Arch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rtcompile.request.values import Backend

_KERNEL = re.compile(r"\b__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)")

# From `cupy/_core/_cub_reduction.pyx`.
CUB_INCLUDES = "#include <cub/block/block_reduce.cuh>\n#include <cub/block/block_load.cuh>\n"
_CUB_PASSES = ("-DFIRST_PASS=1", "-DSECOND_PASS=1")


def request_of_cupy(
    source: str,
    options: Sequence[str],
    *,
    arch_flag: str,
    kind: str,
    backend: Backend,
    names: Sequence[str],
    ptx: bool,
) -> CompileRequest:
    """Return the request for CuPy's arguments; `arch_flag` is ``"-arch=sm_80"``, `kind` ``"cubin"``."""
    source, options = with_pass_in_text(source, tuple(options))
    return CompileRequest(
        source,
        options=(*options, "-ftz=true"),
        arch=Arch.parse(arch_flag.partition("=")[2].replace("compute_", "sm_")),
        name_expressions=tuple(names),
        name=program_name(source),
        backend=backend,
        target="ptx" if ptx or kind == "ptx" else "cubin",
        allow_fixups=False,  # programs test which sources CuPy's compiler rejects
    )


def program_name(source: str) -> str:
    """Return a name for the program in logs and reports: that of its first kernel."""
    kernel = _KERNEL.search(source)
    return f"{kernel[1]}.cu" if kernel else "cupy.cu"


def with_pass_in_text(source: str, options: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return a CUB reduction of CuPy's with the macro for its pass in the text, not in the options.

    No header of CuPy or CUB uses the macro. A definition in the blank line after the headers means the
    same and moves no line, and one precompiled header serves both passes and single-pass reductions.
    """
    found = [option for option in options if option in _CUB_PASSES]
    if len(found) != 1:
        return source, options
    from rtcompile.request import cxx  # a hit without such an option does not pay for it

    prefix, rest = cxx.split_prefix(source)
    own = prefix.removesuffix(CUB_INCLUDES).splitlines()
    if not prefix.endswith(CUB_INCLUDES) or not rest.startswith("\n\n"):
        return source, options
    if not all(line.startswith("#include <cupy/") for line in own):
        return source, options
    name, _, value = found[0].removeprefix("-D").partition("=")
    head = source[: len(source) - len(rest)]
    remaining = tuple(option for option in options if option not in _CUB_PASSES)
    return f"{head}\n#define {name} {value}{rest[1:]}", remaining

"""Special handling of the sources of CuPy's own kernels."""

from __future__ import annotations

import re

_KERNEL = re.compile(r"\b__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)")

# From `cupy/_core/_cub_reduction.pyx`.
CUB_INCLUDES = "#include <cub/block/block_reduce.cuh>\n#include <cub/block/block_load.cuh>\n"
_CUB_PASSES = ("-DFIRST_PASS=1", "-DSECOND_PASS=1")


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
    own = prefix.removesuffix(CUB_INCLUDES).splitlines()
    if not prefix.endswith(CUB_INCLUDES) or not rest.startswith("\n\n"):
        return source, options
    if not all(line.startswith("#include <cupy/") for line in own):
        return source, options
    name, _, value = found[0].removeprefix("-D").partition("=")
    head = source[: len(source) - len(rest)]
    remaining = tuple(option for option in options if option not in _CUB_PASSES)
    return f"{head}\n#define {name} {value}{rest[1:]}", remaining

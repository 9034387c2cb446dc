"""What is special to the sources of CuPy's own kernels."""

from __future__ import annotations

import re

_KERNEL = re.compile(r"\b__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)")

# From `cupy/_core/_cub_reduction.pyx`.
CUB_INCLUDES = "#include <cub/block/block_reduce.cuh>\n#include <cub/block/block_load.cuh>\n"
_CUB_PASSES = ("-DFIRST_PASS=1", "-DSECOND_PASS=1")


def program_name(source: str) -> str:
    """Return a name for the program in logs and reports: that of its first kernel."""
    kernel = _KERNEL.search(source)
    return f"{kernel[1]}.cu" if kernel else "cupy.cu"


def with_pass_in_text(source: str, options: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return a CUB reduction of CuPy's with the macro for its pass in the text, so that all passes share a header."""
    # No header of CuPy or CUB uses the macro, and a definition in the blank line after the headers moves no line.
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

"""``rtcompile clangd``: writes the section of a project's ``.clangd`` with which clangd understands kernels."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Sequence

from rtcompile import toolkit
from rtcompile.cli import output
from rtcompile.errors import InvalidRequest
from rtcompile.files import sealed
from rtcompile.files.headers import SearchDir
from rtcompile.request import options as compiler_options
from rtcompile.request.options import Options
from rtcompile.request.values import Arch, absolute
from rtcompile.settings import Settings

# Clang knows fewer architectures than NVRTC. It parses for this one; a macro has the requested one.
_CLANGS = Arch(8, 0)
_TITLE = "# Written by `rtcompile clangd`; the next run replaces this section."
# The section suppresses clang's errors for code that NVIDIA's compilers accept: `__shared__ alignas(16) float x[4];`,
# launch bounds that a constexpr function computes, and a barrier in shared memory with a constructor.
_SECTION = """\
{title}
If:
  PathMatch: .*\\.cuh?
CompileFlags:
  Add: {flags}
Diagnostics:
  Suppress: [attribute_not_type_attr, attributes_not_allowed, attribute_argument_n_type, shared_var_init]
"""


def run(given: Namespace) -> int:
    """Write the section, and keep the file's other sections."""
    path = os.path.join(absolute(given.root), ".clangd")
    options = compiler_options.parse(given.compiler_options)
    search = toolkit.current(Settings.from_environ()).search
    flags = _flags(options, Arch.parse(given.arch or "sm_80"), search)
    listed = json.dumps(flags, indent=4, ensure_ascii=False)  # which is YAML, too
    section = _SECTION.format(title=_TITLE, flags=listed)
    try:
        before = sealed.read_text(path) if os.path.exists(path) else ""
        others = [part for part in before.split("---\n") if part.strip() and _TITLE not in part]
        text = "---\n".join([*(f"{part.rstrip()}\n" for part in others), section])
        sealed.publish(path, text.encode(), durable=False, mode=0o666)
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from None
    output.print_result(
        given, {"path": path}, f"{path}: its section for .cu and .cuh is up to date"
    )
    return 0


def _flags(options: Options, arch: Arch, search: Sequence[SearchDir]) -> tuple[str, ...]:
    """Return clang's options for those of NVRTC."""
    preludes = (os.path.join(path, "rtcompile", "clangd.h") for _, path in search)
    std = options.get("std") or "c++17"
    return (
        "-xcuda",
        f"--cuda-gpu-arch={_CLANGS}",
        "--cuda-device-only",
        "-nocudainc",  # clang's own wrapper, which needs a toolkit that it knows
        "-nocudalib",
        f"-std={std}",
        "-Wno-unknown-cuda-version",
        "-Wno-builtin-macro-redefined",
        "-Wno-pragma-once-outside-header",
        "-Xclang",
        "-fcuda-allow-variadic-functions",
        "-ferror-limit=0",
        "-U__CUDA_ARCH__",
        f"-D__CUDA_ARCH__={arch.number * 10}",
        "-include",
        next(filter(os.path.isfile, preludes), ""),
        *(f"-{kind}{macro}" for kind, macro in options.macros),
        *(f"-I{absolute(directory)}" for directory in options.include_dirs),
        # The host's C++ library is used instead of the shims for NVRTC.
        *(arg for label, path in search if label != "shims" for arg in ("-isystem", path)),
        *(arg for header in options.pre_includes for arg in ("-include", header)),
    )

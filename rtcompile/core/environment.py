"""The environment variables that compilers get: a short list of the caller's, and no others.

A source can read its compiler's environment (``#include "/proc/self/environ"`` puts it in the log),
where services keep their passwords; and each variable that a compiler obeys is one more thing that
a cached build depends on. This module is the only place that passes ``os.environ`` to a compiler.
"""

from __future__ import annotations

from collections.abc import Mapping

# They decide how bytes of a path become text, which must be the same in a worker and its caller.
_ENCODING = ("LANG", "LC_ALL", "LC_CTYPE")
# Interpreters and compilers from environment modules need it to find their shared libraries.
_LIBRARIES = ("LD_LIBRARY_PATH",)
# NVCC runs programs by name (cicc, ptxas, the host compiler), which may be wrappers with settings
# of their own in the home directory. These variables are not passed on and so have no effect on a
# build:
#   NVCC_PREPEND_FLAGS, NVCC_APPEND_FLAGS, NVCC_CCBIN: read here (`nvcc_words`, the toolkit's search),
#       so that the cache knows the directories and the compiler that they name;
#   CPATH, CPLUS_INCLUDE_PATH, C_INCLUDE_PATH: NVRTC never obeyed them, and a directory that one
#       compiler searches and the other does not makes a source mean two things: give -I;
#   INCLUDES, SYSTEM_INCLUDES, PTXAS_FLAGS, NVVM_FLAGS, CUDAFE_FLAGS, LIBRARIES, …: nvcc.profile adds
#       to them whatever a build script happened to export: give options;
#   GCC_EXEC_PREFIX, COMPILER_PATH, …: they put another compiler in the place of the one that was found.
_NVCC = ("PATH", "HOME")
_NVCC_FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")


def for_workers(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of worker processes: without PATH and TMPDIR, which they do not use."""
    # The driver's cache of compiled PTX must not replace a compilation. NVRTC looks into it despite
    # this variable: see `rtcompile.workers.nvrtc`.
    return {**_kept(environ, _ENCODING + _LIBRARIES), "CUDA_CACHE_DISABLE": "1"}


def for_nvcc(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of NVCC and its programs; the worker adds its own TMPDIR."""
    return _kept(environ, _ENCODING + _LIBRARIES + _NVCC)


def nvcc_words(environ: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words of ``NVCC_PREPEND_FLAGS`` and ``NVCC_APPEND_FLAGS``; quotes must be closed."""
    if not any(environ.get(name) for name in _NVCC_FLAGS):
        return (), ()
    import shlex

    before, after = (tuple(shlex.split(environ.get(name, ""))) for name in _NVCC_FLAGS)
    return before, after


def _kept(environ: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: environ[name] for name in names if name in environ}

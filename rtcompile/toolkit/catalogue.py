"""A table of the parts of a toolkit and where each layout keeps them.

A new layout of wheels is one more key in this table; one of another kind also needs a step in `roots`.

A *layout* is one way in which NVIDIA ships the same files:

``wheels13``
    ``pip install nvidia-cuda-…``: everything under ``nvidia/cu13``.
``wheels12``
    ``pip install nvidia-cuda-…-cu12``: one folder under ``nvidia`` per package.
``conda``
    ``$CONDA_PREFIX``, headers under ``targets/<target>``. ``$CONDA_PREFIX/include`` is never
    searched: it contains the headers of every other package of the environment.
``toolkit``
    The installer's folder: ``$CUDA_PATH``, ``/usr/local/cuda-12.9``.
``bundled``
    What NVRTC 13.3 and newer writes of the headers inside its own file: no runtime API, no cuRAND.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# --- A table of the parts of a toolkit and where each layout keeps them ---------------------------

# The toolkit's own names for a machine's targets, newest first.
TARGETS: Mapping[str, tuple[str, ...]] = {
    "x86_64": ("x86_64-linux",),
    "aarch64": ("sbsa-linux", "aarch64-linux"),
}

CUDA_ENVIRONMENT = ("CUDA_PATH", "CUDA_HOME")
CUTLASS_ENVIRONMENT = ("RTCOMPILE_CUTLASS_PATH", "CUTLASS_PATH")
HOST_COMPILER_ENVIRONMENT = ("NVCC_CCBIN", "CUDAHOSTCXX")

# Where installers put toolkits when no variable says where: `cuda` links to the administrator's
# choice, so it goes before the numbered folders.
USUAL_ROOTS = ("/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda")

# The parts that are folders of headers, in the order in which they are searched.
HEADER_PARTS = ("cudart", "crt", "cccl", "curand")

_INCLUDE = ("include", "targets/{target}/include")
_CONDA_INCLUDE = ("targets/{target}/include",)
_LIB = ("lib64", "lib", "targets/{target}/lib")
_CONDA_LIB = ("lib", "targets/{target}/lib")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a toolkit."""

    name: str  # rtcompile's name for it, and its label in the search path
    what: str  # its name in messages
    markers: tuple[str, ...]  # files that show that it is installed; the first that exists counts
    # By layout: the package that has it (of ``toolkit``, its entry in ``version.json``), then the
    # folders below the root, in order.
    layouts: Mapping[str, tuple[str, ...]]
    # The header, relative to the marker's folder, and its macro that contains the version.
    states: tuple[str, str] | None = None
    required: bool = False  # whether some kernels cannot be compiled without it

    def package(self, layout: str) -> str:
        """Return the package that has it in a layout, ``""`` if none has."""
        return self.layouts.get(layout, ("",))[0]


PARTS: tuple[Part, ...] = (
    Part(
        "nvrtc",
        "NVRTC",
        ("libnvrtc.so.13", "libnvrtc.so.12"),
        {
            "wheels13": ("nvidia-cuda-nvrtc", "nvidia/cu13/lib"),
            "wheels12": ("nvidia-cuda-nvrtc-cu12", "nvidia/cuda_nvrtc/lib"),
            "conda": ("cuda-nvrtc", *_CONDA_LIB),
            "toolkit": ("cuda_nvrtc", *_LIB),
        },
        required=True,
    ),
    Part(
        "cudart",
        "CUDA runtime headers",
        ("cuda_runtime_api.h", "math_constants.h"),
        {
            "wheels13": ("nvidia-cuda-runtime", "nvidia/cu13/include"),
            "wheels12": ("nvidia-cuda-runtime-cu12", "nvidia/cuda_runtime/include"),
            "conda": ("cuda-cudart-dev", *_CONDA_INCLUDE),
            "toolkit": ("cuda_cudart", *_INCLUDE),
            "bundled": ("nvrtc", "include"),
        },
        states=("cuda_runtime_api.h", "CUDART_VERSION"),
        required=True,
    ),
    Part(
        "crt",
        "crt headers (mma.h, cuda_runtime.h need them)",
        ("crt/mma.h",),
        {
            "wheels13": ("nvidia-cuda-crt", "nvidia/cu13/include"),
            "wheels12": ("nvidia-cuda-nvcc-cu12", "nvidia/cuda_nvcc/include"),
            "conda": ("cuda-crt", *_CONDA_INCLUDE),
            "toolkit": ("cuda_nvcc", *_INCLUDE),
            "bundled": ("nvrtc", "include"),
        },
        required=True,
    ),
    Part(
        "cccl",
        "CCCL headers (cuda/std, cub, thrust; the std shims need them)",
        ("cuda/std/version",),
        {
            "wheels13": ("nvidia-cuda-cccl", "nvidia/cu13/include/cccl"),
            "wheels12": ("nvidia-cuda-cccl-cu12", "nvidia/cuda_cccl/include"),
            "conda": ("cuda-cccl", "targets/{target}/include/cccl", *_CONDA_INCLUDE),
            "toolkit": ("cuda_cccl", "include/cccl", "targets/{target}/include/cccl", *_INCLUDE),
            "bundled": ("nvrtc", "include/cccl"),
        },
        states=("cuda/std/__cccl/version.h", "CCCL_VERSION"),
        required=True,
    ),
    Part(
        "curand",
        "cuRAND headers",
        ("curand_kernel.h",),
        {
            "wheels13": ("nvidia-curand", "nvidia/cu13/include"),
            "wheels12": ("nvidia-curand-cu12", "nvidia/curand/include"),
            "conda": ("libcurand-dev", *_CONDA_INCLUDE),
            "toolkit": ("libcurand", *_INCLUDE),
        },
    ),
    Part(
        "nvjitlink",
        "nvJitLink",
        ("libnvJitLink.so.13", "libnvJitLink.so.12"),
        {
            "wheels13": ("nvidia-nvjitlink", "nvidia/cu13/lib"),
            "wheels12": ("nvidia-nvjitlink-cu12", "nvidia/nvjitlink/lib"),
            "conda": ("libnvjitlink", *_CONDA_LIB),
            "toolkit": ("libnvjitlink", *_LIB),
        },
    ),
    Part(
        "cudadevrt",
        "the device runtime (libcudadevrt.a)",
        ("libcudadevrt.a",),
        {
            "wheels13": ("nvidia-cuda-runtime", "nvidia/cu13/lib"),
            "wheels12": ("nvidia-cuda-runtime-cu12", "nvidia/cuda_runtime/lib"),
            "conda": ("cuda-cudart-static", *_CONDA_LIB),
            "toolkit": ("cuda_cudart", *_LIB),
        },
    ),
    Part(
        "nvcc",
        "nvcc",
        ("nvcc",),
        {
            "wheels13": ("nvidia-cuda-nvcc", "nvidia/cu13/bin"),
            "wheels12": ("", "nvidia/cuda_nvcc/bin"),  # ptxas only: no CUDA 12 wheel has nvcc
            "conda": ("cuda-nvcc", "bin"),
            "toolkit": ("cuda_nvcc", "bin"),
        },
    ),
    Part(
        "nvvm",
        "NVVM (cicc, which nvcc runs)",
        ("cicc",),
        {
            "wheels13": ("nvidia-nvvm", "nvidia/cu13/nvvm/bin"),
            "conda": ("cuda-nvvm-tools", "nvvm/bin"),
            "toolkit": ("", "nvvm/bin"),
        },
    ),
)


# The layouts of wheels, the preferred first, and the CUDA major version that each is for.
WHEELS: Mapping[str, int] = {
    layout: int(layout.removeprefix("wheels"))
    for layout in PARTS[0].layouts
    if layout.startswith("wheels")
}


# --- Reads versions from metadata, headers and file names, without loading any library ------------

# The version macros stand near the top, after the licence: cuda_runtime_api.h alone is 600 KB.
_HEAD = 64 << 10

# Where CCCL states its version, since CUDA 12.5 and before.
_CCCL_HEADERS = (
    "cuda/std/__cccl/version.h",
    "cuda/std/detail/libcxx/include/__cccl/version.h",
)

_IN_FILE_NAME = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)*)$")


def of_wheels(site_dir: str) -> Mapping[str, str]:
    """Return distribution name to version, from the names of the ``dist-info`` folders."""
    installed = {}
    for entry in _entries(site_dir):
        if entry.endswith(".dist-info"):
            name, _, version = entry.removesuffix(".dist-info").partition("-")
            installed[re.sub(r"[._]", "-", name).lower()] = version
    return installed


def of_conda(prefix: str) -> Mapping[str, str]:
    """Return package name to version, from the names of the records in ``conda-meta``."""
    installed = {}
    for entry in _entries(os.path.join(prefix, "conda-meta")):
        if entry.endswith(".json") and entry.count("-") >= 2:
            name, version, _build = entry.rsplit("-", 2)
            installed[name] = version
    return installed


def of_toolkit(root: str) -> Mapping[str, str]:
    """Return component to version, from the installer's ``version.json``."""
    import json

    try:
        with open(os.path.join(root, "version.json"), encoding="utf-8") as file:
            components = json.load(file)
        return {name: entry["version"] for name, entry in components.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def of_part(part: Part, directory: str, path: str, package: str) -> str:
    """Return the CUDA version of a part, from its files and from its package's metadata.

    The package's version has more digits ("12.9.86" where the file says 12.9). But metadata can be
    left behind by an upgrade, and some packages are not numbered as CUDA is (``nvidia-cuda-cccl``
    13.3.5.0 is CUDA 13.5's). So where the two differ in major.minor, the file's version is
    returned.
    """
    if part.states is not None:
        header, macro = part.states
        stated = _CUDA_VERSION[macro](_macro(os.path.join(directory, header), macro))
    else:
        stated = _of_name(path)
    if not stated or package == stated or package.startswith(f"{stated}."):
        return package
    return stated


def _cuda_of_cudart(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""  # 12090


def _cuda_of_cccl(number: int) -> str:
    """Return the CUDA version that a CCCL came with: 2.7 with 12.8, 2.8 with 12.9, 3.n with 13.n."""
    major, minor = number // 1000000, number // 1000 % 1000
    if major == 2:
        return f"12.{minor + 1}"
    return f"{major + 10}.{minor}" if major else ""


_CUDA_VERSION: Mapping[str, Callable[[int], str]] = {
    "CUDART_VERSION": _cuda_of_cudart,
    "CCCL_VERSION": _cuda_of_cccl,
}


def _of_name(path: str) -> str:
    """``libnvrtc.so.12`` links to ``libnvrtc.so.12.9.86``; in wheels only its builtins say 12.9."""
    match = _IN_FILE_NAME.search(os.path.realpath(path))
    if match is None:
        builtins = nvrtc_builtins(path)
        match = _IN_FILE_NAME.search(builtins) if builtins else None
    return match[1] if match else ""


def nvrtc_builtins(nvrtc: str) -> str | None:
    """Return the ``libnvrtc-builtins.so.12.9`` beside ``libnvrtc.so.12``, or None."""
    directory, name = os.path.split(nvrtc)
    if not name.startswith("libnvrtc.so."):
        return None
    major = name.removeprefix("libnvrtc.so.").partition(".")[0]
    exact = re.compile(rf"libnvrtc-builtins\.so\.{major}\.\d+")
    found = sorted(entry for entry in _entries(directory) if exact.fullmatch(entry))
    return os.path.join(directory, found[-1]) if found else None


def of_cccl(directory: str) -> str:
    """Return CCCL's own version (``"2.8.2"`` came with CUDA 12.9), or an empty string."""
    for header in _CCCL_HEADERS:
        number = _macro(os.path.join(directory, header), "CCCL_VERSION")
        if number:
            return f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"
    return ""


def of_cutlass(directory: str) -> str:
    """Return CUTLASS's version, or an empty string."""
    header = os.path.join(directory, "cutlass/version.h")
    numbers = [_macro(header, f"CUTLASS_{level}") for level in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(str(number) for number in numbers) if any(numbers) else ""


def _macro(path: str, name: str) -> int:
    match = re.search(rf"^\s*#\s*define\s+{name}\s+(\d+)", _head(path), re.MULTILINE)
    return int(match[1]) if match else 0


def _head(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_HEAD).decode("latin-1")
    except OSError:
        return ""


def _entries(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []

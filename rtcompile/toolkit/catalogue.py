"""A table of the parts of a toolkit and where each layout keeps them; a new layout is a new column.

A *layout* is one way in which NVIDIA ships the same files:

``wheels13``
    ``pip install nvidia-cuda-…``: everything under ``nvidia/cu13``.
``wheels12``
    ``pip install nvidia-cuda-…-cu12``: one folder under ``nvidia`` per package.
``conda``
    ``$CONDA_PREFIX``, headers under ``targets/<target>``. ``$CONDA_PREFIX/include`` is never
    searched: it holds the headers of every other package of the environment.
``toolkit``
    The installer's folder: ``$CUDA_PATH``, ``/usr/local/cuda-12.9``.
``bundled``
    What NVRTC 13.3 and newer writes of the headers inside its own file: no runtime API, no cuRAND.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    dirs: Mapping[str, tuple[str, ...]]  # by layout: where under the root, in order
    # By layout: the package that has it (``toolkit``: its entry in ``version.json``).
    packages: Mapping[str, str] = field(default_factory=dict)
    # The header, relative to the marker's folder, and its macro that holds the version.
    states: tuple[str, str] | None = None
    required: bool = False  # whether some kernels cannot be compiled without it


PARTS: tuple[Part, ...] = (
    Part(
        "nvrtc",
        "NVRTC",
        markers=("libnvrtc.so.13", "libnvrtc.so.12"),
        dirs={
            "wheels13": ("nvidia/cu13/lib",),
            "wheels12": ("nvidia/cuda_nvrtc/lib",),
            "conda": _CONDA_LIB,
            "toolkit": _LIB,
        },
        packages={
            "wheels13": "nvidia-cuda-nvrtc",
            "wheels12": "nvidia-cuda-nvrtc-cu12",
            "conda": "cuda-nvrtc",
            "toolkit": "cuda_nvrtc",
        },
        required=True,
    ),
    Part(
        "cudart",
        "CUDA runtime headers",
        markers=("cuda_runtime_api.h", "math_constants.h"),
        dirs={
            "wheels13": ("nvidia/cu13/include",),
            "wheels12": ("nvidia/cuda_runtime/include",),
            "conda": _CONDA_INCLUDE,
            "toolkit": _INCLUDE,
            "bundled": ("include",),
        },
        packages={
            "bundled": "nvrtc",
            "wheels13": "nvidia-cuda-runtime",
            "wheels12": "nvidia-cuda-runtime-cu12",
            "conda": "cuda-cudart-dev",
            "toolkit": "cuda_cudart",
        },
        states=("cuda_runtime_api.h", "CUDART_VERSION"),
        required=True,
    ),
    Part(
        "crt",
        "crt headers (mma.h, cuda_runtime.h need them)",
        markers=("crt/mma.h",),
        dirs={
            "wheels13": ("nvidia/cu13/include",),
            "wheels12": ("nvidia/cuda_nvcc/include",),
            "conda": _CONDA_INCLUDE,
            "toolkit": _INCLUDE,
            "bundled": ("include",),
        },
        packages={
            "bundled": "nvrtc",
            "wheels13": "nvidia-cuda-crt",
            "wheels12": "nvidia-cuda-nvcc-cu12",
            "conda": "cuda-crt",
            "toolkit": "cuda_nvcc",
        },
        required=True,
    ),
    Part(
        "cccl",
        "CCCL headers (cuda/std, cub, thrust; the std shims need them)",
        markers=("cuda/std/version",),
        dirs={
            "wheels13": ("nvidia/cu13/include/cccl",),
            "wheels12": ("nvidia/cuda_cccl/include",),
            "conda": ("targets/{target}/include/cccl", *_CONDA_INCLUDE),
            "toolkit": ("include/cccl", "targets/{target}/include/cccl", *_INCLUDE),
            "bundled": ("include/cccl",),
        },
        packages={
            "bundled": "nvrtc",
            "wheels13": "nvidia-cuda-cccl",
            "wheels12": "nvidia-cuda-cccl-cu12",
            "conda": "cuda-cccl",
            "toolkit": "cuda_cccl",
        },
        states=("cuda/std/__cccl/version.h", "CCCL_VERSION"),
        required=True,
    ),
    Part(
        "curand",
        "cuRAND headers",
        markers=("curand_kernel.h",),
        dirs={
            "wheels13": ("nvidia/cu13/include",),
            "wheels12": ("nvidia/curand/include",),
            "conda": _CONDA_INCLUDE,
            "toolkit": _INCLUDE,
        },
        packages={
            "wheels13": "nvidia-curand",
            "wheels12": "nvidia-curand-cu12",
            "conda": "libcurand-dev",
            "toolkit": "libcurand",
        },
    ),
    Part(
        "nvjitlink",
        "nvJitLink",
        markers=("libnvJitLink.so.13", "libnvJitLink.so.12"),
        dirs={
            "wheels13": ("nvidia/cu13/lib",),
            "wheels12": ("nvidia/nvjitlink/lib",),
            "conda": _CONDA_LIB,
            "toolkit": _LIB,
        },
        packages={
            "wheels13": "nvidia-nvjitlink",
            "wheels12": "nvidia-nvjitlink-cu12",
            "conda": "libnvjitlink",
            "toolkit": "libnvjitlink",
        },
    ),
    Part(
        "cudadevrt",
        "the device runtime (libcudadevrt.a)",
        markers=("libcudadevrt.a",),
        dirs={
            "wheels13": ("nvidia/cu13/lib",),
            "wheels12": ("nvidia/cuda_runtime/lib",),
            "conda": _CONDA_LIB,
            "toolkit": _LIB,
        },
        packages={
            "wheels13": "nvidia-cuda-runtime",
            "wheels12": "nvidia-cuda-runtime-cu12",
            "conda": "cuda-cudart-static",
            "toolkit": "cuda_cudart",
        },
    ),
    Part(
        "nvcc",
        "nvcc",
        markers=("nvcc",),
        dirs={
            "wheels13": ("nvidia/cu13/bin",),
            "wheels12": ("nvidia/cuda_nvcc/bin",),  # ptxas only: no CUDA 12 wheel has nvcc
            "conda": ("bin",),
            "toolkit": ("bin",),
        },
        packages={
            "wheels13": "nvidia-cuda-nvcc",
            "conda": "cuda-nvcc",
            "toolkit": "cuda_nvcc",
        },
    ),
    Part(
        "nvvm",
        "NVVM (cicc, which nvcc runs)",
        markers=("cicc",),
        dirs={
            "wheels13": ("nvidia/cu13/nvvm/bin",),
            "conda": ("nvvm/bin",),
            "toolkit": ("nvvm/bin",),
        },
        packages={"wheels13": "nvidia-nvvm", "conda": "cuda-nvvm-tools"},
    ),
)

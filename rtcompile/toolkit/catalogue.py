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
from dataclasses import dataclass

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
    # The header, relative to the marker's folder, and its macro that holds the version.
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

"""Messages of nvcc and its host compiler."""

from __future__ import annotations

from rtcompile.messages.known import KnownMessage, row

ROWS: tuple[KnownMessage, ...] = (
    row(
        "nvcc-arch",
        r"Unsupported gpu architecture '(?P<given>[^']+)'",
        "{nvcc} does not compile for {given}.",
        "CUDA 13 dropped everything below sm_75; Blackwell begins with CUDA 12.8. Take the nvcc "
        "that has it.",
        "nvcc 13.0",
    ),
    row(
        "nvcc-given-nvrtc-option",
        r"Unknown option '(?P<option>-*(?:device-as-default|(?:create-|use-)?pch|device-int128|minimal)[^']*)'",
        "{option} is an option of NVRTC; nvcc has none of that name.",
        "Through rtcompile it is left out for nvcc.",
        "nvcc 13.0",
    ),
    row(
        "nvcc-option-unknown",
        r"Unknown option '(?P<option>[^']+)'",
        "{nvcc} has no option {option}.",
        "Check its spelling.",
        "nvcc 13.0",
    ),
    row(
        "nvcc-and-nvvm",
        r"invalid option: --simt-only",
        "nvcc and its cicc (nvidia-nvvm) are of different versions: pip upgraded one of them.",
        "Pin them together: pip install 'nvidia-cuda-nvcc==13.0.*' 'nvidia-nvvm==13.0.*' "
        "'nvidia-cuda-crt==13.0.*'.",
        "nvcc 13.5 with NVVM 13.0",
    ),
    row(
        "host-compiler-missing",
        r"Failed to preprocess host compiler properties|(?:gcc|g\+\+|cc1plus): (?:not found|No such file)",
        "nvcc found no host C++ compiler.",
        "Install g++ (apt install g++, conda install gxx), or name one with -ccbin or NVCC_CCBIN.",
        "nvcc 13.0",
    ),
    row(
        "host-compiler-too-new",
        r"unsupported (?:GNU|clang) version",
        "{nvcc} refuses the host compiler: it is newer than those it was tested with.",
        "Name an older one with -ccbin=g++-13, or take a newer nvcc; -allow-unsupported-compiler "
        "at your own risk.",
        "nvcc 13.0",
    ),
    row(
        "host-call",
        r"calling a (?:constexpr )?__host__ function",
        "Device code calls a function of the host.",
        "Mark it __host__ __device__; for constexpr functions --expt-relaxed-constexpr is enough.",
        "nvcc 13.0",
    ),
)

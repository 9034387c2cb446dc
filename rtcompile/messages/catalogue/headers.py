"""Messages about headers that are missing or of another version."""

from __future__ import annotations

from rtcompile.messages import facts
from rtcompile.messages.known import KnownMessage, row

ROWS: tuple[KnownMessage, ...] = (
    row(
        "host-headers",
        r"/usr/include/(?:c\+\+|bits|gnu|sys|features|std|[\w-]{1,40}-linux-gnu)"
        r"|/c\+\+/\d+/|/gcc/[\w-]{1,40}/\d+/|gnu/stubs-32\.h|#pragma GCC system_header",
        "The host compiler's headers came in through an include directory; no device compiler "
        "reads them.",
        "Remove {leak}. Standard headers for device code are rtcompile's own, found without -I.",
        "NVRTC 12.4",
        facts.leak,
    ),
    row(
        "driver-header",
        r"cuda\.h: [^\n]*open source file \"stdlib\.h\"|identifier \"CUtensorMap\" is undefined",
        "NVRTC does not read the driver's cuda.h, which is host code; CUtensorMap is declared "
        "there.",
        "Include <cuda.h> with rtcompile's shims in the search path (they are, unless an -I hides "
        "them), or take a 128-byte struct, aligned to 64 bytes, as __grid_constant__ parameter.",
        "NVRTC 12.4",
    ),
    row(
        "cutlass-and-cccl",
        r"cute/container/\w+\.hpp: (?:(?:a )?template argument list is not allowed in a declaration of a "
        r"primary template|declaration is incompatible with template parameter)"
        r"|open source file \"(?:cuda/std/__tuple_dir/structured_bindings\.h|__config)\"",
        "CUTLASS and CCCL of this build do not go together: {found}.",
        "{step}",
        "CUTLASS 4.2",
        facts.cutlass,
    ),
    row(
        "header-host-only",
        r"open (?:source )?file \"(?P<header>vector|string|map|unordered_map|set|list|deque|iostream|fstream"
        r"|thread|mutex|future|random|regex|filesystem|memory_resource|format)\"",
        "<{header}> has no version for device code.",
        "Keep host code out of the source (#ifndef __CUDACC_RTC__), or use backend='nvcc'.",
        "NVRTC 12.4",
    ),
    row(
        "header-of-package",
        r"(?:cannot|could not) open source file \"(?P<header>[^\"]+)\"",
        "{header} comes with {what}, {why}.",
        "{step}",
        "NVRTC 12.4",
        facts.packaged,
    ),
    row(
        "header-of-package-nvcc",
        r"(?:^| )(?P<header>[\w./+-]{1,200}): No such file or directory",
        "{header} comes with {what}, {why}.",
        "{step}",
        "nvcc 13.0",
        facts.packaged,
    ),
    row(
        "header-missing",
        r"(?:cannot|could not) open source file \"(?P<header>[^\"]+)\"",
        "{searched}.",
        "Add its folder with -I; a quoted include is also looked for beside the file that "
        "includes it; a source given as text lies in no folder.",
        "NVRTC 12.4",
        facts.searched,
    ),
    row(
        "header-missing-nvcc",
        r"(?:^| )(?P<header>[\w./+-]{1,200}\.(?:h|hpp|cuh|hh|inc)): No such file or directory",
        "{searched}.",
        "Add its folder with -I.",
        "nvcc 13.0",
        facts.searched,
    ),
    row(
        "standard-too-old",
        r"(?P<library>libcu\+\+|CUB|Thrust|CCCL) requires at least C\+\+ ?17",
        "{library} of this version needs C++17; the options have {given_std}.",
        "Use -std=c++17, which is rtcompile's default.",
        "CCCL 2.8",
    ),
    row(
        "umbrella-header",
        r"Including <(?P<header>[^>]+)> is not supported when compiling with NVRTC"
        r"|(?:^|/)(?:cub|thrust|cuda/std)/[^\n]{0,300}: [^\n]*(?:__host__ function|\"cuda[A-Z]\w+\")",
        "<{umbrella}> brings what launches kernels from the host, which NVRTC does not compile.",
        "{instead}, or use backend='nvcc'.",
        "CCCL 2.8",
        facts.umbrella,
    ),
    row(
        "standard-too-old-for-library",
        r"(?:^|/)(?P<library>cute|cutlass|cub|thrust|cuda/std)/[^\n]{0,300}: ",
        "<{library}/…> needs C++17; the options have {given}.",
        "Use -std=c++17, which is rtcompile's default.",
        "CUTLASS 3.5",
        facts.before_cpp17,
    ),
    row(
        "initializer-list",
        r"requires -builtin-initializer-list=true",
        "libcu++ needs NVRTC's own std::initializer_list, which an option turns off.",
        "Remove --builtin-initializer-list=false.",
        "CCCL 2.8",
    ),
    row(
        "one-letter-macro",
        r"(?:__nv_nvrtc_builtin_header\.h|/(?:cute|cutlass|cuda/std|cub|crt)/[^\n]{0,300}): ",
        "A macro on the command line replaces names inside the headers: {macros}.",
        "Give it a longer name, or #define it after the includes.",
        "NVRTC 12.4",
        facts.one_letter,
    ),
    row(
        "minimal",
        r"identifier \"cudaStream_t\" is undefined",
        "-minimal leaves out what CUTLASS needs of NVRTC's built-in declarations.",
        "Remove -minimal.",
        "NVRTC 12.4",
        facts.minimal,
    ),
    row(
        "headers-mixed",
        r"CUDA compiler and CUDA toolkit headers are incompatible|__NV_SILENCE_DEPRECATION_BEGIN"
        r"|incomplete type \"__nv_fp8_e8m0\"|_CCCL_PUSH_MACROS"
        r"|/(?:cub|thrust)/version\.(?:cuh|h): static assertion failed"
        r"|function call is not allowed in a constant expression[^\n]*\n[^\n]*_CCCL_",
        "Headers of two CUDA versions are mixed. Of this build: {found}.",
        "{remove}.",
        "CUDA 12.9",
        facts.mixed,
    ),
)

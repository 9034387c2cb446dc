"""Messages about options that a compiler does not accept."""

from __future__ import annotations

from rtcompile.messages import facts
from rtcompile.messages.known import KnownMessage, row

ROWS: tuple[KnownMessage, ...] = (
    row(
        "option-twice",
        r"defined more than once|\"--[^\"]*\" followed by \"--",
        "One option reached the compiler in two spellings; up to NVRTC 12.8 that is an error, "
        "since 12.9 the last wins, but an earlier architecture's suffix stays.",
        "Give it once. Through rtcompile's functions it is: the last one given wins.",
        "NVRTC 12.4",
    ),
    row(
        "arch-unknown",
        r"invalid value for --gpu-architecture",
        "This NVRTC does not compile for {arch}.",
        "{support}",
        "NVRTC 12.4",
        facts.supported_by,
    ),
    row(
        "arch-conflict",
        r"specified with --nv_arch flag",
        "Two architectures that exclude each other were given: {given}.",
        "Give one; the suffix a belongs to one architecture alone.",
        "NVRTC 12.9",
        facts.arch_options,
    ),
    row(
        "arch-deprecated",
        r"Architectures prior to '[^']*_75' are deprecated",
        "CUDA 13 drops Maxwell, Pascal and Volta; {nvrtc} still compiles for {arch}.",
        "Stay with CUDA 12 for such a device.",
        "NVRTC 12.9",
    ),
    row(
        "option-of-nvcc",
        r"unrecognized option (?P<option>-O\d?|-dc|-c|(?:-Xcompiler|--compiler-options|-Xlinker|-gencode"
        r"|--generate-code|--expt-|-ccbin|--?extended-lambda|-cubin|-fatbin|-W)\S*) found",
        "{option} is an option of nvcc; NVRTC has none of that name.",
        "Leave it out (NVRTC optimises by default and compiles no host code), or use "
        "backend='nvcc'.",
        "NVRTC 12.4",
    ),
    row(
        "option-too-new",
        r"unrecognized option (?P<option>(?P<name>[^\s=]+)\S*) found",
        "{option} needs NVRTC {needs} or newer; this is {nvrtc}.",
        "Leave it out, or upgrade NVRTC and its headers together.",
        "NVRTC 12.4",
        facts.found_in(facts.FIRST_NVRTC, needs="name"),
    ),
    row(
        "option-unknown",
        r"unrecognized option:? (?P<option>\S+)",
        "{compiler} has no option {option}.",
        "Check its spelling.",
        "NVRTC 12.4, nvJitLink 12.9",
    ),
    row(
        "std-unknown",
        r"invalid value for --std|Value '[^']*' is not defined for option 'std'",
        "{given_std} is no language standard that {compiler} knows; NVRTC has no GNU dialects.",
        "Use -std=c++17 or -std=c++20.",
        "NVRTC 12.4, nvcc 13.0",
    ),
    row(
        "nvrtc-builtins",
        r"libnvrtc-builtins\S* (?:is corrupted|is installed)|failed to open libnvrtc-builtins",
        "NVRTC did not find its second library, libnvrtc-builtins, of exactly its own version.",
        "Reinstall the package that brought it: both files come together. "
        "`rtcompile doctor` shows from where it was loaded.",
        "NVRTC 12.4",
    ),
)

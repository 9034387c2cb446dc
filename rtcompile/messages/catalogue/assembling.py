"""Messages of ptxas, nvlink and nvJitLink."""

from __future__ import annotations

from rtcompile.core.symbols import simple_name
from rtcompile.messages import facts
from rtcompile.messages.known import KnownMessage, row

ROWS: tuple[KnownMessage, ...] = (
    row(
        "instruction-needs-suffix",
        r"Instruction '(?P<instruction>[\w.:]+)' (?:not supported on \.target|cannot be compiled for "
        r"architecture) '(?P<given>\w+)'",
        "'{instruction}' exists {where}; this was compiled for {given}.",
        "{do}",
        "ptxas 12.4",
        facts.instruction,
    ),
    row(
        "instruction-needs-arch",
        r"'(?P<feature>[^'\n]{1,80})' requires \.target (?P<needs>sm_\d{2,3}[af]?) or higher",
        "'{feature}' begins with {needs}; this build is for {arch}.",
        "{do}",
        "ptxas 12.4",
        facts.above,
    ),
    row(
        "cp-async-size",
        r"instruction 'cp\.async': unexpected value '(?P<given>\d+)', expected to be",
        "cp.async copies 4, 8 or 16 bytes (.cg: 16 only), not {given}.",
        "Copy wider elements, or use rtcompile::copy_async of <rtcompile/async_copy.cuh>, which "
        "chooses a legal width for any element type.",
        "ptxas 12.4",
    ),
    row(
        "static-shared-memory",
        r"uses too much shared data \((?P<used>0x[0-9a-f]{1,16}) bytes, (?P<most>0x[0-9a-f]{1,16}) max\)",
        "Static shared memory ends at {limit} bytes; this kernel declares {size}.",
        "Declare it `extern __shared__`, launch with shared_mem={size}, and set "
        "kernel.max_dynamic_shared_size_bytes first.",
        "ptxas 12.9",
        lambda match, _: {
            "size": f"{int(match['used'], 16)}",
            "limit": f"{int(match['most'], 16)}",
        },
    ),
    row(
        "constant-memory",
        r"uses too much global constant data",
        "__constant__ memory is 64 KiB for all of a module.",
        "Keep the table in __device__ memory and read it with __ldg().",
        "ptxas 12.4",
    ),
    row(
        "device-runtime-missing",
        r"(?:Unresolved extern function|Undefined reference to) '(?P<symbol>cuda[A-Z]\w*)'",
        "{symbol} is in the device runtime, libcudadevrt.a, which was not linked.",
        "Through rtcompile it is linked when a kernel launches a kernel; else add it to link=.",
        "ptxas 12.4",
    ),
    row(
        "undefined-symbol",
        r"(?:Unresolved extern function|Undefined reference to) '(?P<symbol>[^']+)'",
        "{name} is declared and used, but defined nowhere in what was linked.",
        "Give its source or its object in link=[...]; both sides need -rdc=true, and the "
        "definition the same signature (C or C++ linkage).",
        "ptxas 12.4, nvJitLink 12.9, nvlink 13.0",
        lambda match, _: {"name": simple_name(match["symbol"])},
    ),
    row(
        "asm-label",
        r"Duplicate definition of label '(?P<label>[^']+)'",
        "The inline assembly's label {label} came twice, since the compiler copied the code.",
        'Put the block in braces: asm volatile("{{ {label}: … }}"), or name it {label}_%=.',
        "ptxas 12.4",
    ),
    row(
        "asm-syntax",
        r"Not a name of any known instruction: '(?P<word>[^']+)'|Unknown modifier '(?P<modifier>[^']+)'"
        r"|Arguments mismatch for instruction '(?P<mismatch>[^']+)'|Parsing error near '(?P<near>[^']+)'",
        "The inline assembly holds {word}{modifier}{mismatch}{near}, which PTX does not have so.",
        "The line is one of the generated PTX; look for it in your asm statements.",
        "ptxas 12.4",
    ),
    row(
        "register-limit",
        r"threads per SM for entry (?P<kernel>\S+) is out of range",
        "__launch_bounds__ of {kernel} asks for more threads per multiprocessor than {arch} has.",
        "Lower its second argument.",
        "ptxas 12.4",
    ),
    row(
        "wgmma-serialized",
        r"wgmma\.mma_async instructions are serialized due to (?P<reason>[^\n]+)",
        "The tensor core instructions wait for one another: {reason}",
        "With CuTe, compile with -DNDEBUG: its asserts are calls between them.",
        "ptxas 12.4",
    ),
    row(
        "ptx-version",
        r"Unsupported \.version (?P<ptx>[\d.]+); current version is '(?P<known>[\d.]+)'",
        "The PTX is {newer}; this assembler reads up to {own}.",
        "Compile it with the older toolkit, or link with the newer nvJitLink.",
        "ptxas 12.4, nvJitLink 12.9",
        facts.ptx,
    ),
    row(
        "ptx-too-old-for-target",
        r"PTX \.version (?P<ptx>[\d.]+) does not support \.target (?P<given>\w+)",
        "PTX {ptx} is older than {given}.",
        "Raise its .version, or take a lower .target.",
        "ptxas 12.4",
    ),
    row(
        "link-arch",
        r"PTX with \.target '(?P<given>\w+)' cannot be compiled for architecture '(?P<wanted>\w+)'",
        "The input is for {given} alone; the link is for {wanted}.",
        "Link for {given}, or compile the input for {wanted}.",
        "ptxas 12.4, nvJitLink 12.9",
    ),
    row(
        "link-arch-higher",
        r"SM version specified by \.target is higher than default SM version assumed",
        "An input's PTX is for a newer architecture than {arch}, which the link is for.",
        "Compile every input for one architecture.",
        "ptxas 12.4, nvJitLink 12.9",
    ),
    row(
        "link-input-kind",
        r"does not match type NVJITLINK_INPUT_(?P<kind>CUBIN|PTX|LTOIR|FATBIN|OBJECT|LIBRARY)(?P<name>.*)",
        "The link input {name} is not {kind}.",
        "Give the bytes with their true kind; rtcompile tells a cubin (\\x7fELF), PTX (text), "
        "LTO-IR and fatbins apart by their first bytes.",
        "nvJitLink 12.9",
    ),
    row(
        "link-no-arch",
        r"empty elfw",
        "nvJitLink has nothing to link for: it was given no architecture, or an unknown one.",
        "Give it -arch=sm_NN.",
        "nvJitLink 13.0",
    ),
    row(
        "nvlink-alone",
        r"elfLink linker library load error",
        "nvlink links LTO-IR by a library of its toolkit, which is not there; it was asked because "
        "nvJitLink is missing here.",
        "{step}",
        "nvlink 13.0",
        facts.linker,
    ),
)

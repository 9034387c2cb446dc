"""The catalogue of compiler, linker and driver messages: what each really means and what to do.

A message is a row of `MESSAGES`; the first row that fits is meant, so narrow ones come before wide
ones. ``{names}`` in a row are filled in from the build: its `BuildContext`, the groups of the
pattern, and what the row's `values` function (in `message_facts`) makes of both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from rtcompile.core import message_facts as facts
from rtcompile.core.context import BuildContext
from rtcompile.core.message_facts import Match, Values

__all__ = ["MESSAGES", "KnownMessage"]


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """One message and its true cause.

    Attributes
    ----------
    id : str
        Its name, for ``rtcompile explain`` and the documentation.
    pattern : re.Pattern
        Searched in ``file: message``, the source line, and the message's notes, a line each.
    cause, fix : str
        Templates: what is wrong with this build, and the next step.
    since : str
        The earliest release that was seen to say it.
    values : callable
        Further names for the templates; None where the row does not fit this build after all.
    """

    id: str
    pattern: re.Pattern[str]
    cause: str
    fix: str
    since: str
    values: Callable[[Match, BuildContext], Values | None]

    def hint(self, match: Match, context: BuildContext) -> str:
        """Fill in the templates; an empty string where the row does not fit this build."""
        values = self.values(match, context)
        if values is None:
            return ""
        groups = {name: text or "" for name, text in match.groupdict().items()}
        names = {**facts.of_build(context), **groups, **values}
        return f"{self.cause.format_map(names)} {self.fix.format_map(names)}".strip()


def _row(
    id_: str,
    pattern: str,
    cause: str,
    fix: str,
    since: str,
    values: Callable[[Match, BuildContext], Values | None] = facts.nothing_more,
) -> KnownMessage:
    return KnownMessage(id_, re.compile(pattern), cause, fix, since, values)


MESSAGES: tuple[KnownMessage, ...] = (
    # NVRTC: options
    _row(
        "option-twice",
        r"defined more than once|\"--[^\"]*\" followed by \"--",
        "One option reached the compiler in two spellings; up to NVRTC 12.8 that is an error, "
        "since 12.9 the last wins, but an earlier architecture's suffix stays.",
        "Give it once. Through rtcompile's functions it is: the last one given wins.",
        "NVRTC 12.4",
    ),
    _row(
        "arch-unknown",
        r"invalid value for --gpu-architecture",
        "This NVRTC does not compile for {arch}.",
        "{support}",
        "NVRTC 12.4",
        facts.supported_by,
    ),
    _row(
        "arch-conflict",
        r"specified with --nv_arch flag",
        "Two architectures that exclude each other were given: {given}.",
        "Give one; the suffix a belongs to one architecture alone.",
        "NVRTC 12.9",
        facts.arch_options,
    ),
    _row(
        "arch-deprecated",
        r"Architectures prior to '[^']*_75' are deprecated",
        "CUDA 13 drops Maxwell, Pascal and Volta; {nvrtc} still compiles for {arch}.",
        "Stay with CUDA 12 for such a device.",
        "NVRTC 12.9",
    ),
    _row(
        "option-of-nvcc",
        r"unrecognized option (?P<option>\S+) found",
        "{option} is an option of nvcc; NVRTC has none of that name.",
        "Leave it out (NVRTC optimises by default and compiles no host code), or use "
        "backend='nvcc'.",
        "NVRTC 12.4",
        facts.nvcc_only,
    ),
    _row(
        "option-too-new",
        r"unrecognized option (?P<option>\S+) found",
        "{option} needs NVRTC {needs} or newer; this is {nvrtc}.",
        "Leave it out, or upgrade NVRTC and its headers together.",
        "NVRTC 12.4",
        facts.too_new,
    ),
    _row(
        "option-unknown",
        r"unrecognized option:? (?P<option>\S+)",
        "{compiler} has no option {option}.",
        "Check its spelling.",
        "NVRTC 12.4, nvJitLink 12.9",
    ),
    _row(
        "std-unknown",
        r"invalid value for --std|Value '[^']*' is not defined for option 'std'",
        "{given} is no language standard that {compiler} knows; NVRTC has no GNU dialects.",
        "Use -std=c++17 or -std=c++20.",
        "NVRTC 12.4, nvcc 13.0",
        facts.standard,
    ),
    _row(
        "nvrtc-builtins",
        r"libnvrtc-builtins\S* (?:is corrupted|is installed)|failed to open libnvrtc-builtins",
        "NVRTC did not find its second library, libnvrtc-builtins, of exactly its own version.",
        "Reinstall the package that brought it: both files come together. "
        "`rtcompile doctor` shows from where it was loaded.",
        "NVRTC 12.4",
    ),
    # NVRTC: headers
    _row(
        "host-headers",
        r"/usr/include/(?:c\+\+|bits|gnu|sys|features|std|[\w-]{1,40}-linux-gnu)"
        r"|/c\+\+/\d+/|/gcc/[\w-]{1,40}/\d+/|gnu/stubs-32\.h|#pragma GCC system_header",
        "The host compiler's headers came in through an include directory; no device compiler "
        "reads them.",
        "Remove {leak}. Standard headers for device code are rtcompile's own, found without -I.",
        "NVRTC 12.4",
        facts.leak,
    ),
    _row(
        "crt-missing",
        r"open source file \"crt/[^\"]*\"|fatal error: crt/\S+ No such file",
        "mma.h and cuda_runtime.h come with the runtime's headers; the crt/ headers that they "
        "include are another package.",
        "pip install '{package}: it must match {nvrtc}.",
        "NVRTC 12.4",
        facts.crt_package,
    ),
    _row(
        "driver-header",
        r"cuda\.h: [^\n]*open source file \"stdlib\.h\"|identifier \"CUtensorMap\" is undefined",
        "NVRTC does not read the driver's cuda.h, which is host code; CUtensorMap is declared "
        "there.",
        "Include <cuda.h> with rtcompile's shims in the search path (they are, unless an -I hides "
        "them), or take a 128-byte struct, aligned to 64 bytes, as __grid_constant__ parameter.",
        "NVRTC 12.4",
    ),
    _row(
        "header-host-only",
        r"open (?:source )?file \"(?P<header>\w+)\"",
        "<{header}> has no version for device code.",
        "Keep host code out of the source (#ifndef __CUDACC_RTC__), or use backend='nvcc'.",
        "NVRTC 12.4",
        facts.host_header,
    ),
    _row(
        "header-of-package",
        r"(?:cannot|could not) open source file \"(?P<header>[^\"]+)\"",
        "{header} is not installed here.",
        "It comes with {package}.",
        "NVRTC 12.4",
        facts.packaged,
    ),
    _row(
        "header-of-package-nvcc",
        r"(?:^| )(?P<header>[\w./+-]{1,200}): No such file or directory",
        "{header} is not installed here.",
        "It comes with {package}.",
        "nvcc 13.0",
        facts.packaged,
    ),
    _row(
        "header-missing",
        r"(?:cannot|could not) open source file \"(?P<header>[^\"]+)\"",
        "{searched}.",
        "Add its folder with -I; a quoted include is also looked for beside the file that "
        "includes it, but the source given as text lies in no folder.",
        "NVRTC 12.4",
        facts.searched,
    ),
    _row(
        "header-missing-nvcc",
        r"(?:^| )(?P<header>[\w./+-]{1,200}\.(?:h|hpp|cuh|hh|inc)): No such file or directory",
        "{searched}.",
        "Add its folder with -I.",
        "nvcc 13.0",
        facts.searched,
    ),
    _row(
        "standard-too-old",
        r"(?P<library>libcu\+\+|CUB|Thrust|CCCL) requires at least C\+\+ ?17",
        "{library} of this version needs C++17; the options have {given}.",
        "Use -std=c++17, which is rtcompile's default.",
        "CCCL 2.8",
        facts.standard,
    ),
    _row(
        "umbrella-header",
        r"Including <(?P<header>[^>]+)> is not supported when compiling with NVRTC",
        "<{header}> launches kernels from the host.",
        "Include the block- or warp-level header you need (<cub/block/block_reduce.cuh>), or use "
        "backend='nvcc'.",
        "CCCL 3.1",
    ),
    _row(
        "initializer-list",
        r"requires -builtin-initializer-list=true",
        "libcu++ needs NVRTC's own std::initializer_list, which an option turns off.",
        "Remove --builtin-initializer-list=false.",
        "CCCL 2.8",
    ),
    _row(
        "cutlass-and-cccl",
        r"cute/container/\w+\.hpp: (?:template argument list is not allowed in a declaration of a "
        r"primary template|declaration is incompatible with template parameter)",
        "CUTLASS and CCCL of this build do not go together: {found}.",
        "CUTLASS 4.2 goes with CCCL 2.3 to 3.1 (CUDA 12.4 to 13.1), not with 3.2; CUTLASS 4.7 "
        "does not go with CUDA 12.4. Take the CCCL of NVRTC's own version, and a CUTLASS of its "
        "time.",
        "CUTLASS 4.2",
        facts.cutlass,
    ),
    _row(
        "one-letter-macro",
        r"(?:__nv_nvrtc_builtin_header\.h|/(?:cute|cutlass|cuda/std|cub|crt)/[^\n]{0,300}): ",
        "A macro on the command line replaces names inside the headers: {macros}.",
        "Give it a longer name, or #define it after the includes.",
        "NVRTC 12.4",
        facts.one_letter,
    ),
    _row(
        "minimal",
        r"identifier \"cudaStream_t\" is undefined",
        "-minimal leaves out what CUTLASS needs of NVRTC's built-in declarations.",
        "Remove -minimal.",
        "NVRTC 12.4",
        facts.minimal,
    ),
    _row(
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
    # NVRTC: host code
    _row(
        "host-function",
        r"explicitly marked as a __host__ function is not allowed in JIT mode",
        "The source, or a header of it, holds host code, which NVRTC does not compile.",
        "Use backend='nvcc' (backend='auto' goes there by itself), or put the host's part behind "
        "#ifndef __CUDACC_RTC__.",
        "NVRTC 12.4",
    ),
    _row(
        "no-execution-space",
        r"(?:function without execution space annotations|static data member with non-const type"
        r"|lambda closure class members was inferred to be __host__)",
        "NVRTC takes what is not annotated for host code unless -default-device is given.",
        "Mark it __device__, or leave rtcompile's default options as they are: they hold "
        "-default-device.",
        "NVRTC 12.4",
    ),
    _row(
        "undefined-parameter-type",
        r"attribute \"__global__\" does not apply here"
        r"|namespace scope variable without memory space annotations[\s\S]*__global__",
        "The type of a parameter is not declared, so the kernel is read as a variable.",
        "Declare it: <cstdint> for uint32_t and its like, <cuda_fp16.h> for __half.",
        "NVRTC 12.4",
    ),
    _row(
        "no-memory-space",
        r"namespace scope variable without memory space annotations",
        "NVRTC takes a variable that is not annotated for host code unless -default-device is "
        "given.",
        "Mark it __device__ or __constant__, or leave rtcompile's default options as they are.",
        "NVRTC 12.4",
    ),
    _row(
        "launch-in-kernel",
        r"device-side kernel launch could not be processed",
        "A kernel launches a kernel, which needs the device runtime.",
        "rtcompile compiles such a source with -rdc=true and links cudadevrt by itself; with other "
        "tools, add both and #include <cuda_device_runtime_api.h>.",
        "NVRTC 12.4",
    ),
    _row(
        "dynamic-initialization",
        r"dynamic initialization is not supported for a __(?P<space>\w+)__ variable",
        "A __{space}__ variable cannot run a constructor before the kernel starts.",
        "Make the constructor constexpr, or fill the variable from the host or in a kernel.",
        "NVRTC 12.4",
    ),
    _row(
        "int128",
        r"128-bit (?P<what>integer|floating point) type is only supported in Linux with the "
        r"\"(?P<flag>[^\"]+)\"",
        "128-bit {what} types are off by default in NVRTC.",
        "Add the option {flag}.",
        "NVRTC 12.4",
    ),
    _row(
        "exceptions",
        r"device code does not support exception handling",
        "There are no exceptions in device code.",
        "Return a status, or call __trap().",
        "NVRTC 12.4",
    ),
    _row(
        "annotated-lambda",
        r"annotation on lambda requires --extended-lambda",
        "A lambda in a kernel is device code already; an annotation on it is an extension of nvcc.",
        "Drop the annotation; or use backend='nvcc' with --extended-lambda, which NVRTC has not.",
        "NVRTC 12.4",
    ),
    _row(
        "texture-reference",
        r"texture is not a template",
        "Texture references went with CUDA 12.",
        "Take a cudaTextureObject_t as parameter: cupy.cuda.texture.TextureObject.",
        "NVRTC 12.4",
    ),
    # NVRTC: WMMA and CuTe
    _row(
        "wmma-namespace",
        r"name must be a namespace name\n[^\n]*nvcuda",
        "The namespace nvcuda is not there. {why}",
        "Include <mma.h> and compile for sm_70 or above; through rtcompile the architecture is "
        "always fixed first.",
        "NVRTC 12.4",
        facts.namespace,
    ),
    _row(
        "wmma-fragment",
        r"incomplete type (?:\"nvcuda::wmma::fragment<(?P<fragment>[^\"]*)>\" )?is not allowed"
        r"(?(fragment)|\n[^\n]*fragment<)",
        "There is no such WMMA fragment. {why}",
        "Change the shape, the element type, or the architecture.",
        "NVRTC 12.4",
        facts.fragment,
    ),
    _row(
        "cp-async-in-cute",
        r"cp\.async sizeof\(TS\) is not supported(?:[\s\S]*?TS=(?P<type>[^,\]]+))?",
        "{type} is illegal: the hardware copies 4, 8 or 16 bytes (CACHEGLOBAL: 16 only).",
        "Give the atom a wider type, Copy_Atom<SM80_CP_ASYNC_CACHEALWAYS<uint32_t>, T> or "
        "<cute::uint128_t>, with threads that hold that many neighbours; or use UniversalCopy, or "
        "rtcompile::copy_async of <rtcompile/async_copy.cuh>, which chooses for any element type.",
        "CUTLASS 3.5",
        facts.copied_type,
    ),
    _row(
        "copy-partitioning",
        r"CopyAtom: Src/Dst partitioning does not match",
        "The layout gives the copy atom fewer or other elements than one instruction moves.",
        "Let each thread hold contiguous elements (the value layout of make_tiled_copy), or use a "
        "narrower atom or UniversalCopy.",
        "CUTLASS 3.5",
    ),
    # NVRTC: names
    _row(
        "name-expression",
        r"__nv_name_map|Error in parsing name expression|nv_mangled_name",
        "{expression} of name_expressions names nothing in the source.",
        "Spell it as C++ would at the end of the file: namespaces in full, template arguments "
        "given, types declared.",
        "NVRTC 12.4",
        facts.expression,
    ),
    _row(
        "template-in-extern-c",
        r"this declaration may not have extern \"C\" linkage",
        "A template cannot have a C name.",
        'Take extern "C" off it and ask for it by name expression: '
        "RawModule(..., name_expressions=['f<float>']).",
        "NVRTC 12.4",
    ),
    _row(
        "identifier-removed",
        r"identifier \"(?P<identifier>\w+)\" is undefined",
        "{identifier} went with sm_70: the warp's threads run apart since.",
        "Use {identifier}_sync with a mask of the threads that take part (0xffffffff for all).",
        "NVRTC 12.4",
        facts.needs_mask,
    ),
    _row(
        "identifier-beyond-arch",
        r"(?:identifier|no member) \"(?P<identifier>\w+)\"(?: is undefined)?",
        "{identifier} begins with {needs}; this build is for {arch}.",
        "Compile for a device that has it, or write it another way for {arch}.",
        "NVRTC 12.4",
        facts.beyond_arch,
    ),
    _row(
        "cluster-dims",
        r"(?P<identifier>__cluster_dims__) is not supported for this GPU architecture",
        "Thread block clusters begin with {needs}; this build is for {arch}.",
        "Compile for sm_90 or above.",
        "NVRTC 12.4",
        facts.beyond_arch,
    ),
    _row(
        "identifier-declared-in",
        r"identifier \"(?P<identifier>\w+)\" is undefined",
        "{identifier} is declared in {header}.",
        "#include it.",
        "NVRTC 12.4",
        facts.declared,
    ),
    _row(
        "host-api",
        r"identifier \"(?P<identifier>cuda[A-Z]\w+)\" is undefined",
        "{identifier} belongs to the host's runtime API.",
        "Call it from Python (CuPy), or, if the source holds host code, use backend='nvcc'.",
        "NVRTC 12.4",
    ),
    _row(
        "std-on-device",
        r"namespace \"std\" has no member \"(?P<member>\w+)\"",
        "std::{member} exists for device code in {header}, which is not included.",
        "#include it, or use cuda::std::{member}.",
        "NVRTC 12.4",
        facts.std_on_device,
    ),
    _row(
        "std-host-only",
        r"namespace \"std\" has no member \"(?P<member>\w+)\"",
        "std::{member} does not exist for device code.",
        "If it belongs to host code, use backend='nvcc'; in device code there is cuda::std for "
        "what needs no allocation.",
        "NVRTC 12.4",
    ),
    _row(
        "half-ambiguous",
        r"more than one operator \"(?P<operator>[^\"]+)\" matches these operands[\s\S]*__half",
        "__half converts to several types, so `{operator}` with a float, double or int is "
        "ambiguous.",
        "Convert the other operand: __float2half(1.0f), __half(2).",
        "NVRTC 12.4",
    ),
    _row(
        "atomic-type",
        r"no instance of overloaded function \"(?P<function>atomic\w+)\" matches",
        "{function} has no version for these types on {arch}.",
        "The notes above list those it has; cuda::atomic_ref takes any type of 4 or 8 bytes.",
        "NVRTC 12.4",
    ),
    _row(
        "dynamic-shared-in-template",
        r"declaration is incompatible with previous[^\n]*\n[^\n]*extern\s+__shared__",
        "A template declares extern __shared__ memory with its own type, so two instances disagree "
        "about one variable.",
        "Declare `extern __shared__ __align__(16) unsigned char raw[];` and cast it.",
        "NVRTC 12.4",
    ),
    _row(
        "shared-initializer",
        r"initializer not allowed for __shared__ variable",
        "Shared memory has no initial value.",
        "Let one thread write it, then __syncthreads().",
        "NVRTC 12.4",
    ),
    _row(
        "recursion",
        r"excessive recursion at instantiation",
        "A template instantiates itself without an end that is reached.",
        "Check the terminating specialisation; unsigned and negative arguments miss it easily.",
        "NVRTC 12.4",
    ),
    _row(
        "grid-constant",
        r"annotated with __grid_constant__ must have const-qualified type",
        "A __grid_constant__ parameter cannot be changed.",
        "Write `const __grid_constant__ T name`.",
        "NVRTC 12.4",
    ),
    _row(
        "parameter-space",
        r"Formal parameter space overflowed \((?P<size>\d+) bytes required, max (?P<limit>\d+)",
        "The kernel's parameters take {size} bytes; {arch} passes {limit}.",
        "Pass a pointer to the struct, or put it in __constant__ memory.",
        "NVRTC 12.4",
    ),
    # NVRTC: precompiled headers
    _row(
        "pch-heap",
        r"NVRTC_ERROR_PCH_CREATE_HEAP_EXHAUSTED|insufficient preallocated memory for generation of "
        r"precompiled header file(?: \((?P<size>\d+) bytes required\))?",
        "NVRTC's heap for precompiled headers is too small for these headers; the build itself is "
        "right.",
        "rtcompile makes it larger and tries again. With NVRTC itself: nvrtcSetPCHHeapSize.",
        "NVRTC 12.9",
    ),
    _row(
        "pch-file",
        r"cannot open precompiled header file|error while deleting file \"[^\"]*\.pch\"",
        "A precompiled header vanished: two processes share one directory for them.",
        "Let rtcompile manage them (no --pch options), or give each process its own directory.",
        "NVRTC 12.9",
    ),
    # ptxas
    _row(
        "instruction-needs-suffix",
        r"Instruction '(?P<instruction>[\w.:]+)' (?:not supported on \.target|cannot be compiled for "
        r"architecture) '(?P<given>\w+)'",
        "'{instruction}' exists {where}; this was compiled for {given}.",
        "{do}",
        "ptxas 12.4",
        facts.instruction,
    ),
    _row(
        "instruction-needs-arch",
        r"'(?P<feature>[^'\n]{1,80})' requires \.target (?P<needs>sm_\d{2,3}[af]?) or higher",
        "'{feature}' begins with {needs}; this build is for {arch}.",
        "{do}",
        "ptxas 12.4",
        facts.above,
    ),
    _row(
        "cp-async-size",
        r"instruction 'cp\.async': unexpected value '(?P<given>\d+)', expected to be",
        "cp.async copies 4, 8 or 16 bytes (.cg: 16 only), not {given}.",
        "Copy wider elements, or use rtcompile::copy_async of <rtcompile/async_copy.cuh>, which "
        "chooses a legal width for any element type.",
        "ptxas 12.4",
    ),
    _row(
        "static-shared-memory",
        r"uses too much shared data \((?P<used>0x[0-9a-f]{1,16}) bytes, (?P<most>0x[0-9a-f]{1,16}) max\)",
        "Static shared memory ends at {limit} bytes; this kernel declares {size}.",
        "Declare it `extern __shared__`, launch with shared_mem={size}, and set "
        "kernel.max_dynamic_shared_size_bytes first.",
        "ptxas 12.9",
        facts.shared,
    ),
    _row(
        "constant-memory",
        r"uses too much global constant data",
        "__constant__ memory is 64 KiB for all of a module.",
        "Keep the table in __device__ memory and read it with __ldg().",
        "ptxas 12.4",
    ),
    _row(
        "device-runtime-missing",
        r"(?:Unresolved extern function|Undefined reference to) '(?P<symbol>cuda\w+)'",
        "{symbol} is in the device runtime, libcudadevrt.a, which was not linked.",
        "Through rtcompile it is linked when a kernel launches a kernel; else add it to link=.",
        "ptxas 12.4",
        facts.device_runtime,
    ),
    _row(
        "undefined-symbol",
        r"(?:Unresolved extern function|Undefined reference to) '(?P<symbol>[^']+)'",
        "{name} is declared and used, but defined nowhere in what was linked.",
        "Give its source or its object in link=[...]; both sides need -rdc=true, and the "
        "definition the same signature (C or C++ linkage).",
        "ptxas 12.4, nvJitLink 12.9, nvlink 13.0",
        facts.symbol,
    ),
    _row(
        "asm-label",
        r"Duplicate definition of label '(?P<label>[^']+)'",
        "The inline assembly's label {label} came twice, since the compiler copied the code.",
        'Put the block in braces: asm volatile("{{ {label}: … }}"), or name it {label}_%=.',
        "ptxas 12.4",
    ),
    _row(
        "asm-syntax",
        r"Not a name of any known instruction: '(?P<word>[^']+)'|Unknown modifier '(?P<modifier>[^']+)'"
        r"|Arguments mismatch for instruction '(?P<mismatch>[^']+)'|Parsing error near '(?P<near>[^']+)'",
        "The inline assembly holds {word}{modifier}{mismatch}{near}, which PTX does not have so.",
        "The line is one of the generated PTX; look for it in your asm statements.",
        "ptxas 12.4",
    ),
    _row(
        "register-limit",
        r"threads per SM for entry (?P<kernel>\S+) is out of range",
        "__launch_bounds__ of {kernel} asks for more threads per multiprocessor than {arch} has.",
        "Lower its second argument.",
        "ptxas 12.4",
    ),
    _row(
        "wgmma-serialized",
        r"wgmma\.mma_async instructions are serialized due to (?P<reason>[^\n]+)",
        "The tensor core instructions wait for one another: {reason}",
        "With CuTe, compile with -DNDEBUG: its asserts are calls between them.",
        "ptxas 12.4",
    ),
    _row(
        "ptx-version",
        r"Unsupported \.version (?P<ptx>[\d.]+); current version is '(?P<known>[\d.]+)'",
        "The PTX is {newer}; this assembler reads up to {own}.",
        "Compile it with the older toolkit, or link with the newer nvJitLink.",
        "ptxas 12.4, nvJitLink 12.9",
        facts.ptx,
    ),
    _row(
        "ptx-too-old-for-target",
        r"PTX \.version (?P<ptx>[\d.]+) does not support \.target (?P<given>\w+)",
        "PTX {ptx} is older than {given}.",
        "Raise its .version, or take a lower .target.",
        "ptxas 12.4",
    ),
    _row(
        "link-arch",
        r"PTX with \.target '(?P<given>\w+)' cannot be compiled for architecture '(?P<wanted>\w+)'",
        "The input is for {given} alone; the link is for {wanted}.",
        "Link for {given}, or compile the input for {wanted}.",
        "ptxas 12.4, nvJitLink 12.9",
    ),
    _row(
        "link-arch-higher",
        r"SM version specified by \.target is higher than default SM version assumed",
        "An input's PTX is for a newer architecture than {arch}, which the link is for.",
        "Compile every input for one architecture.",
        "ptxas 12.4, nvJitLink 12.9",
    ),
    _row(
        "link-input-kind",
        r"does not match type NVJITLINK_INPUT_(?P<kind>CUBIN|PTX|LTOIR|FATBIN|OBJECT|LIBRARY)(?P<name>.*)",
        "The link input {name} is not {kind}.",
        "Give the bytes with their true kind; rtcompile tells a cubin (\\x7fELF), PTX (text), "
        "LTO-IR and fatbins apart by their first bytes.",
        "nvJitLink 12.9",
    ),
    _row(
        "link-no-arch",
        r"empty elfw",
        "nvJitLink has nothing to link for: it was given no architecture, or an unknown one.",
        "Give it -arch=sm_NN.",
        "nvJitLink 13.0",
    ),
    # nvcc
    _row(
        "nvcc-arch",
        r"Unsupported gpu architecture '(?P<given>[^']+)'",
        "{nvcc} does not compile for {given}.",
        "CUDA 13 dropped everything below sm_75; Blackwell begins with CUDA 12.8. Take the nvcc "
        "that has it.",
        "nvcc 13.0",
    ),
    _row(
        "nvcc-given-nvrtc-option",
        r"Unknown option '(?P<option>[^']+)'",
        "{option} is an option of NVRTC; nvcc has none of that name.",
        "Through rtcompile it is left out for nvcc.",
        "nvcc 13.0",
        facts.nvrtc_option,
    ),
    _row(
        "nvcc-option-unknown",
        r"Unknown option '(?P<option>[^']+)'",
        "{nvcc} has no option {option}.",
        "Check its spelling.",
        "nvcc 13.0",
    ),
    _row(
        "nvcc-and-nvvm",
        r"invalid option: --simt-only",
        "nvcc and its cicc (nvidia-nvvm) are of different versions: pip upgraded one of them.",
        "Pin them together: pip install 'nvidia-cuda-nvcc==13.0.*' 'nvidia-nvvm==13.0.*' "
        "'nvidia-cuda-crt==13.0.*'.",
        "nvcc 13.5 with NVVM 13.0",
    ),
    _row(
        "host-compiler-missing",
        r"Failed to preprocess host compiler properties|(?:gcc|g\+\+|cc1plus): (?:not found|No such file)",
        "nvcc found no host C++ compiler.",
        "Install g++ (apt install g++, conda install gxx), or name one with -ccbin or NVCC_CCBIN.",
        "nvcc 13.0",
    ),
    _row(
        "host-compiler-too-new",
        r"unsupported (?:GNU|clang) version",
        "{nvcc} refuses the host compiler: it is newer than those it was tested with.",
        "Name an older one with -ccbin=g++-13, or take a newer nvcc; -allow-unsupported-compiler "
        "at your own risk.",
        "nvcc 13.0",
    ),
    _row(
        "host-call",
        r"calling a (?:constexpr )?__host__ function",
        "Device code calls a function of the host.",
        "Mark it __host__ __device__; for constexpr functions --expt-relaxed-constexpr is enough.",
        "nvcc 13.0",
    ),
    # a compiler that died
    _row(
        "out-of-memory",
        r"died due to signal 9|beyond its memory limit|Killed|NVRTC_ERROR_OUT_OF_MEMORY",
        "The compiler was killed for the memory it used.",
        "Lower RTCOMPILE_JOBS, raise memory_limit=, or split the source: one heavily instantiated "
        "template can take gigabytes.",
        "any",
    ),
    _row(
        "timeout",
        r"killed after its time limit",
        "The compiler did not finish in time.",
        "Raise timeout= (seconds; RTCOMPILE_TIMEOUT), or look for exponential templates: a chain "
        "of nested function types never ends.",
        "any",
    ),
    _row(
        "crash-in-cute",
        r"died (?:by|due to) signal (?P<signal>\d+)|Segmentation fault|Aborted",
        "The compiler itself crashed ({how}) on CuTe or CUTLASS code; this is its bug.",
        "What has helped: UniversalCopy in place of a cp.async or TMA atom, a destination tensor "
        "with a contiguous layout, a newer toolkit than {compiler}, backend='nvcc'. "
        "The reproducer's folder is in the error.",
        "any",
        facts.signal_in_cute,
    ),
    _row(
        "crash",
        r"died (?:by|due to) signal (?P<signal>\d+)|Segmentation fault|Aborted",
        "The compiler itself crashed ({how}); this is its bug, not the source's.",
        "Try the other compiler (backend='nvcc' or 'nvrtc') or a newer toolkit than {compiler}; "
        "the reproducer's folder is in the error.",
        "any",
        facts.signal,
    ),
    _row(
        "code-generator",
        r"Internal Compiler Error|internal error",
        "The compiler's code generator gave up; this is its bug, not the source's.",
        "Try another -std, less inline assembly, the other compiler, or a newer toolkit than "
        "{compiler}.",
        "NVRTC 12.4",
    ),
    # the driver, at load or launch
    _row(
        "no-binary-for-gpu",
        r"CUDA_ERROR_NO_BINARY_FOR_GPU|no kernel image is available",
        "The code is for {arch}; {device} does not run it.",
        "{do}",
        "driver",
        facts.not_the_devices,
    ),
    _row(
        "unsupported-ptx",
        r"CUDA_ERROR_UNSUPPORTED_PTX_VERSION|provided PTX was compiled with an unsupported toolchain",
        "The driver is older than the toolkit that wrote the PTX ({compiler}).",
        "Compile to a cubin (target='cubin', an exact arch=), or upgrade the driver.",
        "driver",
    ),
    _row(
        "invalid-image",
        r"CUDA_ERROR_INVALID_IMAGE|device kernel image is invalid",
        "The driver refuses the image: damaged, of another kind, or beyond a limit of the device.",
        "Look at its static shared memory (`rtcompile inspect`): above 48 KiB it must be dynamic.",
        "driver",
    ),
    _row(
        "not-found",
        r"CUDA_ERROR_NOT_FOUND|named symbol not found",
        "The module has no symbol of that name: C++ names are mangled.",
        'Declare the kernel extern "C", or pass name_expressions=; `rtcompile inspect` lists the '
        "names there are.",
        "driver",
    ),
    _row(
        "launch-invalid-value",
        r"CUDA_ERROR_INVALID_VALUE",
        "The launch asks for what the kernel or the device does not allow, most often more dynamic "
        "shared memory than 48 KiB.",
        "Set kernel.max_dynamic_shared_size_bytes to what shared_mem= asks for.",
        "driver",
    ),
    _row(
        "arch-conditional-trap",
        r"Arch conditional MMA instruction used without targeting (?P<target>[^\n]*)"
        r"|Attempting to use (?P<what>[^\n]*) without",
        "CUTLASS or CuTe compiled a trap in place of an instruction that {arch} has not.",
        "Compile for the architecture with its suffix: sm_90a, sm_100a, sm_120a.",
        "CUTLASS 3.5",
    ),
)

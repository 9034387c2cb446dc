"""Messages about names, templates, and what a kernel may declare."""

from __future__ import annotations

from rtcompile.messages import facts, missing_includes
from rtcompile.messages.known import KnownMessage, row

ROWS: tuple[KnownMessage, ...] = (
    row(
        "cpp20",
        r"identifier \"(?P<word>concept|requires|consteval|constinit|char8_t|co_await|co_return"
        r"|co_yield)\" is undefined"
        r"|no storage class or type specifier\n[^\n]*\b(?P<keyword>concept|requires|consteval"
        r"|constinit)\b"
        r"|expected an expression\n[^\n]*(?P<operator><=>)"
        r"|expected an expression\n[^\n]*[{,]\s*(?P<designated>\.\w+)\s*="
        r"|expected an identifier\n[^\n]*\b(?P<using>using enum)\b"
        r"|\"auto\" is not allowed here\n[^\n]*[(,]\s*(?P<parameter>auto \w+)"
        r"|(?P<feature>[^\n:]{1,80}?) (?:is|are) a C\+\+20 feature"
        r"|C\+\+20-style (?P<style>[^\n]{1,60}?) is nonstandard",
        "`{what}` is C++20; the options have {given}.",
        "Use -std=c++20.",
        "NVRTC 12.9",
        facts.before_cpp20,
    ),
    row(
        "name-expression",
        r"__nv_name_map|Error in parsing name expression|nv_mangled_name",
        "{expression} of name_expressions names nothing in the source.",
        "Spell it as C++ would at the end of the file: namespaces in full, template arguments "
        "given, types declared.",
        "NVRTC 12.4",
        facts.expression,
    ),
    row(
        "template-in-extern-c",
        r"this declaration may not have extern \"C\" linkage",
        "A template cannot have a C name.",
        'Take extern "C" off it and ask for it by name expression: '
        "name_expressions=['f<float>'].",
        "NVRTC 12.4",
    ),
    row(
        "identifier-removed",
        r"identifier \"(?P<identifier>__shfl(?:_up|_down|_xor)?|__ballot|__any|__all)\" is undefined",
        "{identifier} went with sm_70: the warp's threads run apart since.",
        "Use {identifier}_sync with a mask of the threads that take part (0xffffffff for all).",
        "NVRTC 12.4",
    ),
    row(
        "identifier-beyond-arch",
        r"(?:identifier|no member) \"(?P<identifier>\w+)\"(?: is undefined)?",
        "{identifier} begins with {needs}; this build is for {arch}.",
        "Compile for a device that has it, or write it another way for {arch}.",
        "NVRTC 12.4",
        facts.beyond_arch,
    ),
    row(
        "cluster-dims",
        r"(?P<identifier>__cluster_dims__) is not supported for this GPU architecture",
        "Thread block clusters begin with {needs}; this build is for {arch}.",
        "Compile for sm_90 or above.",
        "NVRTC 12.4",
        facts.beyond_arch,
    ),
    row(
        "identifier-declared-in",
        r"identifier \"(?P<identifier>\w+)\" is undefined",
        "{identifier} is declared in <{header}>.",
        "#include it.",
        "NVRTC 12.4",
        facts.found_in(missing_includes.DECLARED, header="identifier"),
    ),
    row(
        "host-api",
        r"identifier \"(?P<identifier>cuda[A-Z]\w+)\" is undefined",
        "{identifier} belongs to the host's runtime API.",
        "Call it from Python (CuPy), or, if the source holds host code, use backend='nvcc'.",
        "NVRTC 12.4",
    ),
    row(
        "std-on-device",
        r"namespace \"std\" has no member \"(?P<member>\w+)\"",
        "std::{member} exists for device code in <{header}>, which is not included.",
        "#include it, or use cuda::std::{member}.",
        "NVRTC 12.4",
        facts.found_in(missing_includes.STD, header="member"),
    ),
    row(
        "std-host-only",
        r"namespace \"std\" has no member \"(?P<member>\w+)\"",
        "std::{member} does not exist for device code.",
        "If it belongs to host code, use backend='nvcc'; in device code there is cuda::std for "
        "what needs no allocation.",
        "NVRTC 12.4",
    ),
    row(
        "half-ambiguous",
        r"more than one operator \"(?P<operator>[^\"]+)\" matches these operands[\s\S]*__half",
        "__half converts to several types, so `{operator}` with a float, double or int is "
        "ambiguous.",
        "Convert the other operand: __float2half(1.0f), __half(2).",
        "NVRTC 12.4",
    ),
    row(
        "atomic-type",
        r"no instance of overloaded function \"(?P<function>atomic\w+)\" matches",
        "{function} has no version for these types on {arch}.",
        "The notes above list those it has; cuda::atomic_ref takes any type of 4 or 8 bytes.",
        "NVRTC 12.4",
    ),
    row(
        "dynamic-shared-in-template",
        r"declaration is incompatible with previous[^\n]*\n[^\n]*extern\s+__shared__",
        "A template declares extern __shared__ memory with its own type, so two instances disagree "
        "about one variable.",
        "Declare `extern __shared__ __align__(16) unsigned char raw[];` and cast it.",
        "NVRTC 12.4",
    ),
    row(
        "shared-initializer",
        r"initializer not allowed for __shared__ variable",
        "Shared memory has no initial value.",
        "Let one thread write it, then __syncthreads().",
        "NVRTC 12.4",
    ),
    row(
        "recursion",
        r"excessive recursion at instantiation",
        "A template instantiates itself without an end that is reached.",
        "Check the terminating specialisation; unsigned and negative arguments miss it easily.",
        "NVRTC 12.4",
    ),
    row(
        "grid-constant",
        r"annotated with __grid_constant__ must have const-qualified type",
        "A __grid_constant__ parameter cannot be changed.",
        "Write `const __grid_constant__ T name`.",
        "NVRTC 12.4",
    ),
    row(
        "parameter-space",
        r"Formal parameter space overflowed \((?P<size>\d+) bytes required, max (?P<limit>\d+)",
        "The kernel's parameters take {size} bytes; {arch} passes {limit}.",
        "Pass a pointer to the struct, or put it in __constant__ memory.",
        "NVRTC 12.4",
    ),
    row(
        "pch-heap",
        r"NVRTC_ERROR_PCH_CREATE_HEAP_EXHAUSTED|insufficient preallocated memory for generation of "
        r"precompiled header file(?: \((?P<size>\d+) bytes required\))?",
        "NVRTC's heap for precompiled headers is too small for these headers; the build itself is "
        "right.",
        "rtcompile makes it larger and tries again. With NVRTC itself: nvrtcSetPCHHeapSize.",
        "NVRTC 12.9",
    ),
    row(
        "pch-file",
        r"cannot open precompiled header file|error while deleting file \"[^\"]*\.pch\"",
        "A precompiled header vanished: two processes share one directory for them.",
        "Let rtcompile manage them (no --pch options), or give each process its own directory.",
        "NVRTC 12.9",
    ),
)

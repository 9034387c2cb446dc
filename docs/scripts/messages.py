"""The pages of errors, from the catalogue of messages and from what provokes each in the tests."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rtcompile.messages.catalogue import MESSAGES, KnownMessage, explain
from rtcompile.messages.facts import TABLES, BuildContext
from rtcompile.request.values import Arch
from tests import provoked

_LINES_SHOWN = 30  # of a source that was generated
# Their sources are no C++ to a highlighter.
_NOT_LEXED = ("odd-character", "character-constant", "markdown", "python-comment")

# The build that the explanations on the page are about.
_PARTS = ("nvrtc", "cudart", "crt", "cccl", "nvcc")
_VERSIONS = {**dict.fromkeys(_PARTS, "12.9.86"), "cutlass": "4.2.0"}

# A driver's error belongs to loading the code if it is one of these, else to a launch.
_OF_LOADING = (
    "no-binary-for-gpu",
    "unsupported-ptx",
    "invalid-image",
    "not-found",
    "insufficient-driver",
    "driver-mismatch",
    "no-device",
    "library-missing",
    "library-symbol",
    "library-damaged",
    "invalid-device-function",
    "invalid-context",
)
_OF_LINKING = ("device-runtime-missing", "undefined-symbol", "nvlink-alone")

# What stands for a name in braces where the compiler's words alone do not fill it in. `ID.NAME` is for
# one message.
_NOUNS = {
    "lines": "",
    "launch-bounds.bounds": "__launch_bounds__(128)",
    "asm-operand.constraint": "r",
    "type-mismatch.fact": "one into the other",
    "typename-missing.step": "Write `typename A::type y`",
    "typename-missing.fact": "`A::type` depends on a template's parameter, and C++ takes it for a value",
    "literal-suffix.step": "Write 0.0f",
    "literal-suffix.fact": "`0f` is not a number of C++: the suffix f needs a decimal point before it",
    "power.step": "x * x, or pow(x, y), powf(x, y) for float",
    "lambda-capture.fact": "[...]",
    "return-of-a-value.fact": "k is declared void, and cannot return a value",
    "not-constant.fact": "What stands here must be known at compile time, and this value is known only at run time",
    "half-ambiguous.step": "Convert the other operand, __half(x), or calculate in float: float(x) of the __half",
    "asm-unparsed.near": "%f2",
    "name-of-numba.name": ".grid",
    "name-of-numba.right": "`(blockIdx.x * blockDim.x + threadIdx.x)`",
    "atomic-type.types": "long long *, int",
    "atomic-type.step": "Write `atomicAdd((unsigned long long*)(p), (unsigned long long)(v))`: it has the same bits",
    "macro-of-option.macro": "SIZE",
    "macro-of-option.value": "`1 2`",
    "conditional-types.step": "`c ? a : __half(b)`",
    "conditional-types.first": "__half",
    "conditional-types.second": "float",
    "operands-incompatible.first": "float*",
    "operands-incompatible.second": "int",
    "several-conversions.type": "__half",
    "no-conversion.given": "float*",
    "no-conversion.wanted": "float4",
    "no-conversion.step": "To read memory as float4, write *reinterpret_cast<float4*>(pointer)",
    "no-overload.fact": "The versions of __shfl_down_sync are declared with 4 parameters, and this call gives 2 arguments",
    "no-overload.step": "Call it as one of the versions that the error lists",
    "no-operator.fact": "`[]` is not defined for these types: float4 [ int ]",
    "no-operator.step": "Use its members: .x, .y, .z, .w",
    "argument-count.fact": "powf takes 2 arguments (float x, float y), and this call gives 1",
    "argument-count.step": "Call it as powf(x, y)",
    "asm-clobber.register": "eax",
    "const-write.fact": "`const float* x` is const (line 1)",
    "const-write.step": "Remove const in line 1, or write to another variable",
    "const-object.function": "P::get",
    "subscript.fact": "Only a pointer or an array has elements, and this expression is of type float",
    "subscript.step": "Index a matrix that is passed as one pointer by x[row * width + column]",
    "integers-only.fact": "`%` is for integers",
    "integers-only.step": "Use fmodf(a, b) for float, or fmod(a, b) for double",
    "member-of-pointer.fact": "`.` reads a member of an object, and p is a pointer (P *)",
    "member-of-pointer.step": "Write p->a, or p[i].a for one element",
    "arrow-on-object.type": "P",
    "incomplete-type.type": "P",
    "dereference.type": "float",
    "outside-a-loop.word": "break",
    "directive-alone.text": "#endif",
    "directive-text.text": "if i is out of range",
    "directive-text.included": "",
    "wmma-call.fact": "The fragment holds half, and the pointer is float*",
    "wmma-call.step": "Pass a pointer to half",
    "keyword-as-name.fact": "`new` is a keyword of C++, and cannot be a name",
    "keyword-as-name.step": "Use another name, such as new_",
    "vector-literal.fact": "(float4)(1, 2, 3, 4)",
    "vector-literal.step": "Write make_float4(1, 2, 3, 4)",
    "call-of-no-function.fact": "`y` is no function, and ( ) calls one",
    "call-of-no-function.step": "Index it by brackets: y[i]",
    "ambiguous-call.name": "max",
    "ambiguous-call.types": "int, unsigned long long",
    "operator-removed.given": "-D__CUDA_NO_HALF_OPERATORS__",
    "operator-of-struct.type": "cuFloatComplex",
    "operator-of-struct.operator": "*",
    "operator-of-struct.step": "Write cuCmulf(a, b), or use cuda::std::complex",
    "whole": "nvcuda::wmma",
    "namespace-inside.word": "wmma",
    "name-inside.identifier": "matrix_a",
    "name-inside.whole": "nvcuda::wmma::matrix_a",
    "namespace-member-elsewhere.scope": "cooperative_groups",
    "namespace-member-elsewhere.member": "reduce",
    "namespace-member-elsewhere.header": "cooperative_groups/reduce.h",
    "macro": "BLOCK",
    "macro-value.fact": "BLOCK is a macro, and line 1 defines it as `256;`: the semicolon becomes part of this line",
    "macro-value.step": "Write `#define BLOCK 256`",
    "brace-unbalanced.fact": "Line 4 is indented no further than line 2, whose { is still open",
    "brace-unbalanced.step": "Add a } before line 4",
    "typename-wanted.name": "A<T>::type",
    "name-inside.where": "a header that the source includes",
    "comma-in-index.first": "i",
    "comma-in-index.second": " j",
    "missing-return.function": "The function",
    "undefined-symbol.where": "",
    "doubled-braces.fact": "{{",
    "comment-for-division.fact": "line 2 ends behind `n`",
    "argument-not-deduced.function": "tex2D",
    "identifier-in-header.found": "curand_uniform.h",
    "identifier-in-header.which": ", which <curand_kernel.h> includes",
    "identifier-in-header.include": "curand_kernel.h",
    "folder": "/path/to/include",
    "header-there.header": "vector_types.h",
    "header-renamed.header": "cub/block_reduce.cuh",
    "header-renamed.names": "<cub/block/block_reduce.cuh>",
    "header-renamed.first": "<cub/block/block_reduce.cuh>",
    "asm-arguments.mismatch": "mov",
    "not-constant.step": "Use a constexpr variable, a template parameter, or a macro of the options (-DN=64)",
    "parameter": "A",
    "python-value.text": "tensor(4, device=0)",
    "placeholder.fact": "{{ scale }}",
    "return-of-a-value.step": "Write the value to an array that is a parameter",
    "shared-without-size.type": "float",
    "unparsed.fact": "`x[0]` and `2` stand side by side, and nothing joins them",
    "unparsed.step": "Put a comma, a semicolon or an operator between them, or remove one",
    "repaired.fact": "`;` is missing behind `1` in line 2",
    "repaired.step": "Write `;` there",
    "specifier-unknown.fact": "`device` stands before a type or a name, and nothing that was read before this line declares it",
    "specifier-unknown.step": "Remove it",
    "changed.fact": "atomicAdd takes `&x[0]` as argument 1, and no `x[0]`",
    "changed.step": "Write `atomicAdd(&x[0], 1.0f)`",
    "macro-of-option.step": "Give it a value that fits this line, or another name",
    "identifier-removed.identifier": "__shfl_down",
    "identifier-removed.step": "Write __shfl_down_sync(0xffffffff, ...)",
    "wmma-fragment.step": "Change the shape, the element type, or the architecture",
    "radix-sort-key.type": "your struct",
    "kernel-argument.type": "numpy.ndarray",
    "arch": "this architecture",
    "std": "20",
    "given_std": "an older one",
    "feature": "This instruction or feature",
    "cp-async-size.given": "another number",
    "given": "an older one",
    "found": "the error names both versions",
    "identifier": "This name",
    "instead": "Include the one header that you use",
    "instruction": "This instruction",
    "instruction-needs-suffix.given": "one without it",
    "int128.flag": "`-device-int128` (or `-device-float128`)",
    "int128.what": "integer and floating-point",
    "identifier-declared-in.header": "the header that the error names",
    "header": "The header",
    "kernel": "the kernel",
    "leak": "the `-I` that leads to them",
    "library": "cute",
    "limit": "fewer",
    "one-letter-macro.given": "the error names it",
    "needs": "a newer one",
    "nvrtc": "NVRTC 12.9",
    "operator": "+",
    "option": "This option",
    "reason": "the error has the reason.",
    "size": "more bytes than a launch can pass",
    "space": "device",
    "step": "The error has the command that installs what fits.",
    "umbrella": "cub/cub.cuh",
    "what": "a package of the toolkit",
    "where": "function call",
    "count": "few",
    "why": "which is missing or of another version",
    "wmma-fragment.fact": "there are 16x16x16, 32x8x16 and 8x32x16 of half, and others of other types",
    "wmma-beyond-arch.identifier": "nvcuda",
    "function": "This function",
    "false": "`N % 4 == 0`",
    "known": ": N is 5",
    "static-assertion.where": "Line 3 gives it: change it there, for example so that N is 4",
    "header-of-another-project.row": "part of another project: the error names it, and says what to do",
    "instruction-needs-suffix.row": "only with an architecture's suffix, as in `sm_90a`",
    "library-missing.row": "the error names the package",
    "library-missing.library": "A library",
    "library-missing.name": "",
    "library-missing.version": "",
    "other": "a double",
    "python-syntax.written": "for i in",
    "name-of-elsewhere.about": "a name of NumPy's or of another library's",
    "name-misspelt.why": "",
    "directive-unclosed.text": "#ifdef NAME",
    "string-across-lines.fact": "A string must end on the line where it begins. In a Python string \\n becomes a real line end",
    "string-across-lines.step": "Write the source as a raw string, r'...', or double the backslash",
    "host-api.header": "cuda_runtime_api.h",
    "host-api-of-a-copy.header": "cuda_runtime_api.h",
    "std-replaced.why": "",
    "host-call-of-std.why": "",
    "template-arguments.fact": "A template was given other arguments than it is declared with.",
    "template-arguments.step": "Give as many, in this order, a type for class and a constant for a value.",
    "directive-unknown.step": "Begin a comment with //.",
    "directive-unknown.word": "name",
    "template-deduction.name": "the function",
    "template-deduction.missing": "T",
    "template-of-two-types.fact": "No version of the template most fits this call, whose arguments have the types int, float",
    "template-of-two-types.step": "Convert the arguments to one type, or name the type: `most<float>(1, 2.5f)`",
    "right": "`most<float>(1, 2.5f)`",
    "cpp20.given": "the options have an older standard",
    "value": "this",
    "about": "part of another project, which the error names",
    "error-code.row": "the error has a sentence for each name.",
    "code": "An error's name",
    "compiler": "NVRTC",
    "nvcc": "nvcc",
    "fact": "The error says what was declared and what was given",
    "file": "kernel.cu",
    "fix": "",
    "member": "vector",
    "name": "A template or variable",
    "near": "threadIdx",
    "also": "",
    "needed": "",
    "shown": "A character",
    "symbol": "a symbol",
    "text": "f<float>",
    "type": "`__half`",
    "wanted": "Another type",
    "whence": "",
    "word": "A name",
    "no-access.name": "The member",
    "odd-character.name": "often a quote or a blank from a document",
    "type-mismatch.given": "one of another type",
    "declared-elsewhere-in-source.where": "is declared below, in a namespace, or in a scope that has ended",
    "declared-elsewhere-in-source.step": "Move the declaration, or write the name in full",
    "header-host-only.row": "what the error names",
    "std-replaced.instead": "what the error names",
    "host-call-of-std.instead": "what the error names",
    "name-of-elsewhere.instead": "what the error names",
    "word-of-elsewhere.about": "a name of C's or of another language's",
    "word-of-elsewhere.instead": "what the error names",
    "scope-of-elsewhere.instead": "what the error names",
    "odd-character.step": "Type a plain one in its place",
    "member-unknown.step": "Use a member that it declares.",
    "name-expression.step": "Spell it as C++ would at the end of the file.",
    "type-mismatch.step": "Convert it, or change the declaration",
}


def page(kind: str) -> str:
    """Return a section for each message of a kind: compile, link, load or launch; or the table of further codes."""
    if kind == "codes":
        return _codes()
    tested = provoked.coverage()
    seen = dict(_seen())
    known = [message for message in MESSAGES if kind_of(message) == kind]
    return "\n\n".join(_section(message, tested, seen) for message in known)


def kind_of(message: KnownMessage) -> str:
    """Say when a message appears: while something is compiled, linked, loaded or launched."""
    if message.id in _OF_LOADING:
        return "load"
    if message.id in _OF_LINKING or message.id.startswith("link-"):
        return "link"
    words = re.search("CUDA_ERROR|cudaError", message.pattern.pattern)
    if words or message.id == "arch-conditional-trap":
        return "launch"
    return "compile"


def _section(known, tested, seen) -> str:  # type: ignore[no-untyped-def]
    says, source, language, how = seen.get(known.id, ("", "", "", ""))
    heading = _heading(says or _explanation(known, says, source).partition(".")[0])
    parts = [
        f"({known.id})=\n## {heading}",
        _explanation(known, says, source),
        _also(known, heading),
    ]
    if source:
        shown = "\n".join(source.splitlines()[:_LINES_SHOWN])
        is_lexed = known.id not in _NOT_LEXED
        language = language if is_lexed else "text"
        parts.append(f"A source that provokes it{how}:\n\n````{language}\n{shown}\n````")
    kind = {
        "provoked": "A test provokes it from a real compiler, linker or driver library.",
        "as reported": "It is recognised in the words in which others reported it.",
    }[tested[known.id]]
    parts.append(
        f"`rtcompile explain {known.id}` prints this. Seen with {known.since} and later. {kind}"
    )
    return "\n\n".join(filter(None, parts))


def _also(known: KnownMessage, heading: str) -> str:
    """Name the other spellings of a driver's error, by which its readers search."""
    pattern = known.pattern.pattern
    if kind_of(known) not in ("load", "launch") or re.search(r"[(\\]", pattern):
        return ""
    plain = heading.replace("\\", "")
    others = [f"`{text}`" for text in pattern.split("|") if text not in plain]
    return f"Also printed as {', '.join(others)}." if others else ""


def _codes() -> str:
    """Return a table of the error codes that no message explains at more length."""
    rows: dict[str, list[str]] = {}
    for name, text in TABLES["codes"].items():
        prefix = "CUDA_ERROR_" if name.isupper() else "cudaError"
        whole = name if name.startswith(("NVRTC", "NVJITLINK")) else prefix + name
        rows.setdefault(text, []).append(f"`{whole}`")
    lines = ["| error | cause | what to do |", "|---|---|---|"]
    for text, names in rows.items():
        cells = ", ".join(names), *map(_plain, text.split(" | ", 1))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _heading(says: str) -> str:
    """Return the compiler's words as a heading, without a file's name and a driver's class."""
    text = re.sub(
        r"^(?:\w*Error: )(?=[Cc][Uu][Dd][Aa])|^\S+?[:(]\d+\S* (?:fatal )?error: ", "", says.strip()
    )
    text = " ".join(text.split())
    if len(text) > 90:
        text = text[:90].rsplit(" ", 1)[0] + " …"
    return _plain(text)


def _explanation(known: KnownMessage, says: str, source: str) -> str:
    """Return the hint as a build of the page's toolkit would show it."""
    context = BuildContext(arch=Arch.parse("sm_90a"), versions=_VERSIONS, source=source)
    found = explain(says, context) if says else None
    if found and found[0].id == known.id:
        return _plain(found[1])
    texts = [known.cause, known.fix]
    for name in set(re.findall(r"\{(\w+)\}", f"{known.cause} {known.fix}")):
        noun = _NOUNS.get(f"{known.id}.{name}", _NOUNS.get(name))
        if noun is None:
            raise KeyError(f"_NOUNS has no words for {{{name}}} of the message {known.id}")
        texts = [text.replace(f"{{{name}}}", noun) for text in texts]
    return _plain(" ".join(texts).replace("{{", "{").replace("}}", "}").strip())


def _seen() -> Iterator[tuple[str, tuple[str, str, str, str]]]:
    # The first case of a row is the plainest; dict() keeps the last of equal keys.
    for param in reversed([*provoked.BY_NVRTC, *provoked.BY_NVCC]):
        row, case = param.values
        options = [f"for `{case.arch}`"] if not case.bare else []
        if case.options:
            options.append(f"with the options `{_code(case.options)}`")
        if case.names:
            options.append("with the name expression " + ", ".join(f"`{n}`" for n in case.names))
        if case.toolkit not in ("12", "13"):
            options.append(f"with the toolkit {case.toolkit}")
        yield (
            row,
            (case.message, case.source, "cuda", f" ({', '.join(options)})" if options else ""),
        )
    for row, says, _, (_, _, given, options) in provoked.BY_NVJITLINK:
        ptx = given if isinstance(given, str) and given.startswith(".version") else ""
        yield row, (says, ptx, "text", f" (PTX, linked with `{options}`)" if options else "")
    provokable = {param.values[0] for param in (*provoked.BY_NVRTC, *provoked.BY_NVCC)}
    for says, row, _ in provoked.AS_REPORTED:
        if row not in provokable:
            yield row, (" ".join(says.split()), "", "", "")


def _code(text: str) -> str:
    return " ".join(text.replace("`", "'").split())


def _plain(text: str) -> str:
    """Return a text so that Markdown shows it as it is, but for what it has in backquotes."""
    return "".join(
        part if part.startswith("`") else re.sub(r"([<*_#$\[\]\\])", r"\\\1", part)
        for part in re.split(r"(`[^`]*`)", text)
    )

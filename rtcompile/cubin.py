"""Reads machine code: a cubin's kernels and symbols, their C++ names, and why one is missing. Needs no GPU.

A cubin is a plain ELF64 file with NVIDIA's own sections: ``.text.K`` is kernel K's code, ``.nv.info`` and
``.nv.info.K`` hold attributes (undocumented; those below were compared with the log of ``-Xptxas -v``, CUDA 12.4 to
13.5). This module checks the code of every build, without the catalogue of messages, which takes 40 ms to import.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rtcompile.errors import public, warn
from rtcompile.named import NamedTuple
from rtcompile.request import cxx
from rtcompile.request.object_code import KERNEL_MARKS, ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.request.values import Arch, one_of

_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")

_EM_CUDA = 190
_SHT_NOBITS = 8
_STT_FUNC = 2
_STO_CUDA_ENTRY = 0x10

# Attributes of .nv.info: a symbol's index and a number.
_MIN_STACK_SIZE = 0x12  # the kernel's frame and those of its callees
_REGISTERS = 0x2F
# Attributes of .nv.info.K
_MAX_THREADS = 0x05
_REQUIRED_THREADS = 0x10
_PARAMETER = 0x17
_PARAMETER_BYTES = 0x19
_LARGE_PARAMETER = 0x45  # kernels with more than 4 KB of parameters

# From 9.0 on, static shared memory begins with these bytes, which the system uses.
_RESERVED_SHARED = 1024


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A ``__global__`` function by its symbol; `types.KernelReport` explains the fields."""

    name: str
    registers: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0
    constant_bytes: int = 0
    parameters: tuple[tuple[int, int], ...] = ()
    parameter_bytes: int = 0
    max_threads: int | None = None
    required_threads: tuple[int, int, int] | None = None
    code_bytes: int = 0
    instructions: int | None = None


class Symbol(NamedTuple):
    """A symbol and its `section`, "" if it is undefined."""

    name: str
    size: int
    section: str
    is_kernel: bool


class Cubin(NamedTuple):
    """One cubin."""

    arch: Arch
    kernels: tuple[CompiledKernel, ...]


def read(code: bytes) -> Cubin:
    """Read a cubin; raise ValueError if `code` is not one, or is truncated."""
    elf = _Elf(code)
    return Cubin(elf.arch(), tuple(_kernels(elf)))


def read_symbols(code: bytes) -> tuple[Symbol, ...]:
    """Read a cubin's symbols that have a name; raise ValueError as `read` does."""
    return tuple(symbol for symbol in _Elf(code).symbols() if symbol.name)


class _Elf:
    """Sections by name; every access is checked against the file's end."""

    def __init__(self, code: bytes) -> None:
        if code[:5] != b"\x7fELF\x02" or len(code) < _HEADER.size:
            raise ValueError("not a cubin: no 64-bit ELF header")
        self.code = code
        (_, machine, _, _, segments, sections, self.flags, _, segment_size, segment_count,
         section_size, section_count, names) = _HEADER.unpack_from(code)  # fmt: skip
        if machine != _EM_CUDA:
            raise ValueError(f"not a cubin: an ELF file for machine {machine}, not CUDA's 190")
        if section_size != _SECTION.size or names >= section_count:
            raise ValueError("not a whole cubin: its section headers are inconsistent")
        self._slice(segments, segment_size * segment_count)
        contents = self._slice(sections, section_size * section_count)
        self._headers = list(_SECTION.iter_unpack(contents))
        strings = self._contents(names)
        self.names = [_string(strings, header[0]) for header in self._headers]
        self._index = {name: index for index, name in enumerate(self.names)}

    def _slice(self, offset: int, size: int) -> bytes:
        if offset + size > len(self.code):
            raise ValueError(
                f"not a whole cubin: {len(self.code)} bytes, and its headers refer to byte {offset + size}"
            )
        return self.code[offset : offset + size]

    def _contents(self, index: int) -> bytes:
        _, kind, _, _, offset, size, *_ = self._headers[index]
        return b"" if kind == _SHT_NOBITS else self._slice(offset, size)

    def section(self, name: str) -> bytes:
        """Return a section's bytes; none if it does not exist."""
        index = self._index.get(name)
        return b"" if index is None else self._contents(index)

    def size(self, name: str) -> int:
        """Return a section's size; sections of shared memory have one without bytes in the file."""
        index = self._index.get(name)
        return 0 if index is None else int(self._headers[index][5])

    def shared_bytes(self, kernel: str) -> int:
        """Return the size of a kernel's static shared memory."""
        reserved = _RESERVED_SHARED if self.arch().major >= 9 else 0
        return max(0, self.size(f".nv.shared.{kernel}") - reserved)

    def symbols(self) -> Iterator[Symbol]:
        """Yield the symbols in the order of their indices; some have no name."""
        contents, strings = self.section(".symtab"), self.section(".strtab")
        if len(contents) % _SYMBOL.size:
            raise ValueError("not a whole cubin: section .symtab ends within a record")
        for start, info, other, section, _, size in _SYMBOL.iter_unpack(contents):
            inside = self.names[section] if 0 < section < len(self.names) else ""
            is_entry = info & 15 == _STT_FUNC and other & _STO_CUDA_ENTRY
            yield Symbol(_string(strings, start), size, inside, bool(is_entry and section))

    def arch(self) -> Arch:
        """Return the architecture; from ABI 8 on only ptxas's note contains the suffix."""
        note = re.search(rb"-arch[ =](sm_\d+[af]?)", self.section(".note.nv.tkinfo"))
        if note is not None:
            return Arch.parse(note[1].decode())
        modern = self.code[8] >= 8
        number = self.flags >> 8 & 0xFF if modern else self.flags & 0xFF
        specific = self.flags & (0x8 if modern else 0x800)
        major, minor = divmod(number, 10)
        return Arch(major, minor, "a" if specific else "")


def _kernels(elf: _Elf) -> Iterator[CompiledKernel]:
    common: dict[tuple[int, int], int] = {}
    for attribute, value in _attributes(elf.section(".nv.info")):
        if len(value) == 8:
            symbol, number = struct.unpack("<II", value)
            common[symbol, attribute] = number
    has_long_instructions = elf.arch().major >= 7
    entries = [(index, each.name) for index, each in enumerate(elf.symbols()) if each.is_kernel]
    for index, name in entries:
        parameters: list[tuple[int, int, int]] = []
        parameter_bytes = 0
        max_threads: int | None = None
        required_threads: tuple[int, int, int] | None = None
        for attribute, value in _attributes(elf.section(f".nv.info.{name}")):
            if attribute == _PARAMETER and len(value) == 12:
                _, ordinal, offset, packed = struct.unpack("<IHHI", value)
                parameters.append((ordinal, offset, packed >> 18))
            elif attribute == _LARGE_PARAMETER and len(value) == 12:
                parameters.append(struct.unpack("<4xHHI", value))
            elif attribute == _PARAMETER_BYTES and len(value) == 2:
                (parameter_bytes,) = struct.unpack("<H", value)
            elif attribute == _MAX_THREADS and len(value) == 12:
                x, y, z = struct.unpack("<III", value)
                max_threads = x * y * z
            elif attribute == _REQUIRED_THREADS and len(value) == 12:
                required_threads = struct.unpack("<III", value)
        yield CompiledKernel(
            name=name,
            registers=common.get((index, _REGISTERS), 0),
            stack_bytes=common.get((index, _MIN_STACK_SIZE), 0),
            shared_bytes=elf.shared_bytes(name),
            constant_bytes=elf.size(".nv.constant3"),
            parameters=tuple((offset, size) for _, offset, size in sorted(parameters)),
            parameter_bytes=parameter_bytes,
            max_threads=max_threads,
            required_threads=required_threads,
            code_bytes=elf.size(f".text.{name}"),
            instructions=_instructions(elf.section(f".text.{name}"))
            if has_long_instructions
            else None,
        )


def _instructions(code: bytes) -> int:
    """Count instructions of 16 bytes up to the last one that is not a NOP (opcode 0x918, undocumented)."""
    count = len(code) // 16
    while (
        count and int.from_bytes(code[count * 16 - 16 : count * 16 - 14], "little") & 0xFFF == 0x918
    ):
        count -= 1
    return count


def _attributes(contents: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes of a .nv.info section: format, attribute, then a value or its size."""
    at = 0
    while at + 4 <= len(contents):
        form, attribute, short = struct.unpack_from("<BBH", contents, at)
        if form not in (1, 2, 3, 4):
            raise ValueError(f"an unknown kind of cubin: attribute {attribute:#x} of form {form}")
        size = short if form == 4 else 0
        value = contents[at + 4 : at + 4 + size] if form == 4 else contents[at + 2 : at + 4]
        if form == 4 and len(value) < size:
            raise ValueError("not a whole cubin: an attribute runs past its section")
        yield attribute, value
        at += 4 + size


def _string(strings: bytes, start: int) -> str:
    end = strings.find(b"\0", start)
    if end < 0:
        raise ValueError("not a whole cubin: a name without an end")
    return strings[start:end].decode("utf-8", "replace")


# --- Warnings about code that compiled silently and does not run as intended ----------------------

_TRAPS = re.compile(
    rb"Attempting to use [ -~]{1,80}? without [ -~]{1,60}"
    rb"|Arch conditional MMA instruction used without targeting [ -~]{1,60}"
)
_STATIC_SHARED_LIMIT = 48 << 10
# CUDA 13.5 lets a kernel of sm_90 have 227 KB: its ptxas checks the size, and an H200 with driver 580 loads and runs
# it. Such a cubin names its release; those of CUDA 12 do not.
_RELEASE = b"Cuda compilation tools, release "


def check_code(code: bytes, arch: Arch) -> tuple[str, ...]:
    """Warn of traps for instructions that the architecture lacks, and of too much static shared memory."""
    warnings = []
    # CuTe compiles each instruction only if its feature macro is set; otherwise the call prints this
    # message and aborts.
    if found := sorted({match[0].decode("ascii") for match in _TRAPS.finditer(code)}):
        specific = Arch(arch.major, arch.minor, "a")
        advice = (
            f"compile for {specific}" if not arch.suffix and arch.major >= 9 else "another atom"
        )
        warnings.append(
            f"The code contains traps instead of instructions: CuTe or CUTLASS reports "
            f"{', '.join(found[:3])!r}. {arch} lacks the required instructions: {advice}."
        )
    with suppress(ValueError):  # it is no cubin
        elf = _Elf(code)
        for section in elf.names:
            kernel = section.removeprefix(".nv.shared.")
            size = 0 if kernel == section else elf.shared_bytes(kernel)
            if size > _STATIC_SHARED_LIMIT and _RELEASE not in code:
                warnings.append(
                    f"{kernel} has {size} bytes of static shared memory; a kernel may have "
                    f"{_STATIC_SHARED_LIMIT}. Make it dynamic (extern __shared__) and set "
                    "max_dynamic_shared_size_bytes."
                )
    return tuple(warnings)


# --- The format of a linker's input ---------------------------------------------------------------

_MAGICS = (
    (b"\x50\xed\x55\xba", "fatbin"),
    (b"\xed\x43\x4e\x7f", "ltoir"),
    (b"!<arch>\n", "archive"),
    (b"!<thin>\n", "archive"),
)
PTX = re.compile(rb"(?:\s|//[^\n]*\n|/\*.*?\*/)*\.version\s+(\d+\.\d+)\s", re.DOTALL)


def kind_of(data: bytes) -> str | None:
    """Return the format of the bytes: "cubin", "object", "fatbin", "ltoir", "archive", "ptx", or None."""
    if data.startswith(b"\x7fELF") and len(data) > 20:
        return "cubin" if int.from_bytes(data[18:20], "little") == _EM_CUDA else "object"
    kinds = (kind for magic, kind in _MAGICS if data.startswith(magic))
    return next(kinds, "ptx" if PTX.match(data) else None)


# --- C++ names of mangled symbols -----------------------------------------------------------------

# Matches a static variable of a function.
_LOCAL = re.compile(r"_ZZ(?P<function>.*)E(?P<length>\d+)(?P<name>[A-Za-z_]\w*)")


@public
def symbols(code: ObjectCode, kind: str = "kernel") -> dict[str, str]:
    """Return what `ObjectCode.symbols` returns."""
    one_of("kind", kind, ("kernel", "variable"))
    if code.kind not in ("cubin", "ptx"):
        return {}
    found = kernel_symbols(code.code) if kind == "kernel" else _variables(code.code)
    return {symbol: cpp_name(symbol) for symbol in found}


def cpp_name(symbol: str) -> str:
    """Return a symbol's C++ name with its namespaces; a symbol that is not mangled is its own."""
    if local := _LOCAL.fullmatch(symbol):
        function = "::".join(names_in(f"_Z{local['function']}")) or local["function"]
        return f"{function}()::{local['name'][: int(local['length'])]}"
    return "::".join(names_in(symbol)) or symbol


def simple_name(symbol: str) -> str:
    """Return the name in a mangled symbol, without namespaces: ``k`` of ``_ZN2ns1kEPf``."""
    return (names_in(symbol) or [symbol])[-1]


def demangled(symbol: str) -> str:
    """Return a symbol's declaration, ``ns::k(float*)``; its simple name without a C++ runtime."""
    if not symbol.startswith("_Z"):
        return symbol
    import ctypes

    try:
        runtime = ctypes.CDLL("libstdc++.so.6")
        demangle, free = runtime.__cxa_demangle, ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return simple_name(symbol)
    demangle.restype = ctypes.c_void_p
    free.argtypes = [ctypes.c_void_p]
    status = ctypes.c_int()
    text = demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not text or status.value != 0:
        return simple_name(symbol)
    try:
        return ctypes.string_at(text).decode("utf-8", "replace")
    finally:
        free(text)


def names_in(symbol: str) -> list[str]:
    """Return the namespaces and the name in a mangled symbol; none if it is not mangled."""
    if not symbol.startswith("_Z"):
        return []
    rest = symbol[2:].removeprefix("N").removeprefix("L")
    found: list[str] = []
    while match := re.match(r"L?(\d+)", rest):
        end = match.end() + int(match[1])
        found.append(rest[match.end() : end])
        rest = rest[end:]
        if not symbol.startswith("_ZN"):
            break
    # NVRTC puts declarations of unnamed namespaces into a namespace of its own.
    return [name for name in found if not name.startswith(("_INTERNAL_", "_GLOBAL__N_"))]


# --- Why a module lacks a kernel or a variable -----------------------------------------------------

_MOST_LISTED = 10
_PTX_ENTRY = re.compile(r"^(?:\.visible |\.weak )?\.entry ([\w$]+)", re.MULTILINE)
# These have parentheses too, and may appear between __global__ and the kernel's name.
_BOUNDS = re.compile(
    r"__(?:launch_bounds|cluster_dims|maxnreg|block_size)__\s*\((?:[^()]|\([^()]*\))*\)"
)


def absent(
    kind: str, name: str, code: bytes, *, program: str, source: str, lowered: Mapping[str, str]
) -> str:
    """Return why a module has no "kernel" or "variable" of a name: the mistake, the fix, and what it has."""
    symbols = kernel_symbols(code) if kind == "kernel" else _variables(code)
    first, fix = _why(kind, name, symbols, lowered, _in_source(source))
    expressions = {symbol: f"'{expression}'" for expression, symbol in lowered.items()}
    listed = [expressions.get(symbol) or demangled(symbol) for symbol in symbols[:_MOST_LISTED]]
    more = f" and {len(symbols) - _MOST_LISTED} more" if len(symbols) > _MOST_LISTED else ""
    has = f"the {kind}s: {', '.join(listed)}{more}" if symbols else f"no {kind}s."
    return f"{program} has no {kind} {name!r}{first}\n  hint: {fix}\n  It has {has}"


def warn_without_kernels(request: CompileRequest, code: ObjectCode) -> None:
    """Warn if the code of a source with ``__global__`` functions has no kernel.

    A source of device functions or variables has none on purpose, also beside a kernel that is only declared.
    """
    found = _in_source(request.source)
    if any(found.values()) or (found and not _variables(code.code)):
        warn(f"{request.name}: {no_kernels(code, request.source)}")


def no_kernels(code: ObjectCode, source: str) -> str:
    """Return why a cubin or PTX has no kernel; "" if it has one, and for other code."""
    mark = KERNEL_MARKS.get(code.kind)
    if mark is None or mark in code.code:
        return ""
    found = _in_source(source)
    templates = [name for name, is_template in found.items() if is_template]
    if templates:
        return (
            f"The code contains no kernel: {templates[0]!r} is a template, and nothing instantiates "
            f"it. Name the instance: name_expressions=['{templates[0]}<float>']."
        )
    return "The code contains no kernel: " + (
        "those in the source are only declared, or excluded by an #if."
        if found
        else "the source defines no __global__ function."
    )


def kernel_symbols(code: bytes) -> list[str]:
    """Return the symbols of a cubin's or PTX's kernels; none for other code."""
    try:
        return [each.name for each in read_symbols(code) if each.is_kernel]
    except ValueError:
        return _PTX_ENTRY.findall(code.decode("utf-8", "replace"))


def _variables(code: bytes) -> list[str]:
    spaces = (".nv.global", ".nv.constant3")
    try:
        found = read_symbols(code)
    except ValueError:
        return []
    return [each.name for each in found if each.size and each.section.startswith(spaces)]


def _in_source(source: str) -> dict[str, bool]:
    """Return the kernels that a source mentions, and whether each is a template."""
    found = {}
    code = cxx.blanked(source, literals=True, directives=True)
    for declaration in re.split("[;{}]", _BOUNDS.sub("", code)):
        before, mark, after = declaration.partition("__global__")
        words = after.partition("(")[0].split()
        if mark and words and words[-1].isidentifier():  # f<int> is a specialisation
            found[words[-1]] = cxx.has_word(before, ("template",))
    return found


def _why(  # a line for each mistake
    kind: str,
    name: str,
    symbols: Sequence[str],
    lowered: Mapping[str, str],
    in_source: Mapping[str, bool],
) -> tuple[str, str]:
    """Return the end of the message after the missing name, and the fix."""
    plain = name.partition("<")[0].rpartition("::")[2].strip()
    mangled = [symbol for symbol in symbols if simple_name(symbol) == plain and symbol != plain]
    declared = demangled(mangled[0]) if mangled else ""
    is_mangled = f": its {declared} is C++, whose names are mangled"
    if kind == "variable":
        if mangled:
            return (
                is_mangled,
                f"Declare it extern \"C\", or compile with name_expressions=['&{declared}'].",
            )
        return "", _nearest(name, symbols, lowered) or (
            "A variable that no kernel uses, or that is static, may be gone: name it in "
            "name_expressions to keep it."
        )
    if "<" in name:
        given = f"name_expressions has {', '.join(map(repr, lowered))}" if lowered else "none is"
        return (
            f": a C++ name is found only if it is among name_expressions; {given}",
            f"Compile with name_expressions=['{name}'].",
        )
    instances = [symbol for symbol in mangled if "<" in demangled(symbol)]
    if instances:
        known = next((e for e, symbol in lowered.items() if symbol in instances), "")
        ask = f"get_function('{known}')" if known else f"name_expressions=['{name}<float>']"
        return ": it is a template", f"Ask for an instance by its whole name: {ask}."
    if mangled:
        expression = declared.partition("(")[0]
        return (
            is_mangled,
            f"Declare it extern \"C\" __global__, or compile with name_expressions=['{expression}'].",
        )
    if in_source.get(plain):
        return (
            ": it is a template, and nothing instantiates it",
            f"Compile with name_expressions=['{name}<float>'] (its real arguments) and ask for "
            "that name.",
        )
    if plain in in_source:
        fix = "Is it only declared, static, or excluded by an #if?"
        return ", although its source names it", fix
    return "", _nearest(name, symbols, lowered) or (
        "Ask for one of those that it has." if symbols else "Does the source define it?"
    )


def _nearest(name: str, symbols: Sequence[str], lowered: Mapping[str, str]) -> str:
    import difflib

    names = [*map(simple_name, symbols), *lowered]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"Is {close[0]!r} meant?" if close else ""

"""Reports a kernel's registers, memory, spills and occupancy from its code, without a GPU."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from rtcompile import Arch, ObjectCode
from rtcompile.cubin import Elf
from rtcompile.errors import InvalidRequest, public, shown
from rtcompile.named import NamedTuple
from rtcompile.request.values import text, whole
from rtcompile.styling import as_html, table

# --- Occupancy: how many blocks of a kernel run on one multiprocessor ------------------------------

THREADS_MAX = 1024  # in a block
WARP = 32
_KIB = 1024
_REGISTERS = 64 * _KIB  # of a multiprocessor, and of the largest block except on 5.3 and 6.2
_REGISTER_UNIT = 256  # allocated to a warp at once


class DeviceLimits(NamedTuple):
    """The resources of a multiprocessor: warps, blocks, registers, shared memory in bytes."""

    warps: int
    blocks: int
    shared: int
    block_shared: int  # static and dynamic together, after opting in
    reserved_shared: int  # bytes of each block that the system uses
    shared_unit: int  # bytes that are allocated at once
    block_registers: int
    partitions: int  # each with its share of the registers


# Warps, blocks, and KiB of shared memory, of a multiprocessor and of a block: "Technical
# Specifications per Compute Capability" in the CUDA programming guide, and CUDA 13.0's cuda_occupancy.h.
_OF_CAPABILITY = {
    **dict.fromkeys([(5, 0), (5, 3), (6, 0), (6, 2)], (64, 32, 64, 48)),
    **dict.fromkeys([(5, 2), (6, 1)], (64, 32, 96, 48)),
    **dict.fromkeys([(7, 0), (7, 2)], (64, 32, 96, 96)),
    (7, 5): (32, 16, 64, 64),
    (8, 0): (64, 32, 164, 163),
    (8, 6): (48, 16, 100, 99),
    (8, 7): (48, 16, 164, 163),
    (8, 9): (48, 24, 100, 99),
    **dict.fromkeys([(9, 0), (10, 0), (10, 3)], (64, 32, 228, 227)),
    **dict.fromkeys([(10, 1), (11, 0)], (48, 24, 228, 227)),
    **dict.fromkeys([(12, 0), (12, 1)], (48, 24, 100, 99)),
}


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The blocks that run at the same time on a multiprocessor.

    Attributes
    ----------
    block : int
        Threads in a block.
    blocks : int
        Blocks on one multiprocessor; 0 if not one fits.
    share : float
        Resident warps divided by the maximum.
    limited_by : tuple of str
        The resources that another block would lack: "warps", "blocks", "registers", "shared
        memory"; or "max threads" if the kernel cannot be launched with such a block.
    """

    block: int
    blocks: int
    share: float
    limited_by: tuple[str, ...]


def limits_of(arch: Arch) -> DeviceLimits | None:
    """Return the limits of an architecture's devices, None for one that is not known."""
    capability = (arch.major, arch.minor)
    if capability not in _OF_CAPABILITY:
        return None
    warps, blocks, shared, block = _OF_CAPABILITY[capability]
    # From 8.0 on the system uses 1 KiB of each block, and the allocation units are smaller.
    reserved, unit = (_KIB, 128) if arch.major >= 8 else (0, 256)
    registers = _REGISTERS // 2 if capability in ((5, 3), (6, 2)) else _REGISTERS
    partitions = 2 if capability == (6, 0) else 4
    return DeviceLimits(
        warps, blocks, shared * _KIB, block * _KIB, reserved, unit, registers, partitions
    )


def occupancy(limits: DeviceLimits, *, block: int, registers: int, shared: int) -> Occupancy:
    """Compute the occupancy of a kernel; `shared` is static and dynamic shared memory in bytes."""
    if not 1 <= block <= THREADS_MAX:
        raise InvalidRequest(f"a block has 1 to {THREADS_MAX} threads, not {block}")
    warps = _round_up(block, WARP) // WARP
    fits = {"warps": limits.warps // warps, "blocks": limits.blocks}
    if registers:
        of_warp = _round_up(registers * WARP, _REGISTER_UNIT)
        partitions = limits.partitions
        fits["registers"] = _REGISTERS // partitions // of_warp * partitions // warps
        # The hardware rejects a block if its warps, rounded up to all partitions, exceed the registers of a block.
        if of_warp * _round_up(warps, partitions) > limits.block_registers:
            fits["registers"] = 0
    if used := _round_up(shared + limits.reserved_shared, limits.shared_unit):
        most = limits.block_shared + limits.reserved_shared
        fits["shared memory"] = limits.shared // used if used <= most else 0
    blocks = min(fits.values())
    limited_by = tuple(name for name, most in fits.items() if most == blocks)
    return Occupancy(block, blocks, blocks * warps / limits.warps, limited_by)


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


# --- The report of a build's kernels ---------------------------------------------------------------

REPORT_SPILLS = "-Xptxas=-v"  # the option with which ptxas reports spills
SHARED_MAX = 1 << 30  # bytes; sizes that do not fit a block may be given too


@dataclass(frozen=True, slots=True)
class Spills:
    """Registers that are kept in local memory.

    Attributes
    ----------
    stores, loads : int
        Bytes that each thread stores and loads.
    """

    stores: int
    loads: int


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One kernel.

    Attributes
    ----------
    name : str
        Its name expression, ``"f<float>"``, or its symbol.
    symbol : str
        Its name in the code.
    registers : int
        Registers of each thread.
    stack_bytes, shared_bytes, constant_bytes, parameter_bytes, code_bytes : int
        Bytes of a thread's local memory with its callees' (recursion and unlinked calls count 0), of a block's
        static shared memory, of the module's ``__constant__`` variables, of the padded parameters, of machine code.
    parameters : tuple of (int, int)
        Offset and size of each parameter, in bytes.
    instructions : int or None
        Instructions without the padding at the end; None before compute capability 7.0, whose instructions share words.
    max_threads : int or None
        Threads in a block that ``__launch_bounds__`` allows.
    required_threads : (int, int, int) or None
        The block that the source fixes, by ``__block_size__`` or ``reqntid``.
    spills : Spills or None
        None if unknown: only the log of ``-Xptxas=-v`` contains them.
    occupancy : Occupancy or None
        At the given block size, or else of the largest block of highest occupancy, as
        ``cuOccupancyMaxPotentialBlockSize`` finds it. None for an architecture with unknown limits.
    """

    name: str
    symbol: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    constant_bytes: int
    parameter_bytes: int
    code_bytes: int
    parameters: tuple[tuple[int, int], ...]
    instructions: int | None
    max_threads: int | None
    required_threads: tuple[int, int, int] | None
    spills: Spills | None = None
    occupancy: Occupancy | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The kernels of one piece of code; `str` gives a table.

    Attributes
    ----------
    arch : Arch
        The architecture that the code was compiled for.
    kernels : tuple of KernelReport
        The kernels in the code, or the requested one.
    """

    arch: Arch
    kernels: tuple[KernelReport, ...] = ()

    @classmethod
    @public
    def of(
        cls,
        code: ObjectCode | bytes,
        kernel: str | None = None,
        block: int | None = None,
        dynamic_shared: int = 0,
    ) -> Report:
        """Return the report on some code, or on one of its kernels; see `ObjectCode.report`."""
        data, log = code, ""
        names: dict[str, str] = {}
        if isinstance(code, ObjectCode):
            data, log = code.code, code.build.log
            names = {symbol: name for name, symbol in code.lowered_names.items()}
        if not isinstance(data, bytes):
            problem = f"not {shown(code)}"
            raise InvalidRequest(f"code must be an ObjectCode or a cubin's bytes, {problem}")
        kernel = None if kernel is None else text("kernel", kernel)
        block = None if block is None else whole("block", block, 1, THREADS_MAX)
        dynamic_shared = whole("dynamic_shared", dynamic_shared, 0, SHARED_MAX)
        spills = {
            match["symbol"]: Spills(int(match["stores"]), int(match["loads"]))
            for match in _VERBOSE.finditer(log)
        }
        try:
            arch, every = kernels_of(data)
        except ValueError as error:
            raise InvalidRequest(f"only a cubin contains its kernels' resources: {error}") from None
        limits, kernels = limits_of(arch), []
        for found in every:
            name = names.get(found.symbol, found.symbol)
            if kernel not in (None, found.symbol, name):
                continue
            at_block = None
            if limits is not None:
                shared = found.shared_bytes + dynamic_shared
                at_blocks = (
                    occupancy(limits, block=threads, registers=found.registers, shared=shared)
                    for threads in (_possible_blocks(found) if block is None else [block])
                )
                at_block = max(at_blocks, key=lambda one: (one.block * one.blocks, one.block))
                if at_block.block > (found.max_threads or THREADS_MAX):
                    at_block = Occupancy(at_block.block, 0, 0.0, ("max threads",))
            known = spills.get(found.symbol)
            kernels.append(replace(found, name=name, spills=known, occupancy=at_block))
        if kernel is not None and not kernels:
            there = ", ".join(names.get(found.symbol, found.symbol) for found in every)
            raise InvalidRequest(f"no kernel {kernel!r} in the code; it has {there or 'none'}")
        return cls(arch, tuple(kernels))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {"arch": str(self.arch), "kernels": [asdict(kernel) for kernel in self.kernels]}

    @property
    def title(self) -> str:
        """The architecture and the number of kernels."""
        return f"{self.arch}, {len(self.kernels)} kernel{'s' * (len(self.kernels) != 1)}"

    def rows(self) -> tuple[list[str], list[list[object]]]:
        """Return the titles of a table's columns, and a row for each kernel."""
        rows = [[kernel.name, *(cell(kernel) for _, cell in _COLUMNS)] for kernel in self.kernels]
        return ["kernel", *(title for title, _ in _COLUMNS)], rows

    def __str__(self) -> str:
        return f"{self.title}\n{table(*self.rows())}"

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        printer.text(str(self))  # as IPython shows it

    def _repr_html_(self) -> str:
        return as_html([("", str(self))])


def _possible_blocks(kernel: KernelReport) -> list[int]:
    """Return the numbers of threads that a kernel's blocks can have: whole warps, and what the source states."""
    if kernel.required_threads is not None:
        x, y, z = kernel.required_threads
        return [x * y * z]
    most = kernel.max_threads or THREADS_MAX
    return [*range(WARP, most, WARP), most]


_COLUMNS: tuple[tuple[str, Callable[[KernelReport], object]], ...] = (
    ("registers", lambda k: k.registers),
    ("stack B", lambda k: k.stack_bytes),
    ("spilled B", lambda k: k.spills and f"{k.spills.stores}/{k.spills.loads}"),
    ("shared B", lambda k: k.shared_bytes),
    ("constant B", lambda k: k.constant_bytes),
    ("parameters B", lambda k: k.parameter_bytes),
    ("max threads", lambda k: k.max_threads),
    ("instructions", lambda k: k.instructions),
    ("code B", lambda k: k.code_bytes),
    ("block", lambda k: k.occupancy and k.occupancy.block),
    ("occupancy", lambda k: k.occupancy and f"{k.occupancy.share:.0%}"),
    ("limited by", lambda k: k.occupancy and ", ".join(k.occupancy.limited_by)),
)


_VERBOSE = re.compile(
    r"Function properties for (?P<symbol>\S+)\n[^\n]*?(?P<stack>\d+) bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
)


# --- The resources in a cubin -----------------------------------------------------------------------

# ``.text.K`` is kernel K's code; ``.nv.info`` and ``.nv.info.K`` hold attributes, which are not documented. These were
# compared with the log of ``-Xptxas -v``, CUDA 12.4 to 13.5.
# Attributes of .nv.info: a symbol's index and a number.
_MIN_STACK_SIZE = 0x12  # the kernel's frame and those of its callees
_REGISTER_COUNT = 0x2F
# Attributes of .nv.info.K
_MAX_THREADS = 0x05
_REQUIRED_THREADS = 0x10
_PARAMETER = 0x17
_PARAMETER_BYTES = 0x19
_LARGE_PARAMETER = 0x45  # kernels with more than 4 KB of parameters


def kernels_of(code: bytes) -> tuple[Arch, list[KernelReport]]:
    """Return a cubin's architecture and kernels; raise ValueError if `code` is not one, or is truncated."""
    elf = Elf(code)
    arch, kernels = elf.arch(), []
    common: dict[tuple[int, int], int] = {}
    for attribute, value in _attributes(elf.section(".nv.info")):
        if len(value) == 8:
            symbol, number = struct.unpack("<II", value)
            common[symbol, attribute] = number
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
        machine_code = elf.section(f".text.{name}")
        kernels.append(
            KernelReport(
                name=name,
                symbol=name,
                registers=common.get((index, _REGISTER_COUNT), 0),
                stack_bytes=common.get((index, _MIN_STACK_SIZE), 0),
                shared_bytes=elf.shared_bytes(name),
                constant_bytes=elf.size(".nv.constant3"),
                parameters=tuple((offset, size) for _, offset, size in sorted(parameters)),
                parameter_bytes=parameter_bytes,
                max_threads=max_threads,
                required_threads=required_threads,
                code_bytes=len(machine_code),
                instructions=_instructions(machine_code) if arch.major >= 7 else None,
            )
        )
    return arch, kernels


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

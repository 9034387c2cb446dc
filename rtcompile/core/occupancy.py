"""How many blocks of a kernel run on one multiprocessor, computed as cuda_occupancy.h does. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rtcompile.core.arch import Arch

THREADS_MAX = 1024  # in a block
_WARP = 32
_KIB = 1024
_REGISTERS = 64 * _KIB  # of a multiprocessor, and of the largest block, from 5.0 on but 5.3 and 6.2
_REGISTER_UNIT = 256  # allocated to a warp at once


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources of a multiprocessor: warps, blocks, registers, shared memory in bytes."""

    warps: int
    blocks: int
    block_registers: int
    shared: int
    block_shared: int  # static and dynamic together, after opting in
    reserved_shared: int  # bytes of each block that the system uses
    partitions: int = 4  # each with its share of the registers

    @property
    def shared_unit(self) -> int:
        """Bytes of shared memory that are allocated at once."""
        return 128 if self.reserved_shared else 256


def _limits(
    warps: int,
    blocks: int,
    shared_kib: int,
    block_kib: int,
    *,
    registers: int = _REGISTERS,
    partitions: int = 4,
) -> Limits:
    # From 8.0 on the system uses 1 KiB of each block, and the allocation units are smaller.
    reserved = _KIB if block_kib == shared_kib - 1 else 0
    shared, block = shared_kib * _KIB, block_kib * _KIB
    return Limits(warps, blocks, registers, shared, block, reserved, partitions)


# "Technical Specifications per Compute Capability" in the CUDA programming guide, and
# cuda_occupancy.h of CUDA 13.0.
_OF_CAPABILITY = {
    (5, 0): _limits(64, 32, 64, 48),
    (5, 2): _limits(64, 32, 96, 48),
    (5, 3): _limits(64, 32, 64, 48, registers=32 * _KIB),
    (6, 0): _limits(64, 32, 64, 48, partitions=2),
    (6, 1): _limits(64, 32, 96, 48),
    (6, 2): _limits(64, 32, 64, 48, registers=32 * _KIB),
    (7, 0): _limits(64, 32, 96, 96),
    (7, 2): _limits(64, 32, 96, 96),
    (7, 5): _limits(32, 16, 64, 64),
    (8, 0): _limits(64, 32, 164, 163),
    (8, 6): _limits(48, 16, 100, 99),
    (8, 7): _limits(48, 16, 164, 163),
    (8, 9): _limits(48, 24, 100, 99),
    (9, 0): _limits(64, 32, 228, 227),
    (10, 0): _limits(64, 32, 228, 227),
    (10, 1): _limits(48, 24, 228, 227),
    (10, 3): _limits(64, 32, 228, 227),
    (11, 0): _limits(48, 24, 228, 227),
    (12, 0): _limits(48, 24, 100, 99),
    (12, 1): _limits(48, 24, 100, 99),
}


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What runs at once on a multiprocessor.

    Attributes
    ----------
    block : int
        Threads in a block.
    blocks : int
        Blocks on one multiprocessor; 0 where not one fits.
    share : float
        Resident warps divided by the maximum.
    limited_by : tuple of str
        The resources that another block would lack: "warps", "blocks", "registers", "shared
        memory".
    """

    block: int
    blocks: int
    share: float
    limited_by: tuple[str, ...]


def limits_of(arch: Arch) -> Limits | None:
    """Return the limits of an architecture's devices, None for one that is not known."""
    return _OF_CAPABILITY.get((arch.major, arch.minor))


def occupancy(limits: Limits, *, block: int, registers: int, shared: int) -> Occupancy:
    """Compute the occupancy of a kernel; `shared` is static and dynamic shared memory in bytes."""
    if not 1 <= block <= THREADS_MAX:
        raise ValueError(f"a block has 1 to {THREADS_MAX} threads, not {block}")
    warps = _round_up(block, _WARP) // _WARP
    fits = {
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
        "registers": _by_registers(limits, warps, registers),
        "shared memory": _by_shared(limits, shared),
    }
    blocks = min(fits.values())
    limited_by = tuple(name for name, most in fits.items() if most == blocks)
    return Occupancy(block, blocks, blocks * warps / limits.warps, limited_by)


def best_blocks(
    limits: Limits, *, registers: int, shared: Callable[[int], int], max_threads: int
) -> tuple[Occupancy, Occupancy] | None:
    """Return the largest and the smallest block of highest occupancy; None where no block fits.

    The largest is that of ``cuOccupancyMaxPotentialBlockSize``: like it, this counts resident
    threads and tries `max_threads` and the multiples of 32 below. `shared` gives the bytes, static
    and dynamic, of a block of so many threads.
    """
    sizes = sorted({max_threads, *range(_WARP, max_threads + 1, _WARP)}, reverse=True)
    found = [
        occupancy(limits, block=block, registers=registers, shared=shared(block)) for block in sizes
    ]
    most = max(one.block * one.blocks for one in found)
    best = [one for one in found if one.block * one.blocks == most]
    return (best[0], best[-1]) if most else None


def _by_registers(limits: Limits, warps: int, registers: int) -> int:
    if registers == 0:
        return limits.blocks
    of_warp = _round_up(registers * _WARP, _REGISTER_UNIT)
    # The hardware's own check takes registers for a warp of each partition.
    if of_warp * _round_up(warps, limits.partitions) > limits.block_registers:
        return 0
    return _REGISTERS // limits.partitions // of_warp * limits.partitions // warps


def _by_shared(limits: Limits, shared: int) -> int:
    used = _round_up(shared + limits.reserved_shared, limits.shared_unit)
    if used > limits.block_shared + limits.reserved_shared:
        return 0
    return limits.shared // used if used else limits.blocks


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit

"""How to launch a kernel: the block of highest occupancy, its limits, and the effect of launch bounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rtcompile import Arch, CompileRequest, ObjectCode
from rtcompile.errors import InvalidRequest, public, shown
from rtcompile.extras import resources as reports
from rtcompile.request import cxx
from rtcompile.request.values import whole

_OPT_IN = 48 << 10  # bytes of shared memory that a block may use by default
_BLOCKS_MAX = 64  # more than any multiprocessor can run


@dataclass(frozen=True, slots=True)
class Advice:
    """How to launch one kernel; `str` gives sentences.

    Attributes
    ----------
    kernel : str
        Its name expression, ``"f<float>"``, or its symbol.
    arch : Arch
        The architecture that the code was compiled for.
    registers, local_bytes : int
        Registers, and bytes of local memory, of each thread.
    spills : Spills or None
        None if unknown: only the log of ``-Xptxas=-v`` contains them.
    shared_bytes, dynamic_shared : int
        Bytes of a block's static shared memory, and of the best block's dynamic shared memory.
    best : Occupancy or None
        The largest block of highest occupancy, as ``cuOccupancyMaxPotentialBlockSize`` finds it, and
        the resource that limits it. None if no block fits.
    smallest : Occupancy or None
        The smallest block that reaches that occupancy.
    notes : tuple of str
        Remarks on these figures.
    launch_bounds : (int, int) or None
        The bounds that were tried: threads in a block, blocks on a multiprocessor (0: not given).
    bounded : Advice or None
        The advice for the kernel when it is built with these bounds.
    """

    kernel: str
    arch: Arch
    registers: int
    local_bytes: int
    spills: reports.Spills | None
    shared_bytes: int
    dynamic_shared: int
    best: reports.Occupancy | None
    smallest: reports.Occupancy | None
    notes: tuple[str, ...] = ()
    launch_bounds: tuple[int, int] | None = None
    bounded: Advice | None = None

    @classmethod
    @public
    def of(
        cls,
        code: ObjectCode | bytes,
        kernel: str | None = None,
        shared_mem: int | Callable[[int], int] = 0,
        source: str = "",
    ) -> list[Advice]:
        """Return the advice on each kernel of some code, or on one; see `ObjectCode.advise`."""
        found = reports.Report.of(code, kernel)
        limits = reports.limits_of(found.arch)
        if limits is None:
            raise InvalidRequest(
                f"this version of rtcompile does not know the limits of {found.arch}, so it cannot compute "
                "occupancy; upgrade rtcompile"
            )
        return [_of(one, found.arch, limits, shared_mem, source) for one in found.kernels]

    @classmethod
    def of_source(
        cls,
        request: CompileRequest,
        build: Callable[[CompileRequest], ObjectCode],
        kernel: str | None,
        shared_mem: int | Callable[[int], int],
        launch_bounds: object,
    ) -> list[Advice]:
        """Return the same for a source, which `build` compiles so that ptxas reports spills, and with the bounds."""
        bounds = None if launch_bounds is None else _bounds_of(launch_bounds)
        verbose = request.replace(options=(*request.options, reports.REPORT_SPILLS))
        found = cls.of(build(verbose), kernel, shared_mem, request.source)
        if bounds is None:
            return found
        rebuilt = build(_with_bounds(verbose, bounds))
        read = {one.name: one.max_threads for one in reports.Report.of(rebuilt, kernel).kernels}
        for one in found:
            if read[one.kernel] != bounds[0]:
                raise InvalidRequest(
                    f"{one.kernel} could not be rebuilt with __launch_bounds__{bounds}: the code allows "
                    f"{read[one.kernel] or 'any number of'} threads in a block. Its bounds do not come "
                    "from that macro, or -maxrregcount is among the options. Edit the source"
                )
        after = cls.of(rebuilt, kernel, shared_mem)
        return [
            replace(one, launch_bounds=bounds, bounded=two)
            for one, two in zip(found, after, strict=True)
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**asdict(self), "arch": str(self.arch)} | (
            {"bounded": self.bounded.as_dict()} if self.bounded else {}
        )

    def __str__(self) -> str:
        lines = [f"{self.kernel} for {self.arch}: {self._resources()}", *self._launch()]
        if self.launch_bounds is not None and self.bounded is not None:
            threads, blocks = self.launch_bounds
            bounds = f"{threads}, {blocks}" if blocks else str(threads)
            lines.append(f"  rebuilt with __launch_bounds__({bounds}): {self.bounded._resources()}")
            lines += [f"  {line}" for line in self.bounded._launch()]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def _resources(self) -> str:
        spilled = ""
        if self.spills is not None:
            spills = self.spills
            spilled = f" (spills: {spills.stores} B stored, {spills.loads} B loaded)"
            spilled = spilled if spills.stores or spills.loads else " (no spills)"
        return (
            f"{self.registers} registers, {self.local_bytes} B of local memory{spilled}, "
            f"{self.shared_bytes} B of static and {self.dynamic_shared} B of dynamic shared memory"
        )

    def _launch(self) -> list[str]:
        if self.best is None or self.smallest is None:
            return ["  no block of it fits on a multiprocessor"]
        return [
            f"  highest occupancy: {self.best.share:.0%}, limited by "
            f"{', '.join(self.best.limited_by)}; "
            f"blocks of {self.best.block} threads, {self.best.blocks} on a multiprocessor",
            f"  smallest block that reaches it: {self.smallest.block} threads, "
            f"{self.smallest.blocks} on a multiprocessor",
        ]


def _bounds_of(launch_bounds: object) -> tuple[int, int]:
    """Check the value of ``launch_bounds=``: threads, or threads and blocks."""
    given = [*launch_bounds] if isinstance(launch_bounds, Sequence) else [launch_bounds]
    if isinstance(launch_bounds, str) or not 1 <= len(given) <= 2:
        raise InvalidRequest(
            "launch_bounds must be the threads of a block, or (threads, blocks on a "
            f"multiprocessor), not {shown(launch_bounds)}"
        )
    threads = whole("launch_bounds' threads", given[0], 1, reports.THREADS_MAX)
    blocks = whole("launch_bounds' blocks", given[1], 0, _BLOCKS_MAX) if len(given) == 2 else 0
    return threads, blocks


def _with_bounds(request: CompileRequest, bounds: tuple[int, int]) -> CompileRequest:
    """Return the request with these launch bounds for every kernel, instead of the source's own."""
    # ptxas obeys its command line only if the source states no bounds: the macro that states them is emptied.
    threads, blocks = bounds
    options = [f"-Xptxas=-maxntid={threads}"]
    options += [f"-Xptxas=-minnctapersm={blocks}"] if blocks else []
    return request.replace(
        source="#undef __launch_bounds__\n#define __launch_bounds__(...)\n#line 1\n"
        + request.source,
        options=(*request.options, *options),
    )


def _of(
    kernel: reports.KernelReport,
    arch: Arch,
    limits: reports.DeviceLimits,
    shared_mem: int | Callable[[int], int],
    source: str,
) -> Advice:
    def dynamic(block: int) -> int:
        given = shared_mem(block) if callable(shared_mem) else shared_mem
        return whole("shared_mem", given, 0, reports.SHARED_MAX)

    notes = []
    required = kernel.required_threads
    fixed = required is not None and required[0] * required[1] * required[2]
    threads = kernel.max_threads or reports.THREADS_MAX
    sizes = [fixed] if fixed else {threads, *range(reports.WARP, threads + 1, reports.WARP)}
    found = reports.best_blocks(
        limits,
        registers=kernel.registers,
        shared=lambda block: kernel.shared_bytes + dynamic(block),
        sizes=sizes,
    )
    best, smallest = found or (None, None)
    if fixed:
        notes.append(f"the source fixes the block at {required}")
    elif kernel.max_threads is None:
        largest = next(
            threads
            for threads in range(reports.THREADS_MAX, 0, -reports.WARP)
            if reports.occupancy(limits, block=threads, registers=kernel.registers, shared=0).blocks
        )
        notes.append(
            "the kernel has no __launch_bounds__"
            + f", and its registers allow blocks of up to {largest} threads"
            * (largest < reports.THREADS_MAX)
        )
    at_best = dynamic(reports.THREADS_MAX if best is None else best.block)
    if best is None:
        notes.append(
            f"{kernel.shared_bytes} B of static and {at_best} B of dynamic shared memory are more "
            f"than the {limits.block_shared} B that a block can have"
            if kernel.shared_bytes + at_best > limits.block_shared
            else f"{kernel.registers} registers a thread are too many for any block"
        )
    elif at_best and kernel.shared_bytes + at_best > _OPT_IN:
        notes.append(
            f"more than {_OPT_IN >> 10} KiB of shared memory need "
            f"kernel.max_dynamic_shared_size_bytes = {at_best} before kernel(…); "
            "kernel.launch(…) sets it"
        )
    declarations = re.split("[;{}]", cxx.blanked(source))
    words = ("extern", "__shared__")
    if not at_best and any(all(cxx.has_word(d, (w,)) for w in words) for d in declarations):
        notes.append(
            "the source declares dynamic shared memory (extern __shared__), but these figures are "
            "for none: give shared_mem="
        )
    return Advice(
        kernel=kernel.name,
        arch=arch,
        registers=kernel.registers,
        local_bytes=kernel.stack_bytes,
        spills=kernel.spills,
        shared_bytes=kernel.shared_bytes,
        dynamic_shared=at_best,
        best=best,
        smallest=smallest,
        notes=tuple(notes),
    )

"""Builds of a batch that read no file and have their options in common, many to a worker.

A small kernel takes the compiler 15 ms. Asked for one by one, each costs the caller a millisecond of
what a batch can share, and its worker a pause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rtcompile.build.miss import Miss
from rtcompile.build.plan import Plan
from rtcompile.compilers import nvrtc
from rtcompile.lookup.query import Query
from rtcompile.request import command_lines
from rtcompile.request.object_code import ObjectCode
from rtcompile.settings import Settings
from rtcompile.store.store import Store

if TYPE_CHECKING:
    from rtcompile.workers.pool import Cancellation


def may_share(query: Query) -> bool:
    """Say whether a build may share a worker with others of the same options.

    Not so a build with a limit, which is for one; one that reads files, since another's could be
    left; one whose options could hold for the next; and one that may need more than NVRTC, or that
    failed before.
    """
    plan, settings = query.plan, query.settings
    if plan is None:
        return False
    library = plan.toolchain.nvrtc
    return (
        plan.backend != "nvcc"
        and library is not None
        and bool(library.build)
        and not plan.must_link
        and plan.unlinked != "object"
        and plan.request.arch is not None
        and plan.key_inputs.reads_no_file()
        and plan.key_inputs.is_forgotten()
        and not plan.key_inputs.paths_matter
        and settings.jit
        and not (settings.remote or settings.recompile or settings.save_source)
        and settings.timeout is None
        and settings.memory_limit is None
        and not Store.open(settings).negative.find(plan.key_inputs)
    )


def compile_batch(
    plans: Sequence[Plan],
    settings: Settings,
    store: Store,
    cancellations: Sequence[Cancellation] = (),
) -> Iterator[tuple[int, ObjectCode] | None]:
    """Build plans with the same options and keep what comes of them: yield position and code.

    Those that another thread or process builds are left out, and so is all from the first on that
    does not go well. Yields None from time to time while the worker is at one; who then leaves has
    it killed.
    """
    with ExitStack() as held:
        misses: list[tuple[int, Miss, ExitStack]] = []
        for at, plan in enumerate(plans):
            right = held.enter_context(ExitStack())
            if (
                right.enter_context(store.building(plan.key_inputs, reads=False, waits=False))
                == 0.0
            ):
                right.close()
                continue
            found = store.appeared(plan.key_inputs)
            if isinstance(found, ObjectCode):
                right.close()
                yield at, found
            else:
                misses.append((at, Miss(plan, settings, store, None, found, True), right))
        if not misses:
            return
        first = misses[0][1].plan
        library = first.toolchain.require_nvrtc()
        directories = [directory.path for directory in first.search]
        flags = command_lines.for_nvrtc(
            first.options, first.choice.arch, first.unlinked, library.version_pair, directories
        )
        units = [
            miss.unit(flags, first.unlinked, miss.plan.request.name_expressions)
            for _, miss, _ in misses
        ]
        for outcome in nvrtc.compile_batch(units, library, cancellations):
            if outcome is None:
                yield None
                continue
            at, miss, right = misses[outcome[0]]
            code = miss.built_together(outcome[1])
            right.close()
            yield at, code

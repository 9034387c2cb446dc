"""A cache miss: compiles with NVRTC or NVCC, links if needed, and caches the result."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from functools import lru_cache, partial, reduce
from types import MappingProxyType
from typing import TYPE_CHECKING

from rtcompile import errors
from rtcompile.build import plan as plans
from rtcompile.build.plan import Plan
from rtcompile.compilers import nvrtc
from rtcompile.errors import CompileTimeout, ToolkitNotFound
from rtcompile.files import fileset
from rtcompile.files import headers as memory_headers
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import SearchDir, file_clock_ns, next_tick
from rtcompile.lookup.find import Query
from rtcompile.named import NamedTuple
from rtcompile.request import option_table
from rtcompile.request.object_code import BuildInfo, Found, ObjectCode, Record
from rtcompile.request.request import EITHER
from rtcompile.request.units import (
    Compiled,
    CompileFailure,
    Limits,
    LinkInput,
    TranslationUnit,
    joined_logs,
    missing_headers,
)
from rtcompile.store.store import Store

if TYPE_CHECKING:
    from typing import TypeVar

    from rtcompile.errors import CompileError
    from rtcompile.messages.fallback import Decision

    T = TypeVar("T")

# Modules that only some builds need (NVCC, the linker, error messages) are imported in functions. Importing them
# here would double the 40 ms that a first build spends on imports.


_UNKNOWN = "the compiler did not report which headers it read"
_SECONDS_TO_TRY = 10.0  # for a change of a rejected source
_NOTICED = 1000.0  # milliseconds of a build that a user notices
BY_OTHERS = "another thread or process was building the same code all that time"
TOO_MUCH = "reading its source, options and headers, and building its linker inputs, took all of it"


def too_late(query: Query, reason: str) -> CompileTimeout:
    plan: Plan = query.plan
    return CompileTimeout(
        f"{plan.key_inputs.name} was not compiled within its time limit of {query.settings.timeout:g} s: "
        f"{reason}. Give a longer timeout= or RTCOMPILE_TIMEOUT.",
        plan.request.source,
        plan.key_inputs.name,
        backend="nvcc" if plan.key_inputs.backend == "nvcc" else "nvrtc",
    )


class Attempt(NamedTuple):
    """A plan with the flags that were added because of errors, their reasons, and what the failures depend on."""

    plan: Plan
    added: tuple[str, ...] = ()  # they are not in the cache key
    notes: tuple[str, ...] = ()
    depends: tuple[FileSet, ...] = ()

    def adding(self, decision: Decision) -> Attempt:
        """Return the attempt with a decision's flags; itself if none is new."""
        new = [flag for flag in decision.flags if flag not in self.added]
        return self.with_flags(new, [f"{' '.join(new)} added: {decision.reason}"]) if new else self

    def with_flags(self, flags: Iterable[str], notes: Iterable[str]) -> Attempt:
        """Return the attempt with further flags, and the reasons for them."""
        added, plan = (*self.added, *flags), self.plan
        plan = plan._replace(options=plan.options.adding(*flags))
        return self._replace(plan=plan, added=added, notes=(*self.notes, *notes))


class Miss:
    """The build of a planned query that is not cached."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.plan: Plan = query.plan
        self.settings = query.settings
        self.store: Store = query.store
        self.limits = Limits(self.settings.timeout, self.settings.memory_limit)
        # If NVRTC's file accesses cannot be intercepted, a file of this clock tick counts as changed.
        self.begun_ns = file_clock_ns()

    def run(self) -> Found:
        """Build the code and return it. It is in the cache then, unless its notes say why not."""
        plan, known, first = self.plan, self.query.failure, Attempt(self.plan)
        backend = plan.key_inputs.backend
        if plan.key_inputs.paths_matter or self.settings.save_source:
            path = plans.source_path(plan.request, self.settings)
            self.store.keep_source(os.path.basename(path), plan.request.source)
        if backend == "nvcc":
            return self._with_nvcc(first)
        if known is not None and backend in EITHER:
            flags, *notes = known.notes or ("",)
            first = first._replace(depends=(known.files,)).with_flags(flags.split(), notes)
            return self._with_nvcc(first, known.reason, known.failure)
        attempt, outcome = self.with_added_flags(first, self._nvrtc)
        if isinstance(outcome, CompileFailure):
            return self._with_nvcc(*self.retried_by_nvcc(attempt, outcome), outcome)
        return self._finish(attempt, "nvrtc", outcome, self.begun_ns)

    def retried_by_nvcc(self, attempt: Attempt, failure: CompileFailure) -> tuple[Attempt, str]:
        """Return NVCC's attempt after a failure of NVRTC, and the reason; raise if NVCC is not to build the code."""
        from rtcompile.messages.fallback import Decision

        decision, backend = self._decide(failure), self.plan.key_inputs.backend
        if backend == "nvrtc-first" and not plans.lack_of_nvcc(self.plan):
            reason = "backend='nvcc' was requested, and NVRTC rejects the source"
            decision = decision if decision.action == "nvcc" else Decision("nvcc", reason)
        if decision.action != "nvcc" or failure.kind != "error" or backend not in EITHER:
            raise self._refused(attempt, failure)
        for_nvcc = attempt.adding(decision)
        if plans.lack_of_nvcc(self.plan):
            raise self._refused(for_nvcc, failure, decision.reason, by_nvrtc=attempt.plan)
        self._remember(for_nvcc, failure, decision.reason)
        return for_nvcc, decision.reason

    def _saved(self, milliseconds: float) -> str:
        """Return a note of how much shorter NVRTC's build was than NVCC's, if the cache has NVCC's too."""
        seconds = milliseconds / 1e3
        note = f"built by NVRTC in {seconds:.2f} s, although backend='nvcc' was requested"
        by_nvcc = self.plan.key_inputs._replace(backend="nvcc")
        known = self.store.search(by_nvcc, counts=False)
        if not isinstance(known, Found):
            return note
        saved = known.obj.build.compiled_in / 1e3 - seconds
        return f"{note}, which saved {saved:.2f} s: NVCC took {saved + seconds:.2f} s"

    def with_added_flags(
        self, attempt: Attempt, compile: Callable[[Plan], T | CompileFailure]
    ) -> tuple[Attempt, T | CompileFailure]:
        """Compile, and repeat with flags that the errors require, as long as there are new ones."""
        while True:
            outcome = compile(attempt.plan)
            if not isinstance(outcome, CompileFailure):
                return attempt, outcome
            attempt = _depending_on(attempt, outcome)
            decision = self._decide(outcome)
            fixable = self.plan.request.allow_fixups and decision.action == "add-flags"
            changed = attempt.adding(decision) if fixable else attempt
            if changed is attempt:
                return attempt, outcome
            attempt = changed

    def _refused(
        self,
        attempt: Attempt,
        failure: CompileFailure,
        why_nvcc: str = "",
        by_nvrtc: Plan | None = None,
    ) -> CompileError:
        """Remember a failure with its hints, and return its exception; `by_nvrtc` is the plan to try hints with."""
        from rtcompile.build.failures import as_error, explained

        plan = attempt.plan
        failure = explained(failure, plan, partial(self._log_of, by_nvrtc or plan))
        self._remember(attempt, failure, why_nvcc)
        return as_error(failure, plan, why_nvcc=why_nvcc)

    def _remember(self, attempt: Attempt, failure: CompileFailure, why_nvcc: str = "") -> None:
        """Keep a failure in the cache, unless it depends on more than files, or a file changed."""
        depends = attempt.depends
        if not any(each.uncacheable or each.newest_ns >= self.begun_ns for each in depends):
            files = reduce(fileset.FileSet.joined, depends)
            # NVCC needs the flags too: it cannot always tell by its own errors that they are missing.
            notes = (" ".join(attempt.added), *attempt.notes)
            record = Record(files, reason=why_nvcc, failure=failure, notes=notes)
            self.store.keep_failure(self.plan.key_inputs, record)

    def _meanwhile(self) -> None:
        """Import modules while the compiler runs, which saves 20 ms of a process's first build."""
        from rtcompile import cubin  # noqa: F401 - needed after it
        from rtcompile.lookup import driver, find
        from rtcompile.request import cxx, key  # noqa: F401 - `key` is needed after it

        # A longer source is searched only once it is compiled.
        if cxx.readable(self.plan.request.source):
            self.query.why()
        if self.plan.is_for_this_device and find.loaded("cupy") is not None:
            driver.confirm(find.compute_capability)

    def _decide(self, failure: CompileFailure) -> Decision:
        from rtcompile.messages import fallback
        from rtcompile.messages.available import Declared, missing_header

        if failure.backend == "nvcc":
            return fallback.decide_nvcc(failure.log)
        return fallback.decide(
            failure.log,
            source=self.plan.request.source,
            name=self.plan.key_inputs.name,
            options=self.plan.request.options,
            package_of=missing_header,
            declared=Declared(self.plan.toolchain),
            was_read=failure.trace or (),
        )

    def _log_of(self, plan: Plan, source: str, options: tuple[str, ...]) -> str | None:
        """Return NVRTC's log for a changed source with further options; None if it did not finish."""
        plan = plan._replace(options=plan.options.adding(*options))
        unit = unit_for_nvrtc(plan, plan.request.name_expressions)._replace(source=source)
        outcome = self._by_nvrtc(plan, unit, Limits(_SECONDS_TO_TRY, self.settings.memory_limit))
        is_done = isinstance(outcome, Compiled) or outcome.kind == "error"
        return outcome.log if is_done else None

    def _by_nvrtc(
        self,
        plan: Plan,
        unit: TranslationUnit,
        limits: Limits,
        meanwhile: Callable[[], None] | None = None,
    ) -> Compiled | CompileFailure:
        precompiles = self.settings.pch and self.settings.cache_on_disk
        return nvrtc.compile(
            unit,
            plan.toolchain.require_nvrtc(),
            limits=limits,
            cache_dir=self.settings.cache_dir if precompiles else None,
            search=plan.search,
            meanwhile=meanwhile,
        )

    def _nvrtc(self, plan: Plan, *, named: bool = True) -> Compiled | CompileFailure:
        expressions = plan.request.name_expressions if named else ()
        library = plan.toolchain.require_nvrtc()
        folders = {} if library.path in _observed else _folders(plan)
        unit = unit_for_nvrtc(plan, expressions)
        outcome = self._by_nvrtc(plan, unit, self.limits, self._meanwhile)
        if outcome.files is not None:
            _observed.add(library.path)
        if expressions and isinstance(outcome, CompileFailure) and outcome.kind == "crash":
            # With name expressions, NVRTC can crash on an error in the source (a concept under
            # C++17) instead of reporting it. A compile without them then shows that error.
            plain = self._nvrtc(plan, named=False)
            if isinstance(plain, CompileFailure) and plain.kind == "error":
                return plain
        return _recorded(plan, outcome, plan.search, folders)

    def _with_nvcc(
        self, attempt: Attempt, why: str = "", rejected: CompileFailure | None = None
    ) -> Found:
        from rtcompile.compilers import nvcc

        plan = attempt.plan
        program = plan.toolchain.require_nvcc()
        if problem := plans.lack_of_nvcc(plan):
            raise ToolkitNotFound(problem)
        reading_ns = next_tick()

        def compile(plan: Plan) -> Compiled | CompileFailure:
            folders = _folders(plan)
            outcome = nvcc.compile(unit_for_nvcc(plan), plan.toolchain, limits=self.limits)
            return _recorded(plan, outcome, _nvcc_searched(plan, outcome), folders)

        attempt = attempt._replace(plan=plan._replace(options=plans.for_nvcc(plan.options)))
        attempt, outcome = self.with_added_flags(attempt, compile)
        if isinstance(outcome, CompileFailure):
            raise self._refused(attempt, outcome._replace(before=rejected), by_nvrtc=plan)
        nvrtc = plan.toolchain.nvrtc
        if nvrtc is not None and nvrtc.version_pair[0] != program.version_pair[0]:
            note = f"nvcc {program.version} is of another CUDA than NVRTC {nvrtc.version}"
            attempt = attempt._replace(notes=(*attempt.notes, note))
        return self._finish(attempt, "nvcc", outcome, reading_ns, why)

    def _finish(
        self, attempt: Attempt, backend: str, compiled: Compiled, reading_ns: int, why: str = ""
    ) -> Found:
        """Link and cache what a compiler made; it read no file before the time `reading_ns`."""
        plan = attempt.plan
        spent = [compiled.milliseconds]
        log = compiled.log
        code = compiled.code
        key_inputs = plan.key_inputs
        dependencies = compiled.files or FileSet()
        if compiled.files is None:
            dependencies = dependencies.replaced(uncacheable=_UNKNOWN)
        if plan.must_link:
            from rtcompile.compilers import nvjitlink

            own = LinkInput(plan.compiler_target, plan.request.name, code)
            linked = nvjitlink.link(
                (own, *plan.links),
                plan.choice.arch,
                plan.options,
                plan.toolchain,
                limits=self.limits,
                target=plan.choice.target,
            )
            if isinstance(linked, CompileFailure):
                failed = linked._replace(files=compiled.files)
                raise self._refused(_depending_on(attempt, failed), linked)
            code, log = linked.code, joined_logs(log, linked.log)
            spent.append(linked.milliseconds)
            key_inputs = key_inputs.linked(backend)
        from rtcompile.cubin import check_code

        for problem in check_code(code, plan.choice.arch):
            errors.warn(f"{plan.request.name}: {problem}")
            log += f"{plan.request.name}: warning: {problem}\n"
        from rtcompile.request.cxx import unusual

        warned = unusual(plan.request.source)
        log += "".join(f"{plan.request.name}({line}): warning: {what}\n" for line, what in warned)
        if attempt.added:
            key_inputs = key_inputs._replace(fixups=attempt.added)
        is_changed = dependencies.newest_ns >= reading_ns
        if is_changed:
            # It is unknown which contents the compiler read, so bundles must not record them.
            unknown = tuple(header._replace(digest="") for header in dependencies.headers)
            dependencies = dependencies.replaced(headers=unknown)
        # All phases, except the wait for a worker.
        milliseconds = sum(sum(each.values()) - each.get("queue", 0.0) for each in spent)
        notes: tuple[str, ...] = ()
        if (backend, key_inputs.backend) == ("nvrtc", "nvrtc-first"):
            notes = (self._saved(milliseconds),)
        built = ObjectCode(
            code,
            plan.choice.target,
            plan.choice.arch,
            MappingProxyType(dict(compiled.lowered_names)),
            BuildInfo(
                backend,
                log,
                dependencies,
                milliseconds,
                why="; ".join([*[why] * bool(why), *attempt.notes]),
                compiler=f"{backend} {key_inputs.compilers.get(backend, '')}",
                compiled_in=milliseconds,
                notes=notes,
            ),
        )
        if is_changed:
            changed = dependencies.changed_since(reading_ns) or "a file that it read"
            record = Record(FileSet(), reason=f"{changed} changed while the compiler ran")
        else:
            record = self.store.add(key_inputs, built, dependencies)
        if record.reason:
            built = _not_kept(built, record.reason, is_always=not is_changed)
        return Found(built, record)


_warned: set[str] = set()
_observed: set[str] = set()  # the libraries of NVRTC whose file accesses can be intercepted


def _not_kept(built: ObjectCode, reason: str, *, is_always: bool) -> ObjectCode:
    """Return an uncached build with a note that says why; warn if each process will have to wait for it again."""
    note = f"not cached: {reason}"
    if is_always and built.build.compiled_in > _NOTICED and reason not in _warned:
        _warned.add(reason)
        errors.warn(f"{note}; it will be compiled again by every process")
    return built.replace(build=built.build.replace(notes=(*built.build.notes, note)))


def unit_for_nvrtc(plan: Plan, expressions: tuple[str, ...]) -> TranslationUnit:
    """Return the plan's translation unit for NVRTC."""
    target = plan.compiler_target
    options = plan.options.adding("-rdc=true") if target == "object" else plan.options
    # NVRTC has no kind "object": it makes relocatable machine code as a cubin.
    target = "cubin" if target == "object" else target
    version = plan.toolchain.require_nvrtc().version_pair
    directories = tuple([directory.path for directory in plan.search])
    flags = _flags_for_nvrtc(options, plan.choice.arch, target, version, directories)
    return _unit(plan, flags, target, expressions)


def unit_for_nvcc(plan: Plan) -> TranslationUnit:
    """Return the plan's translation unit for NVCC."""
    directory, *directories = _nvcc_search(plan)[0]
    code = plan.compiler_target if plan.compiler_target in ("ptx", "ltoir") else "cubin"
    flags = option_table.for_nvcc(
        plan.options,
        plan.choice.arch,
        code,
        plan.toolchain.require_nvcc().version_pair,
        [each.path for each in directories],
        beside=directory.path,
    )
    return _unit(plan, flags, plan.compiler_target, plan.request.name_expressions)


# A batch's kernels often have the same flags.
_flags_for_nvrtc = lru_cache(maxsize=16)(option_table.for_nvrtc)


def _unit(
    plan: Plan, flags: tuple[str, ...], target: str, expressions: tuple[str, ...]
) -> TranslationUnit:
    name = plan.key_inputs.name
    texts = memory_headers.paths(plan.request.headers)
    source, arch = plan.request.source, plan.choice.arch
    return TranslationUnit(source, name, flags, expressions, target, arch, texts)


# Matches the folders to which includes are relative: .../include/cccl, /usr/include/c++/12.
_ROOT = r".*/include(?:/c\+\+/[\w.]+)?(?:/cccl)?(?=/)"

_HOST_ROOTS = ("/usr/local/include", "/usr/include")  # searched, also if no header of them was read
_MISSING = r'(?:could not|cannot) open source file "([^"]+)"'


# --- The files of a compiler whose accesses were not intercepted ----------------------------------------


def _depending_on(attempt: Attempt, failure: CompileFailure) -> Attempt:
    """Return an attempt that depends on the files of one more failure."""
    from rtcompile.build.failures import dependencies_of

    # A header that only the host compiler finds lets NVCC build the code.
    paths = [f"{root}/{name}" for name in re.findall(_MISSING, failure.log) for root in _HOST_ROOTS]
    missing = FileSet(absent=tuple([path for path in paths if not os.path.exists(path)]))
    return attempt._replace(depends=(*attempt.depends, dependencies_of(failure), missing))


def _nvcc_search(plan: Plan) -> tuple[tuple[SearchDir, ...], tuple[SearchDir, ...]]:
    """Return the directories that NVCC searches before its own, the source's first, and after."""
    folder = os.path.dirname(plan.key_inputs.name)
    beside = SearchDir("", folder if os.path.isabs(folder) else "")
    own = plans.own_directories(plan.options)
    last = plans.own_directories(plan.options, last=True)
    return (beside, *own, *plan.toolchain.nvcc_search), last


def _nvcc_searched(plan: Plan, outcome: Compiled | CompileFailure) -> tuple[SearchDir, ...]:
    """Return all directories that NVCC searched, in order, including its own."""
    (beside, *own), last = _nvcc_search(plan)
    if beside.path and beside.path not in [directory.path for directory in own]:
        own.insert(0, beside)
    # A new header must also be noticed in the directories of NVCC and its host compiler.
    roots = [match[0] for path in outcome.trace or () if (match := re.match(_ROOT, path))]
    found = [SearchDir("", root) for root in dict.fromkeys([*roots, *_HOST_ROOTS])]
    return (*own, *found, *last)


def _folders(plan: Plan) -> dict[str, tuple[int, int] | None]:
    """Return the current identities of the folders that are searched besides the compiler's."""
    first, last = _nvcc_search(plan)
    return fileset.identities([directory.path for directory in (*first, *last)])


def _recorded(
    plan: Plan,
    outcome: Compiled | CompileFailure,
    searched: tuple[SearchDir, ...],
    folders: dict[str, tuple[int, int] | None],
) -> Compiled | CompileFailure:
    """Return an outcome with the files that it depends on, if they are known; `folders` are from before the compile."""
    is_done = isinstance(outcome, Compiled) or outcome.kind in ("error", "link")
    if not is_done or outcome.files is not None or outcome.trace is None:
        return outcome
    from rtcompile.compilers import observed

    request = plan.request
    defined = (f"#define {option}" for option in request.options)
    named = (f"#include <{header}>" for header in missing_headers(outcome.log))
    texts = [request.source, *(text for _, text in request.headers), *defined, *named]
    found = observed.record(
        outcome.trace,
        searched,
        source="\n".join(texts),
        name=plan.key_inputs.name,
        toolkit=plan.toolchain.header_folders(),
    )
    if _folders(plan) != folders:
        found.newest_ns = time.time_ns()
    return outcome._replace(files=found)

"""Counts the kernels that a program's processes request, and the hits, in a log to which all processes append."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter as Counts
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from rtcompile import JitDisabled, RtcompileError, ToolkitNotFound

if TYPE_CHECKING:
    from rtcompile import CompileRequest, ObjectCode

_PREFIX = "rtcompile-run-"
_ABANDONED_SECONDS = 24 * 3600.0


class KernelUse(NamedTuple):
    """One requested kernel, with its time and the time that a hit saved."""

    name: str
    arch: str
    backend: str
    hit: str
    milliseconds: float
    spared: float


class Tally(NamedTuple):
    """The requests of a run, and why some of its processes' kernels are not counted."""

    builds: list[KernelUse]
    missing: list[str]  # requests that were not in the cache where nothing could be compiled
    problems: list[str]
    stores: dict[
        str, Counts[str]
    ]  # what each shared store cost and spared: `BuildInfo.stores`, added up

    @classmethod
    def read(cls, path: str) -> Tally:
        """Return the counts in the lines of a log, ignoring a record's lines."""
        tally = cls([], [], [], {})
        try:
            with open(path, encoding="utf-8") as file:
                lines = file.readlines()
        except OSError as error:
            return cls([], [], [f"the requests could not be counted: {error}"], {})
        for line in lines:
            try:
                kind, *fields = json.loads(line)
            except ValueError:
                tally.problems.append(
                    "processes of the run could not write all they requested: the folder "
                    f"{os.path.dirname(path)} is full"
                )
                continue
            if kind == "kernel":
                tally.builds.append(KernelUse(*fields))
            elif kind == "stores":
                for name, counts in fields[0].items():
                    tally.stores.setdefault(name, Counts()).update(counts)
            elif kind in ("missing", "problem"):
                getattr(tally, {"problem": "problems"}.get(kind, kind)).append(*fields)
        return tally

    def line(self) -> str:
        """Return one line: kernels, hits, builds, seconds saved."""
        built = [build for build in self.builds if not build.hit]
        spent = sum(build.milliseconds for build in built) / 1e3
        spared = sum(build.spared for build in self.builds) / 1e3
        kernels = len(self.builds)
        shared = sum(build.hit == "remote" for build in self.builds)
        of_stores = f" ({shared} of them from shared stores)" if shared else ""
        of_each = [
            f"; {name}: {n['hits']} hits, {n['misses']} misses, {n['bytes_read'] / 1e6:.1f} MB, "
            f"waited {n['seconds_waited']:.1f} s"
            for name, n in self.stores.items()
        ]
        return (
            f"{kernels} kernel{'s' * (kernels != 1)}: {kernels - len(built)} from the cache{of_stores}, "
            f"{len(built)} built in {spent:.1f} s; {spared:.1f} s of compiling spared{''.join(of_each)}"
        )


class Counter:
    """Appends a line of JSON for each of this process's requests to a log."""

    def __init__(self, log: str) -> None:
        self.log = log
        self.problem: OSError | None = None  # such as a full disk, which must not stop the program

    def start(self) -> None:
        """Count all requests from now on."""
        from rtcompile.lookup.find import (
            listeners,  # not above: its import makes a process take part
        )

        listeners.append(self.note)

    def note(self, request: CompileRequest, outcome: ObjectCode | RtcompileError) -> None:
        """Count a build; one that failed counts only if compiling was forbidden or impossible."""
        if isinstance(outcome, (JitDisabled, ToolkitNotFound)):
            self.append(["missing", str(outcome).partition("\n")[0]])
        if isinstance(outcome, RtcompileError):
            return
        build = outcome.build
        spared = build.compiled_in if build.hit else 0.0
        how = build.backend, build.hit or "", build.milliseconds, spared
        self.append(["kernel", request.name, str(outcome.arch), *how])
        if build.stores:
            self.append(["stores", build.stores])

    def append(self, line: Any) -> None:
        """Append a line in one write, unless the run has ended and its log is gone."""
        # The log is not kept open: a program may close descriptors that it did not open.
        try:
            descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.write(descriptor, (json.dumps(line) + "\n").encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            self.problem = error


def new_log() -> str:
    """Make the log of a run of this process; return its path."""
    descriptor, path = tempfile.mkstemp(prefix=f"{_PREFIX}{os.getpid()}-")
    os.close(descriptor)
    folder = os.path.dirname(path)
    for name in os.listdir(folder):
        process = name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and not os.path.exists(f"/proc/{process}"):
            abandoned = os.path.join(folder, name)
            with suppress(OSError):  # it is another user's, or gone
                # A run whose process is not here may be on another machine.
                if time.time() - os.lstat(abandoned).st_mtime > _ABANDONED_SECONDS:
                    os.unlink(abandoned)
    return path

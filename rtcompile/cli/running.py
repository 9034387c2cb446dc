"""``rtcompile run``: runs an unmodified program with all its CuPy kernels compiled by rtcompile."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from contextlib import ExitStack

from rtcompile.cli import output
from rtcompile.errors import InvalidRequest
from rtcompile.everywhere import recording
from rtcompile.everywhere.running import KernelUse, Program, Tally, counting

__all__ = ["run"]

_INCOMPLETE = 1


def run(given: Namespace) -> int:
    """Run a program; return its exit status, or 1 where ``--check`` found something missing."""
    program = _program(given)
    recorder = recording.Recorder(given.record) if given.record and not given.check else None
    known = recording.read(given.record) if given.check and given.record else None
    if given.check:
        os.environ["RTCOMPILE_JIT"] = "0"
    with ExitStack() as stack:
        tally = stack.enter_context(counting())
        if recorder is not None:
            recorder.start()
        try:
            status = program.run()
        finally:
            record = recorder.finish() if recorder is not None else None
    _report(given, tally, status)
    if recorder is not None and record is not None:
        print(f"rtcompile: {len(record.builds)} builds recorded in {given.record}", file=sys.stderr)
    if given.check:
        return _check(tally, known, status)
    return status


def _program(given: Namespace) -> Program:
    if given.module_name:
        return Program(given.module_name, tuple(given.program), is_module=True)
    if not given.program:
        raise InvalidRequest("what is to be run? `rtcompile run script.py`, or `-m module`")
    script, *arguments = given.program
    return Program(script, tuple(arguments))


def _report(given: Namespace, tally: Tally, status: int) -> None:
    """Print a summary of the run's builds on stderr, since stdout belongs to the program."""
    if given.json:
        builds = [build._asdict() for build in tally.builds]
        json.dump({"status": status, "builds": builds, "missing": tally.missing}, sys.stderr)
        sys.stderr.write("\n")
        return
    if given.report:
        print(output.table(KernelUse._fields, map(_row, tally.builds)), file=sys.stderr)
    print(f"rtcompile: {tally.line()}", file=sys.stderr)


def _row(build: KernelUse) -> list[object]:
    times = (f"{build.milliseconds:.1f} ms", f"{build.spared:.0f} ms" if build.spared else "")
    return [build.name, build.arch, build.backend, build.hit or "built", *times]


def _check(tally: Tally, known: recording.Record | None, status: int) -> int:
    """Print the builds that were missing while compiling was forbidden; return 1 if there were any."""
    for missing in tally.missing:
        print(f"rtcompile: not there: {missing}", file=sys.stderr)
    if tally.missing:
        what = f"{len(tally.missing)} of the program's builds were not there"
        print(f"rtcompile: {what}; `rtcompile warm` builds a record", file=sys.stderr)
        return _INCOMPLETE
    if known is not None:
        print(f"rtcompile: complete ({len(known.builds)} builds in the record)", file=sys.stderr)
    return status

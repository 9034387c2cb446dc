"""``rtcompile run``: runs an unmodified program with all its CuPy kernels compiled by rtcompile."""

from __future__ import annotations

import atexit
import json
import os
import sys
from argparse import Namespace

from rtcompile.cli import output
from rtcompile.errors import InvalidRequest, RtcompileError
from rtcompile.everywhere import recording
from rtcompile.everywhere.counting import KernelUse, Tally, counting
from rtcompile.everywhere.program import Program, end_by

__all__ = ["run"]

_INCOMPLETE = 1
_NOT_RECORDED = 2


def run(given: Namespace) -> int:
    """Run a program; return its exit status, or another where ``--check`` or ``--record`` failed."""
    program = _program(given)
    recorder = recording.Recorder(given.record) if given.record and not given.check else None
    known = recording.read(given.record) if given.check and given.record else None
    if given.check:
        os.environ["RTCOMPILE_JIT"] = "0"
    process, signalled = os.getpid(), 0

    def end_as_interrupted() -> None:
        if signalled:
            output.flush()
            end_by(signalled)

    atexit.register(end_as_interrupted)  # before the program's handlers: it is called after them
    with counting() as tally:
        if recorder is not None:
            recorder.start()

        def tell(status: int) -> int:
            problem = _recorded(recorder, given.record)
            _report(given, tally, status)
            if problem:
                print(f"rtcompile: {problem}", file=sys.stderr)
                return _NOT_RECORDED
            return _check(tally, known) if given.check else 0

        status = program.run(before_a_signal=lambda number: tell(-number))
        if os.getpid() != process:
            return status  # A forked child's requests are in the record that its parent writes.
        failed = tell(status)
    if status < 0:
        signalled = -status
    return failed or status


def _program(given: Namespace) -> Program:
    words = [*(given.module_and_arguments or ()), *given.program]
    if not words:
        raise InvalidRequest("what is to be run? `rtcompile run script.py`, or `-m module`")
    return Program(words[0], tuple(words[1:]), is_module=given.module_and_arguments is not None)


def _recorded(recorder: recording.Recorder | None, path: str) -> str:
    """Write the record if there is one; return why it is not whole, "" if it is."""
    if recorder is None:
        return ""
    try:
        record = recorder.finish()
    except (OSError, RtcompileError) as error:
        return f"{path} was not written, or lacks builds: {error}"
    print(f"rtcompile: {len(record.builds)} builds recorded in {path}", file=sys.stderr)
    return ""


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


def _check(tally: Tally, known: recording.Record | None) -> int:
    """Print the builds that were missing while compiling was forbidden; return 1 if there were any."""
    for missing in tally.missing:
        print(f"rtcompile: not there: {missing}", file=sys.stderr)
    if tally.missing:
        what = f"{len(tally.missing)} of the program's builds were not there"
        print(f"rtcompile: {what}; `rtcompile warm` builds a record", file=sys.stderr)
        return _INCOMPLETE
    if known is not None:
        print(f"rtcompile: complete ({len(known.builds)} builds in the record)", file=sys.stderr)
    return 0

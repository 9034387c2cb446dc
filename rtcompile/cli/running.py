"""``rtcompile run`` and ``rtcompile warm``: a program's CuPy kernels through rtcompile, now or ahead."""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from argparse import Namespace
from contextlib import suppress
from typing import TYPE_CHECKING

from rtcompile.cli import output
from rtcompile.errors import InvalidRequest, RtcompileError
from rtcompile.extras.record.counting import KernelUse, Tally, count_children, counting
from rtcompile.extras.record.program import Program, end_by

if TYPE_CHECKING:
    from rtcompile.extras.record.recording import Record, Recorder

_INCOMPLETE = 1
_NOT_RECORDED = 2


def run(given: Namespace) -> int:
    """Run a program; return its exit status, or another where ``--check`` or ``--record`` failed."""
    program = _program(given)
    recorder, known = _opened(given)
    if given.check:
        os.environ["RTCOMPILE_JIT"] = "0"
    process, signalled = os.getpid(), 0

    def end_as_interrupted() -> None:
        if signalled:
            with suppress(
                OSError, ValueError, AttributeError
            ):  # the stream is full, closed or None
                sys.stdout.flush()
            end_by(signalled)

    atexit.register(end_as_interrupted)  # before the program's handlers: it is called after them
    with counting() as tally:
        atexit.register(
            tally.discard
        )  # processes that the program's handlers wait for may still append
        if recorder is not None:
            recorder.start()
        count_children(tally, "" if recorder is None else recorder.path)

        problems: list[str] = []

        def finish(status: int) -> int:
            return _finish(given, status, tally, problems, recorder, known)

        status = program.run(
            before_a_signal=lambda number: finish(-number), if_not_installed=problems.append
        )
        if os.getpid() != process:
            return status  # A forked child's requests are in the record that its parent writes.
        failed = finish(status)
    if status < 0:
        signalled = -status
    return failed or (status if status >= 0 else 128 - status)  # 130 where no signal ends it


def _opened(given: Namespace) -> tuple[Recorder | None, Record | None]:
    """Return what will write the record, and the record to check against."""
    if not given.record:
        return None, None
    from rtcompile.extras.record import recording  # imports much that hits do not need

    if given.check:
        return None, recording.read(given.record, trust_options=True)  # nothing is built
    return recording.Recorder(given.record), None


def _finish(
    given: Namespace,
    status: int,
    tally: Tally,
    problems: list[str],
    recorder: Recorder | None,
    known: Record | None,
) -> int:
    """Report what the program built; return the exit status of ``--check`` and ``--record``."""
    tally.collect()
    problems.extend(tally.problems)
    recorded, problem = _recorded(recorder, given.record)
    if problem:
        problems.append(problem)
    if given.json:
        _print_json(tally, status, problems)
    else:
        _report(given, tally, [*problems, *recorded])
    if problem:
        return _NOT_RECORDED
    if given.check and problems:
        return _INCOMPLETE  # what CuPy compiled was not checked
    return _check(given, tally, known) if given.check else 0


def _program(given: Namespace) -> Program:
    words = [*(given.module_and_arguments or ()), *given.program]
    if not words:
        raise InvalidRequest("no program given: `rtcompile run script.py`, or `-m module`")
    return Program(words[0], tuple(words[1:]), is_module=given.module_and_arguments is not None)


def _recorded(recorder: Recorder | None, path: str) -> tuple[list[str], str]:
    """Write the record, if there is one; return a line about it, and why it is not whole."""
    if recorder is None:
        return [], ""
    try:
        record = recorder.finish()
    except (OSError, RtcompileError) as error:
        return [], f"{path} was not written, or lacks builds: {error}"
    count = len(record.builds)
    lines = [f"{count} build{'s' * (count != 1)} recorded in {path}"]
    if unsearched := record.found_by_path():
        lines.append(
            f"{unsearched[0]}{f' and {len(unsearched) - 1} more' * (len(unsearched) > 1)}: included by its path "
            "on this machine, and can be warmed only where it has the same path; give its folder by -I"
        )
    return lines, ""


def _print_json(tally: Tally, status: int, problems: list[str]) -> None:
    builds = [build._asdict() for build in tally.builds]
    fields = {"status": status, "builds": builds, "missing": tally.missing, "problems": problems}
    _write_stderr(json.dumps(fields))


def _report(given: Namespace, tally: Tally, lines: list[str]) -> None:
    """Print a summary of the run's builds on stderr, since stdout belongs to the program."""
    if given.report:
        _write_stderr(output.table(KernelUse._fields, map(_row, tally.builds)))
    for line in (tally.line(), *lines):
        _write_stderr(f"rtcompile: {line}")


def _write_stderr(text: str) -> None:
    """Print on stderr, if the program left it open."""
    with suppress(OSError, ValueError, AttributeError):  # the stream is full, closed or None
        sys.stderr.write(f"{text}\n")


def _row(build: KernelUse) -> list[object]:
    times = (f"{build.milliseconds:.1f} ms", f"{build.spared:.0f} ms" if build.spared else "")
    return [build.name, build.arch, build.backend, build.hit or "built", *times]


def _check(given: Namespace, tally: Tally, known: Record | None) -> int:
    """Print the builds that were missing while compiling was forbidden; return 1 if there were any."""
    lines = [f"missing: {missing}" for missing in tally.missing]
    if lines:
        lines.append(
            f"missing builds of the program: {len(lines)}; `rtcompile warm` builds a record"
        )
    elif known is not None:
        lines.append(f"complete ({len(known.builds)} builds in the record)")
    if not given.json:
        for line in lines:
            _write_stderr(f"rtcompile: {line}")
    return _INCOMPLETE if tally.missing else 0


def warm(given: Namespace) -> int:
    """Build everything in the records into the cache."""
    from rtcompile.build import planned  # with much that `run` does not need
    from rtcompile.cli.output import set_jobs
    from rtcompile.extras.record import warming

    set_jobs(given)
    planned.start_compiler()
    archs = given.arch or []
    if given.only and "cupy" not in given.records:
        raise InvalidRequest(
            "--only chooses among CuPy's own kernels: rtcompile warm cupy --only …"
        )
    rows = []
    for path in given.records:
        begin = time.perf_counter()
        record = cupys_record(given) if path == "cupy" else read_record(path, given)
        codes = warming.warm(record, archs=archs, progress=False if given.json else None)
        built = sum(code.build.hit is None for code in codes)
        seconds = round(time.perf_counter() - begin, 1)
        size = sum(len(code.code) for code in codes)
        rows.append((path, len(codes), built, len(codes) - built, seconds, size))
    header = ("record", "builds", "built", "there already", "seconds", "bytes")
    records = [dict(zip(header, row, strict=True)) for row in rows]
    shown = [(*row[:-2], f"{row[-2]} s", output.human_size(row[-1])) for row in rows]
    table = output.table((*header[:-2], "took", "size"), shown)
    output.print_result(given, {"records": records}, table)
    return 0


def cupys_record(given: Namespace) -> Record:
    """Return the record of CuPy's own kernels, and mention what differs here."""
    from rtcompile.extras.record import of_cupy
    from rtcompile.lookup.find import compute_capability

    archs = given.arch or ["sm_{}{}".format(*compute_capability())]
    record = of_cupy.record(archs[0], given.only or [])
    _mention_differences("the record of CuPy's kernels", record)
    return record


def read_record(path: str, given: Namespace) -> Record:
    """Return the record in a file, and mention what differs here."""
    from rtcompile.extras.record import recording

    record = recording.read(path, trust_options=given.trust_options)
    _mention_differences(path, record)
    return record


def _mention_differences(path: str, record: Record) -> None:
    """Warn if a record was made with other versions, whose kernels may differ."""
    from rtcompile.extras.record import recording

    for difference in recording.differences(record):
        text = f"{path} was {difference}: the program may request other builds"
        print(f"rtcompile: {text}", file=sys.stderr)

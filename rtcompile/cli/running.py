"""``rtcompile run`` and ``rtcompile warm``: compile a program's CuPy kernels, while it runs or before."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from typing import TYPE_CHECKING

from rtcompile.cli import output
from rtcompile.errors import InvalidRequest
from rtcompile.extras.record import program
from rtcompile.request.values import absolute

if TYPE_CHECKING:
    from rtcompile.extras.record.recording import Record


def run(given: Namespace) -> int:
    """Replace this process by the program, whose end reports its builds."""
    words = list(given.program)
    if given.module_and_arguments is not None:
        words = ["-m", *given.module_and_arguments, *words]
    if not words or words == ["-m"]:
        raise InvalidRequest("no program given: `rtcompile run script.py`, or `-m module`")
    record = absolute(given.record) if given.record else ""
    program.become(words, record=record, json=given.json, check=given.check)


def warm(given: Namespace) -> int:
    """Build everything in the records into the cache."""
    from rtcompile.extras.record import warming  # its imports are not needed for `run`

    archs = given.arch or []
    rows = []
    for path in given.records:
        begin = time.perf_counter()
        record = record_of(path, given)
        # Without a terminal too: a record may take minutes in the build of an image.
        codes = warming.warm(record, archs=archs, progress=not given.json)
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


def record_of(path: str, given: Namespace) -> Record:
    """Return the record in a file, or of CuPy's own kernels, and print differences from this environment."""
    from rtcompile import toolkit
    from rtcompile.extras.record import recording, warming
    from rtcompile.lookup.find import compute_capability

    if path == "cupy":
        path = "the record of CuPy's kernels"
        archs = given.arch or ["sm_{}{}".format(*compute_capability())]
        record = warming.record_of_cupy(archs[0])
    else:
        record = recording.read(path, trust_options=given.trust_options)
    found = toolkit.current()
    compilers = [each.version for each in (found.nvrtc, found.nvcc) if each is not None]
    for difference in recording.differences(record, compilers):
        text = f"{path} was {difference}: the program may request other builds"
        print(f"rtcompile: {text}", file=sys.stderr)
    return record

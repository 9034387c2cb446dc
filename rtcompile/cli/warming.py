"""``rtcompile warm``: builds everything in a record before it is needed."""

from __future__ import annotations

import sys
from argparse import Namespace

from rtcompile.cli import output
from rtcompile.cli.requests import obey_jobs
from rtcompile.everywhere import recording, warming


def run(given: Namespace) -> int:
    """Build everything in the records into the cache."""
    obey_jobs(given)
    warming.start_compiler()
    archs = given.arch.split(",") if given.arch else []
    rows = []
    for path in given.records:
        record = recording.read(path)
        mention_differences(path, record)
        codes = warming.warm(record, archs=archs, progress=False if given.json else None)
        built = sum(code.build.hit is None for code in codes)
        rows.append((path, len(codes), built, len(codes) - built))
    header = ("record", "builds", "built", "there already")
    records = [dict(zip(header, row, strict=True)) for row in rows]
    output.say(given, {"records": records}, output.table(header, rows))
    return 0


def mention_differences(path: str, record: recording.Record) -> None:
    """Tell the user if a record was made with other versions, whose kernels may be others."""
    for difference in recording.differences(record):
        text = f"{path} was {difference}: the program may ask for other builds"
        print(f"rtcompile: {text}", file=sys.stderr)

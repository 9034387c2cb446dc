"""``rtcompile warm``: builds everything in a record before it is needed."""

from __future__ import annotations

from argparse import Namespace

from rtcompile.cli import output
from rtcompile.everywhere import recording, warming

__all__ = ["run"]


def run(given: Namespace) -> int:
    """Build everything in the records into the cache."""
    archs = given.arch.split(",") if given.arch else []
    rows = []
    for path in given.records:
        record = recording.read(path)
        _mention_versions(path, record)
        codes = warming.warm(record, archs=archs, progress=False if given.json else None)
        built = sum(code.build.hit is None for code in codes)
        rows.append((path, len(codes), built, len(codes) - built))
    header = ("record", "builds", "built", "there already")
    if given.json:
        output.print_json({"records": [dict(zip(header, row, strict=True)) for row in rows]})
    else:
        print(output.table(header, rows))
    return 0


def _mention_versions(path: str, record: recording.Record) -> None:
    """Tell the user if a record was made with another CuPy, whose kernels may differ."""
    import sys

    here = recording.versions()
    for name, then in record.versions.items():
        now = here.get(name, "")
        if then and now and then != now:
            text = f"{path} was recorded with {name} {then}, and this is {name} {now}"
            print(f"rtcompile: {text}: the program may ask for other builds", file=sys.stderr)

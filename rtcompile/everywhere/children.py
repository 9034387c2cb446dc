"""Makes Python processes that a program starts part of its run, as those that it forks are.

``multiprocessing``'s spawn and forkserver, ``subprocess`` and others start an interpreter anew. It
finds `started.sitecustomize` by PYTHONPATH and, in a variable, the files to which it appends what
it asked for: those of several runs where a program under ``rtcompile run`` starts another so. One
that does not get the program's variables (``env={}``, ``python -I`` or ``-E``), or is told to
import no ``sitecustomize`` (``-S``), takes no part.
"""

from __future__ import annotations

import json
import os
from types import ModuleType
from typing import Any

from rtcompile.everywhere.counting import Tally
from rtcompile.lookup.find import listeners

_VARIABLE = "RTCOMPILE_RUN"
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "started")

_takes_part = False
_own: set[str] = set()  # the files of the runs that this process began


def invite(tally: Tally, record: str) -> None:
    """Let processes that are started from now on count for `tally`, and append to the `record` if any."""
    run = {"requests": tally.of_children, "process": os.getpid(), "record": record}
    _own.add(tally.of_children)
    os.environ[_VARIABLE] = json.dumps([*_runs(), run])
    # An empty entry among others is the working directory.
    said = os.environ.get("PYTHONPATH")
    before = [path for path in said.split(os.pathsep) if path != _FOLDER] if said else []
    os.environ["PYTHONPATH"] = os.pathsep.join([_FOLDER, *before])


def take_part(compiler: ModuleType | None) -> None:
    """Count and record this process's requests from now on; install in CuPy's compiler module if given."""
    global _takes_part
    if not _takes_part:
        _takes_part = True
        _tallies.extend(_join(run) for run in _runs() if run["requests"] not in _own)
    if compiler is not None and _tallies:
        from rtcompile.everywhere import seam

        problem = seam.install_in(compiler).problem
        for tally in _tallies if problem else ():
            tally.note_problem(problem)


_tallies: list[Tally] = []


def _join(run: dict[str, Any]) -> Tally:
    """Count and record this process's requests for a run that another process began."""
    tally = Tally((run["requests"], run["process"]))
    listeners.append(tally.note)
    if run["record"]:
        from rtcompile.everywhere.recording import Recorder

        Recorder(run["record"]).join()
    return tally


def _runs() -> list[dict[str, Any]]:
    """Return what the variable says of the runs that this process is part of."""
    try:
        runs = json.loads(os.environ.get(_VARIABLE, ""))
        for run in runs:
            run["requests"], run["process"], run["record"]
    except (ValueError, TypeError, KeyError):
        return []
    return list(runs)

"""Makes Python processes that a program starts part of its run, as those that it forks are.

``multiprocessing``'s spawn and forkserver, ``subprocess`` and others start an interpreter anew. It
finds `started.sitecustomize` by PYTHONPATH and, in a variable, the files to which it appends what it
asked for. One that does not get the program's variables (``env={}``, ``python -I`` or ``-E``), or is
told to import no ``sitecustomize`` (``-S``), takes no part.
"""

from __future__ import annotations

import json
import os
from types import ModuleType

from rtcompile.cache import answers
from rtcompile.everywhere.counting import Tally
from rtcompile.watching import logs

__all__ = ["invite", "take_part"]

_VARIABLE = "RTCOMPILE_RUN"
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "started")

_takes_part = False


def invite(tally: Tally, record: str) -> None:
    """Let processes that are started from now on count for `tally`, and append to the `record` if any."""
    os.environ[_VARIABLE] = json.dumps({"requests": tally.of_children, "record": record})
    before = [
        path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != _FOLDER
    ]
    os.environ["PYTHONPATH"] = os.pathsep.join([_FOLDER, *filter(None, before)])


def take_part(compiler: ModuleType | None) -> None:
    """Count and record this process's requests from now on; install in CuPy's compiler module if given."""
    global _takes_part
    tally = _tally()
    if tally is None:
        return
    if not _takes_part:
        _takes_part = True
        logs.counters.append(tally.note)
        answers.watchers.append(tally.note_answer)
    if compiler is not None:
        from rtcompile.everywhere import seam

        problem = seam.install_in(compiler).problem
        if problem:
            tally.note_problem(problem)


_known: dict[str, Tally] = {}


def _tally() -> Tally | None:
    """Return what the requests of this process are counted in; None if it is no part of a run."""
    said = os.environ.get(_VARIABLE, "")
    if said not in _known:
        try:
            asked = json.loads(said)
            requests, record = asked["requests"], asked["record"]
        except (ValueError, TypeError, KeyError):
            return None
        _known[said] = Tally(of_parent=requests)
        if record:
            from rtcompile.everywhere.recording import Recorder

            Recorder(record).join()
    return _known[said]

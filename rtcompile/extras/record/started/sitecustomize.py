"""Lets a Python process that a program under ``rtcompile run`` starts take part in the run.

Python imports the first ``sitecustomize`` on sys.path when it starts. This one takes a tenth of a millisecond: it
waits until the process imports CuPy's compiler or rtcompile's look-up, and imports the ``sitecustomize`` that it
hides. Any Python 3 may run it, so until then it uses neither rtcompile nor new syntax.
"""

import os
import sys
from _frozen_importlib_external import (
    PathFinder,
)  # of `importlib.machinery`, whose import takes longer

COMPILER = "cupy.cuda.compiler"
_LOOK_UP = "rtcompile.lookup.find"
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class Finder:  # without a base class of `importlib.abc`, which takes 5 ms
    """Lets the process take part when CuPy's compiler or the look-up, found by the search path, has been loaded."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None", target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        spec = PathFinder.find_spec(name, path, target) if name in (COMPILER, _LOOK_UP) else None
        if spec is not None and spec.loader is not None:
            self._act_after(spec.loader)
        return spec

    def _act_after(self, loader: "Loader") -> None:
        """Let a loader of one of the modules act on it when it has loaded it."""
        load = loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            load(module)
            if module.__name__ in (COMPILER, _LOOK_UP):
                _take_part(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]


def _take_part(module: "ModuleType") -> None:
    try:
        from rtcompile.extras.record import program
    except ImportError:  # it is the Python of another environment
        return
    program.take_part(with_cupy=module.__name__ == COMPILER)


def _begin() -> None:
    """Begin the run if this is its main process; rtcompile is searched for where the command found it, too."""
    if '"process": "%d ' % os.getpid() not in os.environ.get("RTCOMPILE_RUN", ""):  # noqa: UP031
        return
    try:
        from rtcompile.extras.record import program
    except ImportError:  # the command was run in a folder with the package
        folder = os.path.abspath(__file__)
        for _ in range(5):
            folder = os.path.dirname(folder)
        sys.path.append(folder)
        from rtcompile.extras.record import program
    program.begin()


def _hand_on() -> None:
    """Import the ``sitecustomize`` that this one hides, if any."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    this = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault(__name__, this)


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, Finder())
    _begin()
    _hand_on()

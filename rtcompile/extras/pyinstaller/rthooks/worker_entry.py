"""Runs first in a frozen application, which becomes a worker if `workers.process.bare` started it as one.

This is what `multiprocessing.freeze_support` is for the processes of `multiprocessing`.
"""

import sys

sys.rtcompile_worker = "--rtcompile-worker"  # type: ignore[attr-defined]
if sys.argv[1:2] == ["--rtcompile-worker"]:
    del sys.argv[1]
    # An empty module replaces the package, so its `__init__` and imports are not loaded.
    package = sys.modules["rtcompile"] = type(sys)("rtcompile")
    package.__path__ = [sys.argv[1]]
    module, _, name = sys.argv[2].partition(":")
    __import__(module)
    getattr(sys.modules[module], name)(*sys.argv[3:])
    sys.exit()

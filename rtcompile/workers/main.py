"""Start a zygote: ``python -I -S main.py PARENT_PID IDLE_SECONDS TMPDIR FOLDER``.

A bare interpreter: no site-packages, no user's ``__main__``, no environment's PYTHON* (``-I -S``).
"""

from __future__ import annotations

import os
import sys
from types import ModuleType


def main() -> None:
    """Find the package's worker-side modules and serve."""
    # An empty module replaces the package, so its `__init__` and its imports are not loaded.
    package = ModuleType("rtcompile")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules["rtcompile"] = package

    from rtcompile.workers import zygote

    zygote.main(sys.argv[1:])


if __name__ == "__main__":
    main()

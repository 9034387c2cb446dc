"""CUDA C++ in notebooks: ``%load_ext rtcompile``, then ``%%cuda``."""

from __future__ import annotations

from typing import Any

from rtcompile.errors import RtcompileError

__all__ = ["load_ipython_extension"]


def load_ipython_extension(shell: Any) -> None:
    """Load the extension: IPython calls this for ``%load_ext rtcompile``."""
    try:
        from rtcompile.extras.notebook import magics
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "IPython":
            raise
        raise RtcompileError("%%cuda needs IPython: pip install ipython") from None
    magics.load(shell)

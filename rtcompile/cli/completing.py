"""``rtcompile completion``: prints a shell's completion script, which shtab makes of the parser."""

from __future__ import annotations

from argparse import Namespace

from rtcompile.cli.arguments import parser
from rtcompile.errors import ToolkitNotFound


def run(given: Namespace) -> int:
    """Print the completion script."""
    try:
        import shtab
    except ImportError:
        raise ToolkitNotFound(
            "completion needs shtab, which is not installed; `pip install rtcompile[cli]`"
        ) from None
    print(shtab.complete(parser(), shell=given.shell))
    return 0

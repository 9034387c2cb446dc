"""What ``profile`` may be told: the verbs for who writes a kernel."""

from __future__ import annotations

import argparse

__all__ = ["add_profile"]


def add_profile(sub: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``rtcompile profile`` besides those of a build."""
    sub.add_argument("file", metavar="FILE.cu", help="the source to compile; - reads stdin")
    sub.add_argument("--html", metavar="FILE", help="write a flame graph: one page, no network")
    sub.add_argument("--trace", metavar="FILE", help="write a Chrome trace, for Perfetto")
    sub.add_argument("--top", type=int, default=15, metavar="N", help="rows of a table")

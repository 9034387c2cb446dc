"""The arguments of ``run`` and ``warm``, the verbs for whole programs."""

from __future__ import annotations

import argparse

from rtcompile.cli import parsing


def add_run(sub: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``rtcompile run``."""
    sub.add_argument(
        "--record", metavar="FILE", help="write every request of the run, for rtcompile warm"
    )
    sub.add_argument(
        "--check",
        action="store_true",
        help="forbid compiling; exit with 1 if something had to be compiled",
    )
    sub.add_argument("--report", action="store_true", help="show a line per kernel at the end")
    sub.add_argument(
        "-m",
        nargs=argparse.REMAINDER,
        dest="module_and_arguments",
        help="MODULE and its arguments: run a module, as python -m",
    )
    sub.add_argument(
        "program",
        metavar="SCRIPT",
        nargs=argparse.REMAINDER,
        help="the script, and all that stands after it is the script's own",
    )


def add_warm(sub: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``rtcompile warm``."""
    sub.add_argument(
        "records", metavar="RECORD", nargs="+", help="what rtcompile run --record wrote"
    )
    sub.add_argument(
        "--arch",
        metavar="ARCH[,…]",
        action=parsing.Joined,
        help="for these devices instead of the recorded one",
    )
    sub.add_argument("-j", "--jobs", type=int, metavar="N", help="builds at a time")

"""The arguments of verbs for authors of kernels and of packages."""

from __future__ import annotations

import argparse


def add_clangd(sub: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``rtcompile clangd``."""
    sub.add_argument(
        "paths", metavar="PATH", nargs="*", help="sources, Python files, folders; without it ROOT"
    )
    sub.add_argument(
        "--root", metavar="ROOT", default=".", help="the project's folder (default: this one)"
    )
    sub.add_argument("--arch", metavar="ARCH", help="whose code is active (default: sm_80)")


def add_profile(sub: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``rtcompile profile`` besides those of a build."""
    sub.add_argument("file", metavar="FILE.cu", help="the source to compile; - reads stdin")
    sub.add_argument("--html", metavar="FILE", help="write a flame graph: one page, no network")
    sub.add_argument("--trace", metavar="FILE", help="write a Chrome trace, for Perfetto")
    sub.add_argument("--top", type=int, default=15, metavar="N", help="rows of a table")


def add_proof(sub: argparse.ArgumentParser) -> None:
    """Declare how ``rtcompile bundle`` writes incomplete bundles and describes one: TARGET."""
    sub.add_argument(
        "--skip-unshippable",
        action="store_true",
        help="leave out what cannot be shipped, and write the rest: --list and verify tell of it",
    )
    sub.add_argument("--list", action="store_true", help="show what is in a bundle: TARGET")
    sub.add_argument(
        "--matrix",
        action="store_true",
        help="show what each GPU gets from a bundle (cubin, PTX, nothing), and the least driver",
    )
    sub.add_argument(
        "--provenance",
        action="store_true",
        help="print as JSON what each build was made of: compiler, options, header digests",
    )
    sub.add_argument(
        "--rebuild", action="store_true", help="with verify: compile again, compare byte by byte"
    )

"""Sphinx's configuration. `make docs` builds the site from the pages beside this file.

A line ``<!-- made: NAME -->`` in a page is replaced, while the site is built, by what `scripts.made`
writes from the code: tables of variables, of messages, of benchmarks, pictures. Nothing generated is
committed.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from scripts import made  # noqa: E402

import rtcompile  # noqa: E402

project = "rtcompile"
author = "the rtcompile authors"
copyright = "the rtcompile authors"
release = version = rtcompile.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "scripts"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]
smartquotes = False  # headings quote compilers, letter by letter

html_theme = "furo"
html_search_scorer = str(HERE / "scripts/static/scorer.js")
html_title = "rtcompile"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"sidebar_hide_name": False}
pygments_style = "tango"
pygments_dark_style = "monokai"

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False


def setup(app):  # type: ignore[no-untyped-def]
    app.connect("source-read", made.fill_in)
    app.connect("build-finished", made.list_external_links)

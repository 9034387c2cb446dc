"""``python -m rtcompile``: the `rtcompile` command of this interpreter."""

from __future__ import annotations

import sys

from rtcompile.cli import main

sys.exit(main())

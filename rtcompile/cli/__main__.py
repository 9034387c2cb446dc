"""``python -m rtcompile.cli``."""

from __future__ import annotations

import sys

from rtcompile.cli import main

sys.exit(main())

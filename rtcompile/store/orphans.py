"""Releases the leases that a process left behind when it ended; `ending.Helper` starts this."""

from __future__ import annotations

import json
import sys
from contextlib import suppress

from rtcompile.store.remote import Remote
from rtcompile.store.shared import BadEntryError, RemoteSettings


def main() -> None:
    """Release the leases that standard input lists, a place and a token on each line."""
    stores = Remote(RemoteSettings.from_environ())
    for line in sys.stdin.read().splitlines():
        place, _, token = line.partition(" ")
        for tier in stores.tiers:
            held = tier.ask("get", place) if hasattr(tier.store, "replace") else None
            with suppress(BadEntryError, ValueError, TypeError):
                name = place.rpartition("/")[2]
                fields = json.loads(stores.envelope.open("lease", name, held))
                if fields.get("token") == token:
                    tier.ask("replace", place, held, None, 1.0, waiting=False)

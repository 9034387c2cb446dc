"""Fetches what shared stores have of many builds, before a program asks for them one by one."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from rtcompile.build import miss
from rtcompile.build.batch import Planner
from rtcompile.errors import RtcompileError
from rtcompile.request.request import CompileRequest
from rtcompile.settings import Settings
from rtcompile.store import sharing
from rtcompile.store.remote import Remote
from rtcompile.store.store import Store


def fetch(stores: Remote, requests: Iterable[CompileRequest]) -> tuple[int, int, int]:
    """Write to the cache what stores have of requests.

    Returns how many came, how many were there before, and how many no store has.
    """
    settings = Settings.from_environ()
    store, planner = Store.open(settings), Planner()
    inputs = []
    count = there = 0
    for request in requests:
        count += 1
        with suppress(
            RtcompileError
        ):  # what cannot be planned is built, and fails, when it is used
            plan = miss.identified(planner(request, settings), settings)
            if store.find(plan.key_inputs) is None:
                inputs.append(plan.key_inputs)
            else:
                there += 1
    came = sharing.fetch_many(stores, inputs, store)
    return came, there, count - came - there

"""Doctor's look at the shared stores of a cluster: what each does, and what it may do here."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from rtcompile.cluster.breaker import PROMPT_SECONDS, within
from rtcompile.cluster.remote import Remote
from rtcompile.cluster.settings import RemoteSettings
from rtcompile.cluster.stores import LeasesUnsupportedError, SharedStore, StoreError
from rtcompile.doctor.check import Check
from rtcompile.errors import InvalidRequest
from rtcompile.settings import Settings
from rtcompile.toolkit import Toolchain

_MOST_SECONDS = 5.0  # for all questions to one store
_MOST_SKEW_SECONDS = 2.0  # leases in files and objects end by the nodes' clocks


def checks(settings: Settings, toolchain: Toolchain) -> Iterator[Check]:
    """Try each store: round trip, clock, lease, rights."""
    try:
        found = RemoteSettings.from_environ()
        if found.shares_nothing:
            yield Check("shared stores", "warning", found.shares_nothing)
        if not settings.remote:
            return
        stores = Remote(found)
    except InvalidRequest as error:
        yield Check("shared stores", "error", str(error), "Builds go on without them.")
        return
    for tier in stores.tiers:
        check, _, problem = within(_MOST_SECONDS, partial(_try, tier.store, found.mode))
        yield check or _unreachable(tier.store, problem)


def _unreachable(store: SharedStore, problem: str) -> Check:
    step = "Builds go on without it. Is the server there, and are address and password right?"
    return Check(_name(store), "error", f"{store.name}: {problem}", step)


def _name(store: SharedStore) -> str:
    return f"shared store {store.name.partition(':')[0]}"


def _try(store: SharedStore, mode: str) -> Check:
    name = _name(store)
    probe = f"probe/{secrets.token_hex(8)}"
    begin = time.monotonic()
    try:
        store.get(probe)
        seconds = time.monotonic() - begin
        begin = time.monotonic()  # the first answer was the connection's, too
        store.get(probe)
        seconds = min(seconds, time.monotonic() - begin)
    except StoreError as error:
        return _unreachable(store, str(error))
    detail = f"{store.name}: {seconds * 1e3:.1f} ms a round trip; reads"
    if mode != "rw":
        return Check(name, "ok", f"{detail} (RTCOMPILE_REMOTE_MODE={mode}: nothing is written)")
    try:
        store.put(probe, b"probe")
    except StoreError as error:
        step = "Grant the right, or set RTCOMPILE_REMOTE_MODE=ro."
        return Check(name, "warning", f"{detail}, cannot write: {error}", step)
    try:
        skew = store.clock(probe) - time.time()
        detail += f", writes; its clock is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}"
        leased = f"{probe}-lease"
        token = secrets.token_hex(8)
        claims = [store.acquire(leased, each, 10.0) for each in (token, "another")]
        store.release(leased, token)
    except LeasesUnsupportedError as error:
        return Check(name, "warning", detail, f"{error}.")
    except StoreError as error:
        return Check(name, "warning", f"{detail}; {error}", "It answers only at times.")
    finally:
        with suppress(StoreError):
            store.delete(probe)
    if claims != ["ours", "another's"]:
        step = "Two nodes may build the same at once."
        return Check(name, "warning", f"{detail}; its leases do not hold", step)
    detail += "; gives leases"
    if seconds > PROMPT_SECONDS:
        step = "Builds wait a second for it in all; one nearer by comes first in RTCOMPILE_REMOTE."
        return Check(name, "warning", detail, step)
    if abs(skew) > _MOST_SKEW_SECONDS and not store.name.startswith("redis"):
        step = "Leases end by the nodes' clocks: set them (NTP)."
        return Check(name, "warning", detail, step)
    return Check(name, "ok", detail)

"""`rtcompile doctor`: checks everything that builds need, and names what to install or unset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from rtcompile.checkup.checks import Check
from rtcompile.errors import RtcompileError
from rtcompile.settings import Settings

__all__ = ["Check", "examine", "verdict"]

_VERDICTS = {"error": 2, "warning": 1}


def examine(*, probes: bool = True) -> Iterator[Check]:
    """Yield each check of this environment when done; `probes` also compile sources and launch a kernel."""
    from rtcompile import toolkit
    from rtcompile.checkup import checks, probing

    yield from checks.system()
    try:
        settings = Settings.from_environ()
    except RtcompileError as error:
        yield Check("settings", "error", str(error), "Correct the variable, or unset it.")
        settings = Settings.from_environ({})
    toolchain = toolkit.current(settings)
    parts = {
        "toolkit": partial(checks.toolkit_parts, toolchain),
        "device": partial(checks.devices, toolchain),
        "packages": partial(checks.packages, toolchain),
        "cache": partial(checks.cache_checks, settings),
        "shared stores": partial(checks.shared_stores, settings),
    }
    if probes:
        parts["workers"] = partial(probing.workers, settings, toolchain)
        parts["probes"] = partial(probing.probes, settings, toolchain)
    for name, check in parts.items():
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001  # a broken installation can raise anything
            yield Check(name, "error", f"the check itself failed: {error!r}")


def verdict(checks: Iterable[Check]) -> int:
    """Return the exit code: 0 without problems, 1 with warnings, 2 with errors."""
    return max((_VERDICTS.get(check.status, 0) for check in checks), default=0)

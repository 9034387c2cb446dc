"""The result of one check of `rtcompile doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked: its name, such as "compile WMMA", and the finding."""

    name: str
    # "ok", "note" (an optional part is missing), "warning" or "error" (it does not work).
    status: str
    detail: str
    hint: str = ""  # what to install or unset; empty if there is nothing to do

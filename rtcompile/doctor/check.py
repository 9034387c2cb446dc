"""The result of one check of `rtcompile doctor`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Check"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked.

    Attributes
    ----------
    name : str
        What was checked: "nvrtc", "cache directory", "compile WMMA".
    status : {"ok", "note", "warning", "error"}
        A note is about an optional part that is missing, a warning about something that may cause
        problems, an error about something that does not work.
    detail : str
        The finding.
    hint : str
        What to install or unset; empty if there is nothing to do.
    """

    name: str
    status: str
    detail: str
    hint: str = ""

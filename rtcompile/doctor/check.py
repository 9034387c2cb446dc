"""The one value that `rtcompile doctor` is made of."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Check"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes
    ----------
    name : str
        What was looked at: "nvrtc", "cache directory", "compile WMMA".
    status : {"ok", "note", "warning", "error"}
        A note is something that is missing and may well be; a warning something to look at; an
        error something that does not work.
    detail : str
        What was found.
    hint : str
        What to install or unset; empty where there is nothing to do.
    """

    name: str
    status: str
    detail: str
    hint: str = ""

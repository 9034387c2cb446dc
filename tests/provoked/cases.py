"""The class of a catalogue's case, and the cases of the tables beside this file (`tests/tables.py` reads them)."""

from dataclasses import dataclass

import pytest

from tests.tables import rows

EMPTY = "__global__ void k() {}"


@dataclass(frozen=True)
class Provoked:
    """How to provoke a compiler's message, and texts that the hint must contain.

    `headers` are include directories: ``"12:cudart 13:cccl"``. `toolkit` is whose NVRTC it is.
    """

    message: str
    hint: tuple[str, ...]
    source: str = EMPTY
    options: str = ""
    headers: str = ""
    toolkit: str = "12"
    arch: str = "sm_80"
    names: tuple[str, ...] = ()
    bare: bool = False  # no options are added: no -arch, no -std, no -default-device
    capability: tuple[int, int] | None = None
    seconds: float | None = None
    memory: int | None = None
    plain: bool = False  # plain NVRTC, without rtcompile's options and precautions
    builtins: bool = True  # whether its second library is beside it


def cases(file: str) -> list[object]:
    """Return the cases of a table.

    One is `slow` where tests/forty_mistakes.txt, or a case with fewer headers, provokes the row too.
    """
    found = []
    for row, message, hint, how, source in rows(f"provoked/{file}"):
        marks = [pytest.mark.slow] * bool(how.pop("slow", False))
        provoked = Provoked(message, tuple(hint.split(" ~ ")), source or EMPTY, **how)  # type: ignore[arg-type]
        suffix = "-".join(str(how[name]) for name in ("toolkit", "arch") if name in how)
        found.append(pytest.param(row, provoked, id=f"{row}-{suffix}".rstrip("-"), marks=marks))
    return found

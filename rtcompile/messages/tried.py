"""Changes of a source that are compiled before a hint names them, so that the hint is true of this source."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rtcompile.diagnostic import Diagnostic
from rtcompile.messages import diagnostics

_NO_EFFECT = "expression has no effect"  # `a; b` for `a * b` compiles, and is not what was meant


class Attempts:
    """Compiles at most so many changed sources, and says of each what it does to an error."""

    def __init__(
        self,
        compile: Callable[[str, tuple[str, ...]], str | None],
        source: str,
        found: Sequence[Diagnostic],
        most: int,
    ) -> None:
        self._compile = (
            compile  # returns the log for a source and further options, None if there is none
        )
        self._lines = source.split("\n")
        self._before = {_key(each) for each in found if each.is_error}
        self._warned = {_key(each) for each in found}
        self._most = most
        self._logs: dict[tuple[str, tuple[str, ...]], tuple[Diagnostic, ...] | None] = {}

    def proof(self, error: Diagnostic, source: str, options: tuple[str, ...] = ()) -> str:
        """Return a sentence on what the change does; "" if it does not help, or too many were tried."""
        after = self._outcome(source, options) if _key(error) in self._before else None
        if after is None:
            return ""
        errors = {_key(each) for each in after if each.is_error}
        if not errors <= self._before - {_key(error)} or any(
            _NO_EFFECT in each.message and _key(each) not in self._warned for each in after
        ):
            return ""
        if any(excerpt and excerpt == _key(error)[1] for _, excerpt in errors):
            return ""  # the line is as wrong as it was
        line = self._changed_line(source)
        return f"{line or 'With this change'} {GONE if errors else COMPILES}"

    def _changed_line(self, source: str) -> str:
        """Return how the only line reads that a change has left other than it was; "" for further ones."""
        lines = source.split("\n")
        pairs = enumerate(zip(self._lines, lines, strict=False), 1)
        other = [(number, after.strip()) for number, (before, after) in pairs if before != after]
        if len(lines) != len(self._lines) or len(other) != 1 or len(other[0][1]) > _LONGEST_LINE:
            return ""
        return f"With line {other[0][0]} as `{other[0][1]}`" if other[0][1] else ""

    def _outcome(self, source: str, options: tuple[str, ...]) -> tuple[Diagnostic, ...] | None:
        key = (source, options)
        if key not in self._logs:
            if len(self._logs) >= self._most:
                return None
            log = self._compile(source, options)
            self._logs[key] = None if log is None else diagnostics.parse(log)
        return self._logs[key]


COMPILES = "the source compiles."
GONE = "this error is gone."
_LONGEST_LINE = 90


def _key(message: Diagnostic) -> tuple[str, str]:
    return message.message, message.excerpt.partition("\n")[0].strip()

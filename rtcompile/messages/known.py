"""A row of the catalogue of messages.

``{names}`` in a row are filled in from the build: from its `BuildContext`, from the groups of the
pattern, and from the result of the row's `values` function (in `facts`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rtcompile.messages import facts
from rtcompile.messages.context import BuildContext
from rtcompile.messages.facts import Fill, Match


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """A message of a compiler, linker or driver, with its cause and what to do."""

    id: str  # its name, for ``rtcompile explain`` and the documentation
    # Searched in ``file: message``, the source line and the notes, a line each.
    pattern: re.Pattern[str]
    cause: str  # `cause` and `fix` are templates: what is wrong with this build, and the next step
    fix: str
    since: str  # the earliest release that was seen to print it
    # Further names for the templates; None where the row does not fit this build after all.
    values: Fill | None

    def hint(self, match: Match, context: BuildContext) -> str:
        """Fill in the templates; an empty string where the row does not fit this build."""
        values = {} if self.values is None else self.values(match, context)
        if values is None:
            return ""
        groups = {name: text or "" for name, text in match.groupdict().items()}
        names = {**facts.of_build(context), **groups, **values}
        return f"{self.cause.format_map(names)} {self.fix.format_map(names)}".strip()


def row(
    id_: str, pattern: str, cause: str, fix: str, since: str, values: Fill | None = None
) -> KnownMessage:
    """Return a row of the catalogue, its pattern compiled."""
    return KnownMessage(id_, re.compile(pattern), cause, fix, since, values)

"""The catalogue of messages: what a compiler, a linker or the driver says, why, and what to do.

The messages themselves are in ``catalogue.ini``, which says how they are written.
"""

from __future__ import annotations

import configparser
import os
import re
from dataclasses import dataclass

from rtcompile.messages import facts
from rtcompile.messages.facts import BuildContext


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """A section of ``catalogue.ini``."""

    id: str  # its name, for ``rtcompile explain`` and the documentation
    pattern: re.Pattern[str]
    cause: str
    fix: str
    since: str
    values: facts.Fill | None

    def hint(self, match: re.Match[str], context: BuildContext) -> str:
        """Fill in the templates; an empty string where the message does not fit this build."""
        values = {} if self.values is None else self.values(match, context)
        if values is None:
            return ""
        groups = {name: text or "" for name, text in match.groupdict().items()}
        names = {**facts.of_build(context), **groups, **values}
        return f"{self.cause.format_map(names)} {self.fix.format_map(names)}".strip()


def _read() -> tuple[KnownMessage, ...]:
    parser = configparser.RawConfigParser()
    with open(os.path.join(os.path.dirname(__file__), "catalogue.ini"), encoding="utf-8") as file:
        parser.read_file(file)
    return tuple(
        KnownMessage(
            name,
            re.compile(row["pattern"].replace("\n", "")),
            row["cause"].replace("\n", " "),
            row["fix"].replace("\n", " "),
            row["since"],
            getattr(facts, row["values"]) if "values" in row else None,
        )
        for name, row in parser.items()
        if name != parser.default_section
    )


MESSAGES = _read()

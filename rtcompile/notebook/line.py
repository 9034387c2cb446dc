"""Parses the line behind ``%%cuda``: rtcompile's few options; all others are the compiler's."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from rtcompile.errors import InvalidRequest

_OURS = ("--arch", "--backend", "--module")


@dataclass(frozen=True, slots=True)
class Line:
    """The options of a ``%%cuda`` line; ``""`` where the line does not give one."""

    arch: str = ""
    backend: str = ""
    module: str = ""  # the name to bind the cell's module to
    names: tuple[str, ...] = ()  # instances of templates to build together with the cell
    options: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> Line:
        """Read a line; an option without its value, or a quote without an end, is an error."""
        try:
            words = iter(shlex.split(text))
        except ValueError as error:
            raise InvalidRequest(f"%%cuda {text}: {error}") from None
        ours = dict.fromkeys(_OURS, "")
        names: list[str] = []
        options: list[str] = []
        for word in words:
            name, equals, value = word.partition("=")
            if name not in (*_OURS, "-n"):
                options.append(word)
                continue
            value = value if equals else next(words, "")
            if not value:
                raise InvalidRequest(f"%%cuda {text}: {name} needs a value")
            if name == "-n":
                names.append(value)
            else:
                ours[name] = value
        arch, backend, module = ours.values()
        return cls(arch, backend, module, tuple(names), tuple(options))

    def after(self, defaults: Line) -> Line:
        """Return this line with missing values taken from the defaults, and their options first."""
        return Line(
            self.arch or defaults.arch,
            self.backend or defaults.backend,
            self.module,
            self.names,
            (*defaults.options, *self.options),
        )

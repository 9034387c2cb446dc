"""The API reference: a directive for everything that `rtcompile` exports, by kind."""

from __future__ import annotations

import inspect
from operator import attrgetter

import rtcompile

_KERNELS = ("RawKernel", "RawModule")


def directives(kind: str) -> str:
    """Return the directives of one kind: kernels, functions, classes, errors."""
    lines = ["```{eval-rst}"]
    names = [name for name in dir(rtcompile) if name not in rtcompile._MODULES]
    for module in rtcompile._MODULES:
        names += [f"{module}.{name}" for name in dir(getattr(rtcompile, module))]
    for name in sorted(names, key=str.lower):
        if name.startswith("_") or _kind(name) != kind:
            continue
        lines.append(f".. auto{_DIRECTIVES[kind]}:: rtcompile.{name}")
        if kind == "errors":
            lines += ["   :no-members:", "   :show-inheritance:"]
        elif kind in ("kernels", "classes"):
            fields = getattr(attrgetter(name)(rtcompile), "__annotations__", {})
            if fields:  # they stand in the docstring
                lines.append(f"   :exclude-members: {', '.join(fields)}")
        lines += _inherited(name) if kind == "kernels" else []
    return "\n".join([*lines, "```"])


def _inherited(name: str) -> list[str]:
    """Return directives for what a class has from a base of ours, which is not public itself."""
    cls = getattr(rtcompile, name)
    lines = []
    for base in cls.__mro__[1:]:
        if base.__module__.split(".")[0] != "rtcompile":
            continue
        for member, value in vars(base).items():
            if member.startswith("_") or member in vars(cls) or not inspect.getdoc(value):
                continue
            directive = "autoproperty" if isinstance(value, property) else "automethod"
            lines.append(f".. {directive}:: rtcompile.{name}.{member}")
    return lines


_DIRECTIVES = {
    "kernels": "class",
    "functions": "function",
    "classes": "class",
    "errors": "exception",
}


def _kind(name: str) -> str:
    thing = attrgetter(name)(rtcompile)
    if name in _KERNELS:
        return "kernels"
    if not inspect.isclass(thing):
        return "functions"
    return "errors" if issubclass(thing, BaseException) else "classes"

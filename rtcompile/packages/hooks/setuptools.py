"""The hook for setuptools, configured by ``[tool.rtcompile.bundle]``.

Setuptools packs Python files only, by default. So the hook names the kernels' sources and
headers as data of the packages that are bundled: they go into the sdist, which a wheel may be built from,
and into the wheel, whose bundle answers only for the sources and headers that it was made from.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SOURCES = ("cu", "cuh", "h", "hpp", "hxx", "hh", "inl", "ipp", "inc")
_ADVICE = (
    f"The hook adds the packages' files that end in .{', .'.join(_SOURCES)}. Name others, for example "
    '`package-data = { mypackage = ["kernels/*"] }` in [tool.setuptools].'
)


def finalize(distribution: Any) -> None:
    """Let ``build_py`` make the bundle, if the project in this folder has a table for it."""
    fields = _table()
    if fields is None:
        return
    from rtcompile.packages.hooks import Table

    with _errors_without_traceback():
        table = Table.read(fields, "tool.rtcompile.bundle")
    bundled = {target.partition(":")[0].partition(".")[0] for target in table.targets}
    before = distribution.get_command_class("build_py")

    class BuildWithBundle(before):  # type: ignore[misc,valid-type]
        """Copies the project's modules and kernels, and builds the bundle beside them."""

        package_data: dict[str, list[str]]

        def finalize_options(self) -> None:
            super().finalize_options()
            self.package_data = dict(self.package_data or {})
            for package in self.packages or ():
                if package.partition(".")[0] in bundled:
                    given = self.package_data.get(package, [])
                    self.package_data[package] = [*given, *(f"**/*.{end}" for end in _SOURCES)]

        def run(self) -> None:
            super().run()
            if getattr(self, "editable_mode", False):
                return
            with _errors_without_traceback():
                table.build(os.getcwd(), os.path.join(self.build_lib, table.bundle))
                table.check(os.getcwd(), os.path.abspath(self.build_lib), _ADVICE)

        def get_outputs(self, *arguments: Any, **options: Any) -> list[str]:
            outputs = super().get_outputs(*arguments, **options)
            if getattr(self, "editable_mode", False):
                return [*outputs]
            return [*outputs, os.path.join(self.build_lib, table.bundle)]

    distribution.cmdclass["build_py"] = BuildWithBundle


@contextmanager
def _errors_without_traceback() -> Iterator[None]:
    """Raise errors of rtcompile as setuptools' own: it shows only their message."""
    from setuptools.errors import SetupError

    from rtcompile.errors import RtcompileError

    try:
        yield
    except RtcompileError as error:
        raise SetupError(f"rtcompile: {error}") from None


def _table() -> dict[str, Any] | None:
    """Return the project's table, None for a project that has none; refuse what would be ignored."""
    try:
        with open("pyproject.toml", "rb") as file:
            data = file.read()
    except OSError:
        return None
    if b"rtcompile" not in data:
        return None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        from setuptools.compat.py310 import tomllib
    tool = tomllib.loads(data.decode()).get("tool", {})
    fields: dict[str, Any] | None = tool.get("rtcompile", {}).get("bundle")
    if fields is not None and "build_py" in tool.get("setuptools", {}).get("cmdclass", {}):
        from setuptools.errors import SetupError

        raise SetupError(
            "[tool.rtcompile.bundle] does nothing beside a build_py in [tool.setuptools.cmdclass], which "
            "takes its place; give that class by setup(cmdclass=…) in setup.py"
        )
    return fields

"""The hook for setuptools, configured by ``[tool.rtcompile.bundle]``."""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["finalize"]


def finalize(distribution: Any) -> None:
    """Let ``build_py`` make the bundle, if the project in this folder has a table for it.

    Setuptools calls this for every project that it builds in an environment with rtcompile.
    """
    fields = _table()
    if fields is None:
        return
    from rtcompile.packages.hooks import Table

    table = Table.read(fields, "tool.rtcompile.bundle")
    before = distribution.get_command_class("build_py")

    class BuildWithBundle(before):  # type: ignore[misc,valid-type]
        """Copies the project's modules, and builds the bundle beside them."""

        def run(self) -> None:
            super().run()
            if not getattr(self, "editable_mode", False):
                table.build(os.getcwd(), os.path.join(self.build_lib, table.bundle))

        def get_outputs(self, *arguments: Any, **options: Any) -> list[str]:
            path = os.path.join(self.build_lib, table.bundle)
            return [*super().get_outputs(*arguments, **options), path]

    distribution.cmdclass["build_py"] = BuildWithBundle


def _table() -> dict[str, Any] | None:
    try:
        with open("pyproject.toml", "rb") as file:
            data = file.read()
    except OSError:
        return None
    if b"tool.rtcompile" not in data:
        return None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        from setuptools.compat.py310 import tomllib
    fields: dict[str, Any] | None = (
        tomllib.loads(data.decode()).get("tool", {}).get("rtcompile", {}).get("bundle")
    )
    return fields

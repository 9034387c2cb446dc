"""The hook for hatchling, configured by ``[tool.hatch.build.hooks.rtcompile]``."""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.plugin import hookimpl

from rtcompile.packages.hooks import Table
from rtcompile.storage import temporary

__all__ = ["BundleHook", "hatch_register_build_hook"]


class BundleHook(BuildHookInterface):  # type: ignore[misc]
    """Builds the bundle and includes it in the wheel."""

    PLUGIN_NAME = "rtcompile"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it, before the wheel's files are gathered."""
        if self.target_name != "wheel" or version == "editable":
            return
        fields = {k: v for k, v in self.config.items() if k not in _HATCHLINGS_OWN}
        table = Table.read(fields, "tool.hatch.build.hooks.rtcompile")
        path = os.path.join(temporary.folder("bundle"), os.path.basename(table.bundle))
        table.build(self.root, path)
        build_data["force_include"][path] = table.bundle


_HATCHLINGS_OWN = frozenset(
    {
        "dependencies",
        "enable-by-default",
        "require-runtime-dependencies",
        "require-runtime-features",
    }
)


@hookimpl  # type: ignore[untyped-decorator]
def hatch_register_build_hook() -> type[BundleHook]:
    """Tell hatchling of the hook."""
    return BundleHook

"""The hook for hatchling, configured by ``[tool.hatch.build.hooks.rtcompile]``."""

from __future__ import annotations

import os
import tempfile
import zipfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.plugin import hookimpl

from rtcompile.errors import RtcompileError
from rtcompile.extras.packaging.build_hooks import Table, errors_end_the_build


class BundleHook(BuildHookInterface):  # type: ignore[misc]
    """Builds the bundle, includes it in the wheel, and tests the wheel."""

    PLUGIN_NAME = "rtcompile"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the bundle, before hatchling collects the wheel's files."""
        if self.target_name != "wheel" or version == "editable":
            return
        with errors_end_the_build():
            table = self._table()
            self._folder = tempfile.TemporaryDirectory(prefix="rtcompile-bundle-")
            path = os.path.join(self._folder.name, os.path.basename(table.bundle))
            table.build(self.root, path)
        build_data["force_include"][path] = table.bundle

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  # Hatchling's signature
        """Test the wheel without a compiler, and remove it if it does not work."""
        if self.target_name != "wheel" or version == "editable":
            return
        with tempfile.TemporaryDirectory(prefix="rtcompile-wheel-") as files:
            with zipfile.ZipFile(artifact_path) as wheel:
                wheel.extractall(files)
            with errors_end_the_build():
                try:
                    self._table().check(self.root, files, _ADVICE)
                except RtcompileError:
                    os.remove(artifact_path)
                    raise

    def _table(self) -> Table:
        fields = {k: v for k, v in self.config.items() if k not in _HATCHLINGS_OWN}
        return Table.read(fields, "tool.hatch.build.hooks.rtcompile")


_ADVICE = (
    "If files are missing: hatchling leaves out what .gitignore names; add them with `artifacts` or "
    "`force-include` of [tool.hatch.build.targets.wheel]."
)


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
    """Register the hook with hatchling."""
    return BundleHook

"""Build hooks for hatchling and setuptools that put a project's bundle into its wheel.

Both need ``rtcompile`` and a toolkit in ``build-system.requires`` and a table in pyproject.toml,
``[tool.hatch.build.hooks.rtcompile]`` or ``[tool.rtcompile.bundle]``::

    targets = ["mykernels"]
    bundle = "mykernels/kernels.rtcb"
    archs = ["sm_80", "sm_90a", "compute_90"]

An editable install gets no bundle: its kernels are compiled when called, since its sources change.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rtcompile.errors import InvalidRequest

__all__ = ["Table"]


@dataclass(frozen=True, slots=True)
class Table:
    """A project's configuration of its bundle.

    Attributes
    ----------
    targets : sequence of str
        Names of what to build, as for ``rtcompile bundle``.
    bundle : str
        The path of the bundle in the wheel.
    archs : sequence of str
        Architectures to build for.
    source : str
        The folder that the project's packages lie in: ``"."`` or ``"src"``.
    """

    targets: Sequence[str]
    bundle: str
    archs: Sequence[str]
    source: str = "."

    @classmethod
    def read(cls, fields: Mapping[str, Any], name: str) -> Table:
        """Return the table that pyproject.toml calls `name`.

        Raises
        ------
        InvalidRequest
            A field is missing, unknown, or of a wrong type.
        """
        for field, value in fields.items():
            kind = _FIELDS.get(field)
            if kind is None:
                raise InvalidRequest(f"[{name}] has {field!r}; known are {', '.join(_FIELDS)}")
            if not isinstance(value, kind):
                raise InvalidRequest(f"[{name}] {field} = {value!r}: expected a {kind.__name__}")
        missing = [field for field in ("targets", "bundle", "archs") if not fields.get(field)]
        if missing:
            raise InvalidRequest(f"[{name}] lacks {', '.join(missing)}")
        return cls(**fields)

    def build(self, root: str, path: str) -> None:
        """Build the bundle of the project in `root` and put it at `path`."""
        from rtcompile.packages import bundling

        with _importable(os.path.join(root, self.source)):
            bundling.bundle(self.targets, path, archs=self.archs, progress=True)


_FIELDS: Mapping[str, type] = {"targets": list, "bundle": str, "archs": list, "source": str}


@contextmanager
def _importable(folder: str) -> Iterator[None]:
    # It comes first, so that an installed version of the project is not built instead.
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)

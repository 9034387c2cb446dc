"""Finds compilers and headers, and checks that their versions fit together.

>>> toolchain = current()
>>> toolchain.nvrtc.version, [d.label for d in toolchain.search]
('12.9.86', ['cudart', 'crt', 'cccl', 'cutlass', 'cupy', 'rtcompile', 'shims'])
"""

from __future__ import annotations

from rtcompile.toolkit.model import Toolchain
from rtcompile.toolkit.remembered import current, remember_device

__all__ = ["Toolchain", "current", "remember_device"]

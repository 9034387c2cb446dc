"""The facts about one build that a hint may mention."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rtcompile.core.arch import Arch
from rtcompile.core.header import SearchDir

if TYPE_CHECKING:
    from rtcompile.toolkit.packages import HeaderAdvice

_NAMES = {
    "nvrtc": "NVRTC",
    "nvcc": "nvcc",
    "nvjitlink": "nvJitLink",
    "cudart": "the CUDA headers",
    "crt": "the crt headers",
    "cccl": "CCCL",
    "cutlass": "CUTLASS",
}


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What is known of a build that a message is about; every field is optional."""

    arch: Arch | None = None
    target: str = "cubin"
    capability: tuple[int, int] | None = None  # of the device that it is for
    backend: str = "nvrtc"  # the compiler that wrote the message
    options: tuple[str, ...] = ()  # the compiler's command line
    # By part of the toolkit: "nvrtc", "cudart", "crt", "cccl", "cutlass", "nvcc".
    versions: Mapping[str, str] = field(default_factory=dict)
    search: tuple[SearchDir, ...] = ()
    source: str = ""
    package_of: Callable[[str], HeaderAdvice | None] = lambda header: None

    def describe(self, part: str) -> str:
        """Return ``"NVRTC 12.9.86"``, with the folder for headers; no version if none is known."""
        text = f"{_NAMES.get(part, part)} {self.versions.get(part, '')}".rstrip()
        folder = next((d.path for d in self.search if d.label == part), "")
        return f"{text} ({folder})" if folder else text

    def version_pair(self, part: str) -> tuple[int, int] | None:
        """Return ``(12, 9)`` for a part of version 12.9.86, None if it is not known."""
        numbers = self.versions.get(part, "").split(".")
        if len(numbers) < 2 or not (numbers[0].isdigit() and numbers[1].isdigit()):
            return None
        return int(numbers[0]), int(numbers[1])

    def user_dirs(self) -> tuple[str, ...]:
        """Return the directories that the user's own ``-I`` options added."""
        return tuple(d.path for d in self.search if d.label.startswith("user"))

    def user_dir_of(self, path: str) -> str:
        """Return the user's include directory that `path` lies in, or an empty string."""
        inside = (d for d in self.user_dirs() if os.path.join(d, "") in path)
        return max(inside, key=len, default="")

    def has_option(self, *spellings: str) -> bool:
        """Whether the command line holds an option that begins with one of `spellings`."""
        return any(option.startswith(spellings) for option in self.options)

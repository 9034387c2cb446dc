"""How long the front end takes over each header, measured: also by compilers whose trace names none.

The compiler's include trace says when a header is opened, but not when it ends. So the headers are
copied, each with one more include at its end, of an empty file; the trace of the copies says both.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rtcompile.compilers import nvrtc
from rtcompile.core.header import SearchDir
from rtcompile.core.includes import placing
from rtcompile.core.units import CompileFailure, Limits, TranslationUnit
from rtcompile.toolkit import Library

_MARKERS = "rtcompile_ends_here"
# What NVRTC reads after the source: the names to be lowered. The end of the unit is the source's own.
_AFTER_THE_SOURCE = "__nv_name_map"


@dataclass(slots=True)
class Frame:
    """One inclusion of a header: when it was open, in seconds, and what it included in turn."""

    path: str
    begin: float
    end: float = 0.0
    included: list[Frame] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long it was open."""
        return self.end - self.begin

    @property
    def own_seconds(self) -> float:
        """How long it was open while nothing that it includes was."""
        return max(0.0, self.seconds - sum(frame.seconds for frame in self.included))

    def walk(self) -> Iterable[Frame]:
        """Yield this inclusion and all below it."""
        yield self
        for frame in self.included:
            yield from frame.walk()


def measure(
    unit: TranslationUnit,
    directories: Sequence[str],
    trace: Sequence[str],
    library: Library,
    limits: Limits,
) -> Frame | str:
    """Return the source's own frame, with the headers in `trace` below it; or why there is none."""
    folder = tempfile.mkdtemp(prefix="rtcompile-profile-")
    try:
        searched, copy = _copied(unit, directories, trace, folder)
        reply, _ = nvrtc.observe("time_headers", copy, library, limits)
    except OSError as error:
        return f"the headers cannot be copied: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if isinstance(reply, CompileFailure):
        return reply.log
    if reply["error"]:
        return f"with marks at their ends they do not compile: {reply['log'].strip()[:300]}"
    return _frames(reply, searched, folder)


def _copied(
    unit: TranslationUnit, directories: Sequence[str], trace: Sequence[str], folder: str
) -> tuple[list[str], TranslationUnit]:
    """Copy the headers below `folder`; return the directories they are from, and the unit."""
    beside = os.path.dirname(unit.name)
    searched = [*([beside] if os.path.isabs(beside) else []), *directories]
    texts = dict(unit.texts)
    placed = placing([SearchDir("", directory) for directory in searched])
    os.makedirs(os.path.join(folder, _MARKERS))
    for number, path in enumerate(trace):
        position, rest = placed(path)
        if position < 0:
            continue  # found by its place: its time is that of the header that includes it
        target = os.path.join(folder, str(position), rest)
        os.makedirs(os.path.dirname(target.partition("/..")[0]), exist_ok=True)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if path in texts:
            text = texts[path].encode()
        else:
            with open(path, "rb") as header:
                text = header.read()
        with open(target, "wb") as header:
            header.write(text + f'\n#include "{_MARKERS}/{number}"\n'.encode())
        with open(os.path.join(folder, _MARKERS, str(number)), "wb"):
            pass
    name = unit.name
    if os.path.isabs(beside):
        os.makedirs(os.path.join(folder, "0"), exist_ok=True)
        name = os.path.join(folder, "0", os.path.basename(name))
    copies = [os.path.join(folder, str(position)) for position in range(len(searched))]
    flags = (*(f"-I{copy}" for copy in [*copies, folder]), *unit.flags)
    return searched, unit._replace(name=name, flags=flags)


def _frames(reply: dict[str, Any], searched: Sequence[str], folder: str) -> Frame:
    root = Frame("", reply["begin"], reply["end"])
    stack = [root]
    marked = [False]  # whether the header of the same place in `stack` has a mark at its end
    rest = b""

    def close(seconds: float, by_its_mark: bool) -> None:
        frame = stack.pop()
        # One with a mark that is left without it was not read again (#pragma once).
        skipped = marked.pop() and not by_its_mark and not frame.included
        frame.end = frame.begin if skipped else seconds

    for seconds, piece in reply["opened"]:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            path = line.lstrip(b" ")
            if not path.startswith((b"/", b"__nv_")):
                continue
            name = path.decode("utf-8", "surrogateescape")
            is_mark = name.startswith(f"{folder}/{_MARKERS}/")
            depth = len(line) - len(path) - is_mark  # a mark closes the header that it is in
            while len(stack) - 1 > depth:
                close(seconds, is_mark and len(stack) - 2 == depth)
            if is_mark or name == _AFTER_THE_SOURCE:
                continue
            copied = name.startswith(f"{folder}/")
            if copied:
                position, _, below = name[len(folder) + 1 :].partition("/")
                name = os.path.join(searched[int(position)], below)
            frame = Frame(name, seconds)
            stack[-1].included.append(frame)
            stack.append(frame)
            marked.append(copied)
    while len(stack) > 1:
        close(root.end, by_its_mark=False)
    return root

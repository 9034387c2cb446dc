"""May a build be kept, and for which places does it hold? Pure."""

from __future__ import annotations

import functools
import os

from rtcompile.core.includes import Dependencies, placing
from rtcompile.core.key import Question
from rtcompile.core.mentions import scan
from rtcompile.core.request import ObjectCode, SearchDir

__all__ = ["holds_elsewhere", "path_bound", "portable", "reason_against"]


def reason_against(question: Question) -> str:
    """Return why the answer hangs on more than files that can be checked, ``""`` if it does not."""
    if clock := scan(question.source).clock:
        return f"{clock} is different in every build"
    for _, value in question.options:
        # A macro defined by an option is not scanned for the names that it is used with.
        if "has_include" in value.lower() or scan(value).clock:
            return f"the option {value!r} asks for what changes without a header changing"
    return ""


def path_bound(
    question: Question, obj: ObjectCode, dependencies: Dependencies, *, same_system: bool = False
) -> bool:
    """Say whether a path reached the code: then it is the object of this place alone.

    With `same_system` headers outside all directories lie at the same path wherever it is used.

    The user's own ``__FILE__`` may have been computed with, so a mention is enough; a toolkit
    header's is an assertion's, and shows in the code. LTO-IR is packed and shows nothing.
    """
    own_texts = (question.source, *(value for _, value in question.options))
    if question.paths_matter or any(scan(text).own_path for text in own_texts):
        return True
    mentioning = [label for label in dependencies.own_path if label or not same_system]
    if any(label.startswith("user") or not label for label in mentioning):
        return True
    if obj.kind == "ltoir" and dependencies.own_path:
        return True
    places = [directory.path for directory in question.search]
    places.append(os.path.dirname(question.name))
    return any(len(path) > 1 and os.fsencode(path) in obj.code for path in places)


@functools.lru_cache(maxsize=16)  # a batch's variants have the same dependencies
def portable(dependencies: Dependencies, search: tuple[SearchDir, ...], beside: str = "") -> bool:
    """Say whether another place has a counterpart for every file that was looked at.

    It lies in a directory that the other place names too, or is the system's: what NVCC's host
    compiler reads, whose build is in NVCC's identity. The source's folder, `beside`, is neither.
    """
    paths = [header.path for header in dependencies.headers]
    paths += [*dependencies.absent, *dependencies.present]
    place = placing(search)
    return all(
        place(path)[0] >= 0 or (path.startswith("/usr/") and not path.startswith(beside or "\0"))
        for path in paths
    )


def holds_elsewhere(question: Question, obj: ObjectCode, dependencies: Dependencies) -> bool:
    """Say whether another machine, or another place on this one, may use a build."""
    if path_bound(question, obj, dependencies, same_system=True):
        return False
    return portable(dependencies, question.search, question.name.rpartition("/")[0])

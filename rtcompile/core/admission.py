"""Decides whether a build may be cached, and whether other machines and folders may use it. Pure."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from rtcompile.core import mentions
from rtcompile.core.header import SearchDir
from rtcompile.core.includes import placing
from rtcompile.core.key import Question
from rtcompile.core.request import ObjectCode

if TYPE_CHECKING:
    from rtcompile.lookup.fileset import FileSet

scan = functools.lru_cache(maxsize=64)(mentions.scan)  # a build asks thrice of the same few texts


def reason_against(question: Question) -> str:
    """Return why the result depends on more than files that can be checked; ``""`` if it does not."""
    if clock := scan(question.source).clock:
        return f"{clock} is different in every build"
    return _reason_against_options(question.options)


@functools.lru_cache(maxsize=16)  # a batch's variants have the same options
def _reason_against_options(options: tuple[tuple[str, str], ...]) -> str:
    clock = next((clock for _, value in options if (clock := scan(value).clock)), "")
    return f"an option has {clock}, which is different in every build" if clock else ""


def may_travel(question: Question) -> bool:
    """Say whether another machine's build may answer `question`, as far as is known before any build."""
    return not reason_against(question) and not _names_its_place(question)


def _names_its_place(question: Question) -> bool:
    own_texts = (question.source, *(value for _, value in question.options))
    return question.paths_matter or any(scan(text).own_path for text in own_texts)


def path_bound(
    question: Question, obj: ObjectCode, dependencies: FileSet, *, same_system: bool = False
) -> bool:
    """Say whether a path got into the code, which then may be used with these folders only.

    With `same_system` True, headers outside all search directories (the host compiler's) lie at the
    same path wherever the object is used.

    In the user's own files a mention of ``__FILE__`` is enough, because the program may have
    computed with it. A toolkit header uses it in assertions, where the path is visible in the code.
    LTO-IR is compressed, so no path in it can be seen.
    """
    if _names_its_place(question):
        return True
    mentioning = [label for label in dependencies.own_path if label or not same_system]
    if any(label.startswith("user") or not label for label in mentioning):
        return True
    if obj.kind == "ltoir" and dependencies.own_path:
        return True
    code = obj.code
    return any(place in code for place in _places(question.search, os.path.dirname(question.name)))


@functools.lru_cache(maxsize=16)  # a batch's variants have the same
def _places(search: tuple[SearchDir, ...], beside: str) -> tuple[bytes, ...]:
    paths = [*(directory.path for directory in search), beside]
    return tuple(os.fsencode(path) for path in paths if len(path) > 1)


@functools.lru_cache(maxsize=16)  # a batch's variants have the same dependencies
def portable(dependencies: FileSet, search: tuple[SearchDir, ...], beside: str = "") -> bool:
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


def holds_elsewhere(question: Question, obj: ObjectCode, dependencies: FileSet) -> bool:
    """Say whether another machine, or another place on this one, may use a build."""
    if path_bound(question, obj, dependencies, same_system=True):
        return False
    return dependencies.is_empty or portable(
        dependencies, question.search, question.name.rpartition("/")[0]
    )

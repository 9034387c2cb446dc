"""Keeps results of the full road as answers, which `cache.answers` finds without what this needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rtcompile.cache import answers, manifests, objects

if TYPE_CHECKING:
    from rtcompile.core.request import ObjectCode
    from rtcompile.lookup.fileset import FileSet

__all__ = ["keep"]

_MOST_CODE_BYTES = 1 << 20  # loading larger code takes so long that the full road matters little


def keep(
    words: Sequence[str],
    capability: tuple[int, int],
    obj: ObjectCode,
    read: FileSet,
    toolchain: Sequence[str],
    toolkits: Sequence[str],
    loads: str,
    publish: Callable[[str, str, bytes], object],
) -> None:
    """Keep a result of the full road.

    Parameters
    ----------
    words, capability
        As for `answers.find`.
    obj : ObjectCode
        The answer.
    read : FileSet
        What the build read.
    toolchain : sequence of str
        The files and folders on which the choice of the toolchain depends.
    toolkits : sequence of str
        The directories of headers that are not the user's own.
    loads : str
        What a worker loads to compile with this toolchain.
    publish : callable
        Puts bytes into a folder of the cache under a name.
    """
    here = answers.short_road()
    # A folder of packages that came just now is not in its key, but may be in this toolchain.
    if here is None or not here.has_same_folders():
        return
    if not here.holds():
        record = answers.packed([(path, answers.stamp(path)) for path in toolchain])
        record.append(os.fsencode(loads))
        publish(answers.FOLDER, here.key, answers.sealed(here.key, record))
        here.saw(record)
    name = here.name(words, capability)
    if len(obj.code) > _MOST_CODE_BYTES or obj.kind != "cubin":
        # So that `answers.find` knows that it is there, on the full road.
        publish(answers.FOLDER, name, answers.sealed(name, ()))
        return
    build = manifests.ManifestEntry(obj.build.backend, obj.build.compiler, "", read)
    provided = tuple(path.rstrip("/") + "/" for path in toolkits)
    fields: list[str | bytes] = [
        "".join(f"{expression}\0{symbol}\0" for expression, symbol in obj.lowered_names.items()),
        objects.encode(name, obj, ""),
        manifests.encode(name, [build], ()),
        *_packed_files(read, provided),
    ]
    raw = [f if isinstance(f, bytes) else f.encode("utf-8", "surrogateescape") for f in fields]
    publish(answers.FOLDER, name, answers.sealed(name, raw))


# What was packed last, of which files: kernels with the same headers, as CuPy's own, follow each other.
_packed_last: tuple[tuple[object, ...], list[str | bytes]] = ((), [])


def _packed_files(read: FileSet, provided: tuple[str, ...]) -> list[str | bytes]:
    """Return what `answers` looks at, of the user's own files and of those in `provided`."""
    global _packed_last
    which = (read.headers, read.absent, read.present, provided)
    before, packed = _packed_last
    if before != which:
        packed = []
        for is_provided in (False, True):

            def ours(path: str, is_provided: bool = is_provided) -> bool:
                return path.startswith(provided) is is_provided

            packed += answers.packed([(h.path, h[4:]) for h in read.headers if ours(h.path)])
            packed.append("".join(f"{path}\0" for path in read.absent if ours(path)))
            packed.append("".join(f"{path}\0" for path in read.present if ours(path)))
        _packed_last = which, packed
    return packed

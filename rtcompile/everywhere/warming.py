"""Builds everything in a record, also on a machine without a GPU or the program's folders."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rtcompile.core import options as compiler_options
from rtcompile.core.arch import Arch
from rtcompile.core.request import CompileRequest, ObjectCode
from rtcompile.errors import InvalidRequest
from rtcompile.everywhere.recording import Record, request_of
from rtcompile.storage import trusted
from rtcompile.storage.digest import content_digest

__all__ = ["requests", "warm"]


def warm(
    record: Record,
    *,
    archs: Sequence[str] = (),
    progress: bool | Callable[[int, int, Any], Any] | None = None,
) -> list[ObjectCode]:
    """Build everything in a record, in parallel, into the cache.

    Parameters
    ----------
    record : Record
        The record, from `recording.read`.
    archs : sequence of str
        Build for these instead of those of the recorded run. A build whose architecture the program
        itself chose keeps it.
    progress : bool or callable, optional
        As in `rtcompile.compile_many`.

    Returns
    -------
    list of ObjectCode
        In the order of the record, architecture by architecture.

    Raises
    ------
    InvalidRequest
        The record is damaged.
    BatchError
        Some did not compile.
    """
    from rtcompile.many import compile_many

    with requests(record, archs) as wanted:
        return compile_many(wanted, progress=progress)


@contextmanager
def requests(record: Record, archs: Sequence[str] = ()) -> Iterator[list[CompileRequest]]:
    """Yield the requests of a record; the headers that they need exist meanwhile.

    A header of the user that is missing or different here is written below a temporary folder,
    under the path that it had. Keys contain no paths, so the program will find these builds.
    """
    with tempfile.TemporaryDirectory(prefix="rtcompile-warm-") as folder:
        yield [
            request
            for entry in record.builds
            for request in _for_archs(entry, _placed(record, entry, folder), archs)
        ]


def _for_archs(
    entry: Mapping[str, Any], request: CompileRequest, archs: Sequence[str]
) -> Iterator[CompileRequest]:
    if not archs or not entry.get("follows device"):
        yield request
        return
    for name in archs:
        try:
            arch = Arch.parse(name)
        except ValueError as error:
            raise InvalidRequest(f"--arch: {error}") from None
        assert request.arch is not None
        # CuPy's own kernels are compiled for sm_90 and not sm_90a, as CuPy does.
        yield request.replace(arch=arch if request.arch.suffix else replace(arch, suffix=""))


def _placed(record: Record, entry: Mapping[str, Any], folder: str) -> CompileRequest:
    """Return the request with ``-I`` directories that hold the headers it was recorded with."""
    request = request_of(entry)
    own = [
        (path, digest)
        for label, _, path, digest in entry["headers"]
        if label.startswith("user") and not _is_there(path, digest)
    ]
    if not own:
        return request
    for path, digest in own:
        _write(folder + os.path.abspath(path), record.contents(digest))
    # All directories are moved together, so that they stay nested as they were.
    for label, _, path, digest in entry["headers"]:
        if label.startswith("user") and _is_there(path, digest):
            _write(folder + os.path.abspath(path), trusted.read_given(path))
    directories = compiler_options.parse(request.options).include_dirs
    for directory in directories:
        os.makedirs(folder + os.path.abspath(directory), exist_ok=True)
    return request.replace(options=[_moved(o, directories, folder) for o in request.options])


def _moved(option: str, directories: Sequence[str], folder: str) -> str:
    """Return an option with a directory in it replaced by that directory's new place."""
    for directory in sorted(directories, key=len, reverse=True):
        if option.endswith(directory):
            return option.removesuffix(directory) + folder + os.path.abspath(directory)
    return option


def _is_there(path: str, digest: str) -> bool:
    try:
        return content_digest(trusted.read_given(path)) == digest
    except OSError:
        return False


def _write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)

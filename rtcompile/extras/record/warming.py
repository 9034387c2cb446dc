"""Repeats builds: those of a record, even on a machine without a GPU or the program's folders, and CuPy's own kernels."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import rtcompile
from rtcompile import Arch, CompileRequest, InvalidRequest, ObjectCode, __version__
from rtcompile.build.planned import add_to_index
from rtcompile.extras.record.recording import Record, RecordedBuild
from rtcompile.files import sealed
from rtcompile.files.sealed import content_digest

_FOLDER = "rtcompile-warm-"
_MOST_HEADER_BYTES = 256 << 20
_MOST_WRITTEN_BYTES = 1 << 30  # of headers, for all states of them

# The sources that a CuPy generates, written by benchmarks/cupy_record.py. They have no paths, so they are valid for any
# prefix, architecture and CUDA version.
KERNELS = os.path.join(os.path.dirname(__file__), "kernels_of_cupy", "kernels.json.xz")


# --- All builds of a record ---------------------------------------------------------------------------


def warm(
    record: Record,
    *,
    archs: Sequence[str] = (),
    progress: bool | Callable[[int, int, Any], Any] | None = None,
) -> list[ObjectCode]:
    """Build a record in parallel into the cache, for `archs` where the program did not choose one."""
    with requests(record, archs) as found:
        # The most expensive builds start first: none of them is left for the end.
        costs = [(build.milliseconds, len(build.headers)) for _, build in found]
        order = sorted(range(len(found)), key=costs.__getitem__, reverse=True)
        wanted = [found[index][0] for index in order]
        done: list[Any] = rtcompile.compile_many(wanted, progress=progress, errors="return")
    outcomes = [outcome for _, outcome in sorted(zip(order, done, strict=True))]
    for request, build in found:
        # With this entry of the index, the program's own request finds the build at once.
        requested, capability = build.requested(request)
        if requested is not None:
            add_to_index(requested, capability)
    failed = {i: o for i, o in enumerate(outcomes) if not isinstance(o, ObjectCode)}
    if failed:
        results = [None if i in failed else o for i, o in enumerate(outcomes)]
        raise rtcompile.BatchError(failed, results, {i: found[i][0].name for i in failed})
    return outcomes


@contextmanager
def requests(
    record: Record, archs: Sequence[str] = ()
) -> Iterator[list[tuple[CompileRequest, RecordedBuild]]]:
    """Yield what to build for a record; the headers that it needs exist in the body of ``with``."""
    with tempfile.TemporaryDirectory(prefix=_FOLDER) as folder:
        relocated = _Relocated(record, folder)
        yield [
            (request, build)
            for build in record.builds
            for request in build.repeated(archs, relocated.moved(build))
        ]


class _Relocated:
    """Folders for a record's headers: several if a program rewrites a header during its run."""

    def __init__(self, record: Record, folder: str) -> None:
        self._record = record
        self._folder = folder
        self._written = 0
        self._states: list[dict[str, str]] = []  # of each folder: path to digest

    def moved(self, build: RecordedBuild) -> Callable[[str], str] | None:
        """Return what names the folder that has a directory's recorded headers; None if they are in place."""
        own = {
            os.path.abspath(path): digest
            for label, _, path, digest in build.headers
            if label.startswith("user")
        }
        if all(self._is_there(*header) for header in own.items()):
            return None
        fitting = (  # a folder that has no other contents for these headers
            number
            for number, state in enumerate(self._states)
            if all(state.get(path, digest) == digest for path, digest in own.items())
        )
        number = next(fitting, len(self._states))
        if number == len(self._states):
            self._states.append({})
        state = self._states[number]
        folder = os.path.join(self._folder, str(number))
        # All directories are moved together, so they stay nested as they were.
        for path, digest in own.items():
            if path not in state:
                self._write(folder + path, path, digest)
                state[path] = digest

        def moved(directory: str) -> str:
            target = folder + os.path.abspath(directory)
            os.makedirs(target, exist_ok=True)
            return target

        return moved

    @functools.cache  # noqa: B019  # the object lives as long as one warming
    def _is_there(self, path: str, digest: str) -> bool:
        try:
            small = os.stat(path).st_size <= _MOST_HEADER_BYTES  # /proc/kcore has 128 TiB
            return small and content_digest(sealed.read_given(path)) == digest
        except (OSError, ValueError):  # missing, or a path with a NUL
            return False

    def _write(self, target: str, path: str, digest: str) -> None:
        data = self._record.contents(digest)
        self._written += len(data)
        if self._written > _MOST_WRITTEN_BYTES:
            problem = "the record's headers, once for each build's, fill the disk"
            raise InvalidRequest(problem)
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(data)
        except (ValueError, OSError) as error:  # a path with a NUL, or below another header's
            problem = f"a header of the record is damaged: {path!r}: {error}"
            raise InvalidRequest(problem) from None


# --- The kernels that everyday CuPy programs use, for the CuPy that is installed here ------------------


def record_of_cupy(arch: str) -> Record:
    """Return the record of the installed CuPy's kernels for a device."""
    import lzma

    try:
        import cupy
        from cupy import _core
    except ImportError as error:
        raise InvalidRequest(
            f"CuPy's kernels are built with its headers, and CuPy cannot be imported: {error}"
        ) from None
    with lzma.open(KERNELS) as file:
        document: dict[str, Any] = json.loads(file.read())
    here, made_for = str(cupy.__version__), document["cupy"]
    if here.split(".")[:1] != made_for.split(".")[:1]:
        raise InvalidRequest(
            f"this is CuPy {here}, and rtcompile knows the kernels of CuPy {made_for}: record your own "
            "program with `rtcompile run --record kernels.json script.py`"
        )
    if here.split(".")[:2] == made_for.split(".")[:2]:
        made_for = here  # a patch release has the same kernels
    options = functools.cache(_core.core.assemble_cupy_compiler_options)
    builds = [
        RecordedBuild(
            CompileRequest(
                kernel["source"],
                options=(*options(tuple(kernel["options"])), "-ftz=true"),
                arch=arch,
                name_expressions=kernel["names"],
                name=kernel["name"],
                backend="nvrtc",
                allow_fixups=False,
            ),
            Arch.parse(arch),
            milliseconds=kernel["milliseconds"],
        )
        for kernel in document["kernels"]
    ]
    return Record({"rtcompile": __version__, "cupy": made_for}, builds, {})

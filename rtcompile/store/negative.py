"""The negative cache: the builds that failed and would fail again, by the digest of their `KeyInputs`.

An entry has the compiler's log, its hints, and the files that the failed build read or looked for. It is valid while
none of these files has changed, for the same compilers and linker. If NVRTC failed and NVCC may succeed, the entry has
the reason for using NVCC at once; where there is no NVCC, NVRTC's failure is the result until there is one. Only
failures that depend on the request, its files and the toolchain alone are kept: no crashes and no limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from rtcompile.files import fileset
from rtcompile.files.fileset import FileSet
from rtcompile.named import NamedTuple
from rtcompile.request.key import KeyInputs, digest, field, reason_against
from rtcompile.request.units import CompileFailure, Hints, missing_headers
from rtcompile.store.folder import Folder, Memory

KIND = "negative"  # the cache's folder
_SEAL = "negative entry"
# Patterns are compiled only after a failure, since that takes 0.3 ms.
# Patterns of errors that the source or its options caused.
_DIAGNOSED = (
    r"\(\d+\): (?:catastrophic )?error"
    r"|^ptxas(?: fatal| error|.*; (?:error|fatal))\s*:"
    r"|^nvrtc: error: (?:unrecognized option|invalid value)"
)
# Patterns of errors that the machine may have caused.
_UNDECIDED = (
    r"No such file or directory|[Oo]ut of memory|[Mm]emory allocation|No space left|[Ii]nternal error"
    r"|Too many open files|[Cc]ould not open (?!source)|library load error|Permission denied|Input/output error"
)


class Remembered(NamedTuple):
    """A failure, the reason why NVCC may build it ("" if no compiler can), and the files that both depend on."""

    failure: CompileFailure
    why_nvcc: str
    depends: FileSet


class Negative:
    """The negative cache of one cache directory; entries that cannot be written stay in memory."""

    def __init__(self, folder: Folder, publish: Callable[[str, str, bytes], bool]) -> None:
        self._folder = folder
        self._publish = publish
        self._memory = Memory()

    def find(self, inputs: KeyInputs) -> Remembered | None:
        """Return the remembered failure of `inputs`; None if there is none, or a file has changed."""
        key = _key(inputs)
        known: Remembered | None = self._memory.find(key)
        known = known or self._folder.decoded(KIND, key, _decoded)
        if known is None:
            return None
        now = known.depends.current()
        if now is None:
            return None
        if now is not known.depends:
            self._keep(key, known._replace(depends=now))
        return known

    def remember(self, inputs: KeyInputs, remembered: Remembered) -> None:
        """Replace the entry of `inputs`, unless the failure depends on the time of the build."""
        if not reason_against(inputs):
            self._keep(_key(inputs), remembered)

    def forget(self, inputs: KeyInputs) -> None:
        """Remove the entry of `inputs`, because it was built successfully or is built again."""
        self._memory.keep(_key(inputs), None, 0)
        self._folder.discard(KIND, _key(inputs))

    def _keep(self, key: str, remembered: Remembered) -> None:
        data = _encoded(key, remembered)
        if not self._publish(KIND, key, data):
            self._memory.keep(key, remembered, len(data))
        elif self._memory.find(key):
            self._memory.keep(key, None, 0)


def dependencies_of(failure: CompileFailure, recorded: Callable[[], FileSet]) -> FileSet:
    """Return the files that a failure depends on (`recorded`, if they were not observed), or why it is not kept."""
    log = failure.log
    missing = failure.backend == "nvcc" and missing_headers(log)
    is_diagnosed = missing or failure.kind == "link" or re.search(_DIAGNOSED, log, re.MULTILINE)
    is_read_known = failure.files is not None or failure.trace is not None
    if failure.kind not in ("error", "link") or not is_diagnosed or not is_read_known:
        return FileSet(uncacheable="a crash, a limit, or files that are not known")
    if not missing and (undecided := re.search(_UNDECIDED, log)):
        return FileSet(uncacheable=undecided[0])
    return recorded() if failure.files is None else failure.files


def _key(inputs: KeyInputs) -> str:
    builds = [field(backend, build) for backend, build in sorted(inputs.compilers.items())]
    linker = field("linker", inputs.linker)
    return digest([field("key", KIND), field("lookup", inputs.lookup_key), *builds, linker])


def _encoded(key: str, remembered: Remembered) -> bytes:
    failure, first = remembered.failure, remembered.failure.before
    kept = [_stored(failure), first and _stored(first), remembered.why_nvcc]
    return fileset.encode_records(_SEAL, key, [([json.dumps(kept)], remembered.depends)])


def _stored(failure: CompileFailure) -> list[Any]:
    return [failure.kind, failure.log, failure.command, failure.backend, failure.hints]


def _decoded(key: str, data: bytes) -> Remembered | None:
    try:
        [([kept], depends)] = fileset.decode_records(_SEAL, key, data) or []
        failure, first, why = json.loads(kept)
    except ValueError:
        return None
    before = None if first is None else _restored(*first)
    return Remembered(_restored(*failure)._replace(before=before), why, depends)


def _restored(kind: str, log: str, command: list[str], backend: str, hints: Any) -> CompileFailure:
    known = hints and Hints(hints[0], tuple(map(tuple, hints[1])))
    return CompileFailure(kind, log, tuple(command), backend, hints=known)

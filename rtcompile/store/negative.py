"""The negative cache: the builds that failed and would fail again, by the digest of their `KeyInputs`.

An entry has the compiler's log, its hints, and the files that the failed build read or looked for. It is valid while
none of these files has changed, for the same compilers and linker. If NVRTC failed and NVCC may succeed, the entry has
the reason for using NVCC at once; where there is no NVCC, NVRTC's failure is the result until there is one. Only
failures that depend on the request, its files and the toolchain alone are kept: no crashes and no limits.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from typing import NamedTuple

from rtcompile.files import sealed
from rtcompile.files.fileset import PACKED_FIELDS, FileSet
from rtcompile.request.key import KeyInputs, digest, field, reason_against
from rtcompile.request.units import CompileFailure, Hints
from rtcompile.store.folder import Folder, Memory

KIND = "negative"  # the cache's folder
_SEAL = "negative entry"
_OWN_FIELDS = 9
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
    depends: tuple[FileSet, ...]


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
        now = tuple([depends for each in known.depends if (depends := each.current())])
        if len(now) < len(known.depends):
            return None
        if any(map(operator.is_not, now, known.depends)):
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
    is_diagnosed = failure.kind == "link" or re.search(_DIAGNOSED, log, re.MULTILINE)
    is_read_known = failure.files is not None or failure.trace is not None
    if failure.kind not in ("error", "link") or not is_diagnosed or not is_read_known:
        return FileSet(uncacheable="a crash, a limit, or files that are not known")
    if undecided := re.search(_UNDECIDED, log):
        return FileSet(uncacheable=undecided[0])
    return recorded() if failure.files is None else failure.files


def _key(inputs: KeyInputs) -> str:
    builds = [field(backend, build) for backend, build in sorted(inputs.compilers.items())]
    linker = field("linker", inputs.linker)
    return digest([field("key", KIND), field("lookup", inputs.lookup_key), *builds, linker])


def _encoded(key: str, remembered: Remembered) -> bytes:
    failure, why = remembered.failure, remembered.why_nvcc
    first = failure.before or CompileFailure("", "", (), "")  # NVRTC's, if NVCC failed after it
    logs = (failure.log, "\0".join(failure.command), why, first.log, "\0".join(first.command))
    hints = (json.dumps(failure.hints), json.dumps(first.hints))
    texts = (failure.kind, failure.backend, *logs, *hints)
    fields = [text.encode("utf-8", "surrogateescape") for text in texts]
    for depends in remembered.depends:
        fields += depends.packed(())
    return sealed.seal(_SEAL, key, fields)


def _decoded(key: str, data: bytes) -> Remembered | None:
    fields = sealed.unseal(_SEAL, key, data)
    if fields is None or len(fields) % PACKED_FIELDS != _OWN_FIELDS:
        return None
    own, packed = fields[:_OWN_FIELDS], fields[_OWN_FIELDS:]
    texts = [field.decode("utf-8", "surrogateescape") for field in own]
    kind, backend, log, command, why, first_log, first_command, *hints = texts
    parts = [packed[at : at + PACKED_FIELDS] for at in range(0, len(packed), PACKED_FIELDS)]
    try:
        depends = tuple(map(FileSet.unpacked, parts))
    except ValueError:
        return None
    failure = CompileFailure(kind, log, tuple(command.split("\0")), backend, hints=_hints(hints[0]))
    if first_log:
        first = CompileFailure("error", first_log, tuple(first_command.split("\0")), "nvrtc")
        failure = failure._replace(before=first._replace(hints=_hints(hints[1])))
    return Remembered(failure, why, depends)


def _hints(text: str) -> Hints | None:
    known = json.loads(text)
    return known and Hints(known[0], tuple(map(tuple, known[1])))

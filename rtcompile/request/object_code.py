"""The result of a build, `ObjectCode` and `BuildInfo`; and what the cache keeps of it: object files and `Record`."""

from __future__ import annotations

import struct
from itertools import chain
from types import MappingProxyType

from rtcompile.errors import InvalidRequest, RtcompileError, shown
from rtcompile.files import sealed
from rtcompile.files.fileset import PACKED_FIELDS, FileSet, joined, texts_in
from rtcompile.named import NamedTuple
from rtcompile.request.values import Arch, Value, one_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from rtcompile.diagnostic import Diagnostic
    from rtcompile.files.headers import Header, SearchDir
    from rtcompile.request.units import CompileFailure
    from rtcompile.types import Report

TARGETS = ("cubin", "ptx", "ltoir", "object", "fatbin")
# The bytes before the symbol of each kernel, and of nothing else, in code of these kinds.
KERNEL_MARKS = {"cubin": b".nv.constant0.", "ptx": b".entry "}
_NAMES_SHOWN = 3  # the most lowered names in a repr
_UNKNOWN_FILES = "the files that the build depends on are unknown"
_NO_NAMES: Mapping[str, str] = MappingProxyType({})


class BuildInfo(NamedTuple):
    """How an `ObjectCode` was built or found.

    Attributes
    ----------
    backend : str
        ``"nvrtc"`` or ``"nvcc"``.
    log : str
        The compiler's log of the build that made the code, warnings included.
    headers : tuple of Header
        Every header that was read.
    warnings : tuple of Diagnostic
        The warnings in `log`.
    milliseconds : float
        Duration of this call, in milliseconds.
    hit : str or None
        Where the code was found (``"memory"``, ``"disk"``, …); None if it was compiled.
    why : str
        One line: why it was a miss, and why NVCC was used or a flag was added. A hit has only the latter.
    compiler : str
        The compiler and its build, ``"nvrtc 12.9.86"``.
    notes : tuple of str
        Options that were changed or not passed to this compiler, with the reason: one line each.
    compiled_in : float
        Milliseconds that the compiler took, on the machine that compiled the code.
    """

    backend: str
    log: str = ""
    files: FileSet = FileSet(uncacheable=_UNKNOWN_FILES)
    milliseconds: float = 0.0
    hit: str | None = None
    why: str = ""
    compiler: str = ""
    notes: tuple[str, ...] = ()
    compiled_in: float = 0.0

    @property
    def headers(self) -> tuple[Header, ...]:
        """Every header that was read; a hit decodes them at the first access."""
        return self.files.headers

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """The warnings in `log`, parsed as in ``CompileError.diagnostics``."""
        import rtcompile

        found = rtcompile.explain(self.log) if "warning" in self.log else ()
        return tuple([each for each in found if each.severity == "warning"])

    def replace(self, **changes: Any) -> BuildInfo:
        """Return a copy with some fields changed; TypeError for a field that it does not have."""
        return self._replace(**changes)

    def __repr__(self) -> str:
        hidden = ("log", "files")
        fields = [f"{k}={getattr(self, k)!r}" for k in self._fields if k not in hidden]
        return f"BuildInfo({', '.join(fields)})"

    def __reduce__(self) -> tuple[Any, ...]:
        known = FileSet(self.headers, uncacheable=_UNKNOWN_FILES)
        return BuildInfo, tuple(self._replace(files=known))

    def __eq__(self, other: object) -> bool:
        """Return whether two builds are equal, however their headers are recorded."""
        return isinstance(other, BuildInfo) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__())


class ObjectCode(Value):
    """Compiled code and how it was made.

    Attributes
    ----------
    code : bytes
        The cubin, PTX text, LTO-IR, relocatable object or fatbin.
    kind : {"cubin", "ptx", "ltoir", "object", "fatbin"}
        What `code` is.
    arch : Arch
        The architecture it was compiled for.
    lowered_names : mapping of str to str
        Name expression to the symbol in `code`.
    build : BuildInfo
        Backend, log, headers, duration, cache hit.

    Raises
    ------
    InvalidRequest
        `code` is not bytes, `kind` is unknown, or `arch` is not an `Arch`.

    Examples
    --------
    >>> source = "template <class T> __global__ void f(T* x) { *x += 1; }"
    >>> code = rtcompile.compile(source, arch="sm_80", name_expressions=["f<float>"])
    >>> code.lowered_names["f<float>"]
    '_Z1fIfEvPT_'
    """

    __module__ = "rtcompile"  # its public module

    code: bytes
    kind: str
    arch: Arch
    lowered_names: Mapping[str, str]
    build: BuildInfo

    def __init__(
        self,
        code: bytes,
        kind: str,
        arch: Arch,
        lowered_names: Mapping[str, str] = _NO_NAMES,
        build: BuildInfo | None = None,
    ) -> None:
        if not isinstance(code, bytes):
            raise InvalidRequest(f"ObjectCode: code must be bytes, not {shown(code)}")
        if not isinstance(arch, Arch):
            raise InvalidRequest(
                f"ObjectCode: arch must be an Arch, not {shown(arch)}; write Arch.parse('sm_90a')"
            )
        if type(lowered_names) is dict:
            lowered_names = MappingProxyType(lowered_names)
        self.__dict__.update(
            code=code,
            kind=one_of("ObjectCode: kind", kind, TARGETS),
            arch=arch,
            lowered_names=lowered_names,
            build=BuildInfo(backend="nvrtc") if build is None else build,
        )

    def report(
        self, kernel: str | None = None, block: int | None = None, *, dynamic_shared: int = 0
    ) -> Report:
        """Return the resources of the kernels in a cubin.

        Parameters
        ----------
        kernel : str, optional
            A name expression or symbol; by default all kernels.
        block : int, optional
            Threads per block for which the occupancy is computed; by default the largest block of highest
            occupancy, as ``cuOccupancyMaxPotentialBlockSize`` finds it.
        dynamic_shared : int
            Bytes of dynamic shared memory at launch.

        Returns
        -------
        Report
            ``print`` shows a table, which includes spills if the options have ``"-Xptxas=-v"``.

        Raises
        ------
        InvalidRequest
            The code is not a cubin or has no such kernel, or a number is out of range.
        """
        import rtcompile

        return rtcompile.types.Report.of(self, kernel, block, dynamic_shared)

    def symbols(self, kind: str = "kernel") -> dict[str, str]:
        """Return the kernels of a cubin or of PTX, or the variables of a cubin.

        Parameters
        ----------
        kind : {"kernel", "variable"}
            Variables are the module's global variables, as for ``get_global``.

        Returns
        -------
        dict of str to str
            Symbol to C++ name, with namespaces and without a template's arguments: ``ns::k``, and
            ``f()::n`` for a static variable of a function.

        Raises
        ------
        InvalidRequest
            `kind` is neither of these.

        Examples
        --------
        >>> code = rtcompile.compile("namespace ns { __global__ void k(int* x) {} }", arch="sm_80")
        >>> code.symbols()
        {'_ZN2ns1kEPi': 'ns::k'}
        """
        import rtcompile

        found: dict[str, str] = rtcompile._load("symbols")(self, kind)  # type: ignore[operator]
        return found

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the code to a file in one step, and return its path, from which ``RawModule(path=…)`` loads it."""
        import os

        name, target = os.fspath(path), os.path.realpath(path)
        try:
            if os.path.isfile(target) or not os.path.exists(target):
                sealed.publish(target, self.code, durable=False, mode=0o666)
            else:  # a pipe or a device
                with open(path, "wb") as file:
                    file.write(self.code)
        except OSError as error:
            raise OSError(error.errno, error.strerror, name) from None
        return name

    def __hash__(self) -> int:
        return hash((self.code, self.kind, self.arch))

    def __repr__(self) -> str:
        names = [*self.lowered_names]
        listed = ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")
        size = f"{len(self.code):,} bytes"
        return f"<ObjectCode: {self.kind} for {self.arch}, {size}{listed and ': '}{listed}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A mappingproxy does not pickle.
        names = dict(self.lowered_names)
        return ObjectCode, (self.code, self.kind, self.arch, names, self.build)


def hit(
    obj: ObjectCode,
    files: FileSet,
    where: str,
    milliseconds: float = 0.0,
    notes: tuple[str, ...] = (),
) -> ObjectCode:
    """Return found code for the caller, with its files, its level, the time of the look-up and its notes."""
    build = obj.build
    info = BuildInfo(
        build.backend,
        build.log,
        files,
        milliseconds,
        where,
        build.why,
        build.compiler,
        notes or build.notes,
        build.compiled_in,
    )
    return ObjectCode(obj.code, obj.kind, obj.arch, obj.lowered_names, info)


# --- The format of object files: the code and all that is needed to use and describe it; no pickle ---


def encode(key: str, obj: ObjectCode, key_inputs: Mapping[str, str]) -> bytes:
    """Return the content of an object file."""
    build = obj.build
    texts = [obj.kind, str(obj.arch), build.backend, build.compiler, build.log]
    texts += [build.why, "\0".join(chain.from_iterable(key_inputs.items()))]
    # `decode` reads pairs after these eight texts.
    texts += [f"{build.compiled_in:.1f}"]
    for expression, symbol in obj.lowered_names.items():
        texts += [expression, symbol]
    fields = [obj.code, *(text.encode("utf-8", "surrogateescape") for text in texts)]
    return sealed.seal("object", key, fields)


def decode(key: str, data: bytes) -> ObjectCode | None:
    """Return the object of the file found under `key`; None if it does not verify."""
    fields = sealed.unseal("object", key, data)
    if fields is None or len(fields) < 9:
        return None
    texts = [f.decode("utf-8", "surrogateescape") for f in fields[1:]]
    kind, arch, backend, compiler, log, why = texts[:6]
    try:
        return ObjectCode(
            code=fields[0],
            kind=kind,
            arch=Arch.parse(arch),
            lowered_names=dict(zip(texts[8::2], texts[9::2], strict=True)),
            build=BuildInfo(backend, log, why=why, compiler=compiler, compiled_in=float(texts[7])),
        )
    except (ValueError, RtcompileError):  # intact, but written by another version of rtcompile
        return None


def key_inputs(key: str, data: bytes) -> dict[str, str]:
    """Return `KeyInputs.summary` from a file; empty if it is damaged."""
    fields = sealed.unseal("object", key, data)
    if fields is None or len(fields) < 9:
        return {}
    texts = fields[7].decode("utf-8", "surrogateescape").split("\0")
    return dict(zip(texts[::2], texts[1::2], strict=False))


# --- Records: what the cache keeps about builds -----------------------------------------------------

# A file has the records of one key, the latest first. Under a lookup key or a portable key, they are the builds of a
# request that read different files or were made by different compilers. Under the name of an index entry, it is the one
# build of this very request, or no record if that failed. Under the key of a precompiled header, it is that header's.
INDEX = "index"  # the cache's folder of index entries
RECORDS = "records"  # the folder of all other records, except precompiled headers'
MOST_LISTED = 16  # records of one key
_RECORD_FIELDS = 1 + PACKED_FIELDS


class Record(NamedTuple):
    """One build: its outcome, compiler, notes, and the files that it depends on.

    The outcome is the object under `object_key`, or a `failure`, or neither if the build must not be kept, for a
    `reason`. A failure with a `reason` is NVRTC's, and NVCC may build the code. For a failure, `compiler` names all
    compilers that were found.
    """

    files: FileSet
    object_key: str = ""
    backend: str = ""
    compiler: str = ""
    reason: str = ""
    failure: CompileFailure | None = None
    notes: tuple[str, ...] = ()

    @property
    def slot(self) -> tuple[str, str]:
        """What two records of one key differ in: a new record replaces the one in its slot."""
        return self.object_key, self.compiler if self.failure else ""


class Found:
    """The code of a request, and its record: the files that it depends on, its object key, if known, and notes."""

    __slots__ = ("obj", "record")

    def __init__(self, obj: ObjectCode, record: Record) -> None:
        self.obj = obj
        self.record = record


def encode_records(
    key: str,
    records: Iterable[Record],
    *,
    provided: tuple[str, ...] = (),
    search: tuple[SearchDir, ...] | None = None,
) -> bytes:
    """Return the content of the file under `key`; files in `provided` folders count as the toolkit's.

    With `search`, a path is stored as the position of its search directory and the rest.
    """
    fields: list[bytes] = []
    move = None if search is None else _move_out(search)
    for record in records:
        failed = "" if record.failure is None else _failure_text(record.failure)
        texts = record.object_key, record.backend, record.compiler, record.reason, failed
        files = record.files if move is None else record.files.moved(move)
        fields += [joined((*texts, *record.notes)), *files.packed(provided)]
    return sealed.seal("record", key, fields)


def decode_records(
    key: str, data: bytes, search: tuple[SearchDir, ...] | None = None
) -> tuple[Record, ...] | None:
    """Return the records in the file found under `key`; None if it does not verify."""
    fields = sealed.unseal("record", key, data)
    if fields is None or len(fields) % _RECORD_FIELDS:
        return None
    move = None if search is None else _move_in(search)
    records = []
    try:
        for at in range(0, len(fields), _RECORD_FIELDS):
            files = FileSet.unpacked(fields[at + 1 : at + _RECORD_FIELDS])
            if move is not None and not files.is_empty:
                files = files.moved(move)
                hash(files)  # raises if the fields do not fit together
            object_key, backend, compiler, reason, failed, *notes = texts_in(fields[at])
            failure = _failure(failed) if failed else None
            record = Record(files, object_key, backend, compiler, reason, failure, tuple(notes))
            records.append(record)
    except (struct.error, StopIteration, IndexError, ValueError, TypeError):
        return None
    return tuple(records)


def _move_out(search: tuple[SearchDir, ...]) -> Callable[[str], str]:
    from rtcompile.files.headers import relative_to

    split_path = relative_to(search)

    def stored(path: str) -> str:
        position, rest = split_path(path)
        return f"{position if position >= 0 else ''}:{rest}"

    return stored


def _move_in(search: tuple[SearchDir, ...]) -> Callable[[str], str]:
    directories = [directory.path.rstrip("/") + "/" for directory in search]

    def here(path: str) -> str:
        position, _, rest = path.partition(":")
        return directories[int(position)] + rest if position else rest

    return here


def _failure_text(failure: CompileFailure) -> str:
    import json

    both = filter(None, (failure, failure.before))
    return json.dumps([(f.kind, f.log, f.command, f.backend, f.hints) for f in both])


def _failure(text: str) -> CompileFailure:
    import json

    from rtcompile.request.units import CompileFailure, Hints

    found = []
    for kind, log, command, backend, hints in json.loads(text):
        known = hints and Hints(hints[0], tuple(map(tuple, hints[1])))
        found.append(CompileFailure(kind, log, tuple(command), backend, hints=known))
    failure, *before = found
    return failure._replace(before=before[0] if before else None)

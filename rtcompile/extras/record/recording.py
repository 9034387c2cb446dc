"""Records a program's builds, so another machine can make the same.

While the program runs, its processes append each request to ``FILE.part`` as one line of JSON, and a killed
program leaves its requests there. At the program's end they become one JSON document, ``FILE``.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import sys
import threading
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import rtcompile
from rtcompile import InvalidRequest, JitDisabled, RtcompileError, ToolkitNotFound, __version__
from rtcompile.errors import callers_frame
from rtcompile.files import sealed
from rtcompile.files.sealed import content_digest

if TYPE_CHECKING:
    from rtcompile import CompileRequest, ObjectCode
    from rtcompile.types import Header

FORMAT = "rtcompile record 5"
MOST_HEADER_BYTES = 256 << 20  # of all headers of a record together, decompressed


# --- Counting and recording the requests of a process -------------------------------------------------


class Counter:
    """Appends a line of JSON for each of this process's requests to a log."""

    def __init__(self, log: str) -> None:
        self.log = log
        self.problem: OSError | None = None  # such as a full disk, which must not stop the program

    def start(self) -> None:
        """Count all requests from now on."""
        from rtcompile.lookup.find import listeners  # importing it makes a process take part

        listeners.append(self.note)

    def note(self, request: CompileRequest, outcome: ObjectCode | RtcompileError) -> None:
        """Count a build; one that failed counts only if compiling was forbidden or impossible."""
        if isinstance(outcome, (JitDisabled, ToolkitNotFound)):
            self.append(["missing", str(outcome).partition("\n")[0]])
        if isinstance(outcome, RtcompileError):
            return
        build = outcome.build
        use = {
            "name": request.name,
            "arch": str(outcome.arch),
            "backend": build.backend,
            "hit": build.hit or "",
            "milliseconds": build.milliseconds,
            "spared": build.compiled_in if build.hit else 0.0,
        }
        self.append(["builds", use])
        is_first = os.environ.get("RTCOMPILE_FALLBACK") == "nvrtc-first"
        if request.backend == build.backend == "nvcc" and not (build.hit or is_first):
            self.append(["by_nvcc", build.milliseconds])

    def append(self, line: Any) -> None:
        """Append a line in one write, unless the run has ended and its log is gone."""
        # The log is not kept open: a program may close descriptors that it did not open.
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(self.log, flags), "ab", buffering=0) as log:
                log.write((json.dumps(line) + "\n").encode())
        except OSError as error:
            self.problem = error


class Recorder(Counter):
    """Records this process's builds, and counts them, in ``FILE.part``; `finish` writes them to `path`."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{self.path}.part")
        self._guard = threading.Lock()
        self._written: set[str] = set()

    def create(self) -> None:
        """Begin a new record; raise OSError if the file cannot be written."""
        if os.path.isdir(self.path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        os.close(os.open(self.log, flags, 0o644))
        self.append(_document(_loaded_versions()))

    def finish(self) -> Record:
        """Stop, and write the whole record."""
        from rtcompile.lookup.find import listeners

        with suppress(ValueError):
            listeners.remove(self.note)
        record = read(self.log, trust_options=True)
        text = json.dumps(_document(record.versions, record.builds, record.headers), indent=1)
        sealed.publish(self.path, f"{text}\n".encode(), durable=False, mode=0o666)
        os.unlink(self.log)
        if self.problem is not None:
            raise self.problem
        return record

    def note(self, request: CompileRequest, outcome: ObjectCode | RtcompileError) -> None:
        """Count a request, and record it if its build did not fail."""
        super().note(request, outcome)
        if isinstance(outcome, RtcompileError):
            return
        frame = callers_frame()[1]
        at = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        entry = {**rtcompile.types.RecordedBuild.of(request, outcome).fields, "requested at": at}
        headers = {
            header.digest: packed
            for header in outcome.build.headers
            if header.label.startswith("user") and self._is_new(header.digest)
            if (packed := _packed(header))
        }
        if self._is_new(json.dumps(entry, sort_keys=True)):
            timed = {**entry, "milliseconds": round(outcome.build.compiled_in, 1)}
            # CuPy is not loaded yet when recording starts.
            self.append(_document(_loaded_versions(), [timed], headers))

    def _is_new(self, what: str) -> bool:
        with self._guard:
            new = what not in self._written
            self._written.add(what)
        return new


def _document(
    versions: Mapping[str, str],
    builds: Sequence[Mapping[str, Any]] = (),
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a record as plain values: the whole one, or a line of a log."""
    return {"format": FORMAT, **versions, "builds": builds, "headers": headers or {}}


def _packed(header: Header) -> str:
    """Return the contents of one of the user's headers, "" if it has changed since it was read."""
    with suppress(OSError):  # removed meanwhile: reading the record reports that it is missing
        data = sealed.read_given(header.path)
        if content_digest(data) == header.digest:
            return f"{len(data)}:{base64.b64encode(zlib.compress(data)).decode()}"
    return ""


def _loaded_versions() -> dict[str, str]:
    """Return the versions of the loaded packages on which a program's requests depend."""
    cupy = sys.modules.get("cupy._version")
    return {"rtcompile": __version__, "cupy": getattr(cupy, "__version__", "")}


# --- Records ------------------------------------------------------------------------------------------


class Record:
    """The requests of a program."""

    def __init__(
        self, versions: Mapping[str, str], builds: list[dict[str, Any]], headers: dict[str, str]
    ) -> None:
        # The versions of rtcompile, CuPy and CUDA in the program's run; "" for one that was not loaded.
        self.versions = {
            **versions,
            "cuda": ", ".join(sorted({_release(build["built by"]) for build in builds} - {""})),
        }
        self.builds = builds  # the fields of a `RecordedBuild` each
        self.headers = headers  # digest of a user's header to "SIZE:COMPRESSED"

    def found_by_path(self) -> list[str]:
        """Return the headers outside all searched directories, which are found only by their paths."""
        # In builds with NVCC the host compiler's own headers are among them.
        by_nvrtc = [build for build in self.builds if build["built by"].startswith("nvrtc")]
        headers = [header for build in by_nvrtc for header in build["headers"]]
        return list(dict.fromkeys(path for label, _, path, _ in headers if not label))

    def contents(self, digest: str) -> bytes:
        """Return the contents of a header; raise `InvalidRequest` if the record lacks them."""
        try:
            size, _, packed = self.headers[digest].partition(":")
            compressed = base64.b64decode(packed, validate=True)
            # Only the stated size is decompressed, which `read` limits: a megabyte can expand to gigabytes.
            data = zlib.decompressobj().decompress(compressed, int(size) + 1)
        except (KeyError, ValueError, zlib.error):
            data = b""
        if content_digest(data) != digest:
            raise InvalidRequest(
                f"the record lacks the contents of a header (digest {digest[:16]}…); record the "
                "program again with `rtcompile run --record`"
            )
        return data


def read(path: str, *, trust_options: bool = False) -> Record:
    """Return the record in a file; unless `trust_options`, raise if its options would run or write something."""
    text = sealed.read_text(path)
    document = _json(text)
    documents = [document] if isinstance(document, dict) else [*map(_json, text.splitlines())]
    versions, builds, headers = _merged(path, documents)
    try:
        recorded = [rtcompile.types.RecordedBuild(entry) for entry in builds]
    except InvalidRequest:
        raise _damaged(path) from None
    sizes = [isinstance(text, str) and text.partition(":")[0] for text in headers.values()]
    if not all(size and size.isascii() and size.isdecimal() and len(size) < 16 for size in sizes):
        raise _damaged(path)
    if sum(map(int, sizes)) > MOST_HEADER_BYTES:
        raise InvalidRequest(f"{path}: its headers have more than {MOST_HEADER_BYTES >> 20} MiB")
    for build in () if trust_options else recorded:
        try:
            why = build.untrusted_options()
        except InvalidRequest as error:
            raise InvalidRequest(f"{path}: {error}") from None
        if why:
            raise InvalidRequest(
                f"{path}: its options would run or write something here: {'; '.join({*why})}. If you "
                "trust who made the record, say so by --trust-options (rtcompile warm and bundle)"
            )
    return Record(versions, builds, headers)


def _merged(path: str, documents: list[Any]) -> tuple[dict[str, str], list[Any], dict[str, Any]]:
    """Return the versions, builds and headers of a record's one document, or of a log's lines."""
    if not documents or not isinstance(documents[0], dict):
        raise InvalidRequest(
            f"{path}: this is not a record, or it is truncated; "
            "`rtcompile run --record FILE script.py` writes one"
        )
    versions = {"rtcompile": "", "cupy": ""}
    builds: dict[str, Any] = {}  # several processes may record the same build
    headers: dict[str, Any] = {}
    for document in documents:
        if not isinstance(document, dict):
            continue  # a count, or the incomplete last line of a killed program
        if document.get("format") != FORMAT:
            raise InvalidRequest(
                f"{path}: its format is {document.get('format')!r}, and this rtcompile reads "
                f"{FORMAT!r}; record the program again with `rtcompile run --record`"
            )
        versions.update((name, str(document[name])) for name in versions if document.get(name))
        found = document.get("builds", []), document.get("headers", {})
        if not isinstance(found[0], list) or not isinstance(found[1], dict):
            raise _damaged(path)
        for build in found[0]:
            timeless = {**build, "milliseconds": 0} if isinstance(build, dict) else build
            builds.setdefault(json.dumps(timeless), build)
        headers.update(found[1])
    return versions, [*builds.values()], headers


def _damaged(path: str) -> InvalidRequest:
    return InvalidRequest(f"{path}: this record is damaged; record the program again")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def differences(record: Record, compilers: Sequence[str] = ()) -> list[str]:
    """Return a sentence for each version that differs here, where `compilers` are, without importing CuPy."""
    from importlib import metadata

    cupys = [
        distribution.version
        for distribution in metadata.distributions()
        if re.fullmatch(r"cupy(-cuda\d+x)?", str(distribution.metadata["Name"]).lower())
    ]
    here = {"rtcompile": [__version__], "cupy": cupys, "cuda": [*map(_release, compilers)]}
    titles = {"rtcompile": "rtcompile", "cupy": "CuPy", "cuda": "CUDA"}
    return [
        f"recorded with {titles[name]} {then}, and here is {titles[name]} {found[0]}"
        for name, found in here.items()
        if (then := record.versions[name]) and found and then not in found
    ]


def _release(compiler: str) -> str:
    """Return the CUDA release of a compiler: ``"12.9"`` for ``"nvrtc 12.9.86"`` or ``"12.9.86"``."""
    found = re.search(r"\d+\.\d+", compiler)
    return found[0] if found else ""

"""Records every build of a program, so another machine can make the same builds.

While the program runs, its processes append each request to ``FILE.part`` as one line of JSON, and a killed
program leaves its requests there. At the program's end they become one JSON document, ``FILE``.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import re
import sys
import threading
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import rtcompile
from rtcompile import CompileRequest, InvalidRequest, ObjectCode, RtcompileError, __version__
from rtcompile.extras.record.counting import Counter
from rtcompile.files import sealed
from rtcompile.files.sealed import content_digest

FORMAT = "rtcompile record 5"
MOST_HEADER_BYTES = 256 << 20  # of all headers of a record together, decompressed


class Recorder(Counter):
    """Records this process's builds, and counts them, in ``FILE.part``; `finish` writes them to `path`."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        super().__init__(f"{self.path}.part")
        self._guard = threading.Lock()
        self._written: set[str] = set()

    def create(self) -> None:
        """Begin a new record; raise OSError if the file cannot be written."""
        if os.path.isdir(self.path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        os.close(os.open(self.log, flags, 0o644))
        self.append({"format": FORMAT, **loaded_versions()})

    def finish(self) -> Record:
        """Stop, and write the whole record."""
        from rtcompile.lookup.find import listeners

        with contextlib.suppress(ValueError):
            listeners.remove(self.note)
        record = read(self.log, trust_options=True)
        text = json.dumps(record.document(), indent=1)
        sealed.publish(self.path, f"{text}\n".encode(), durable=False, mode=0o666)
        os.unlink(self.log)
        if self.problem is not None:
            raise self.problem
        return record

    def note(self, request: CompileRequest, outcome: ObjectCode | RtcompileError) -> None:
        """Count a request, and record it if its build did not fail."""
        super().note(request, outcome)
        if not isinstance(outcome, ObjectCode):
            return
        # CuPy is not loaded yet when recording starts.
        self._append_once({"format": FORMAT, **loaded_versions()})
        recorded = rtcompile.RecordedBuild.of(request, outcome)
        entry = {**recorded.fields, "requested at": _caller()}
        for header in outcome.build.headers:
            if header.label.startswith("user") and self._is_new(header.digest):
                self._keep(header.path, header.digest)
        self._append_once(entry, milliseconds=round(outcome.build.compiled_in, 1))

    def _keep(self, path: str, digest: str) -> None:
        """Write the contents of one of the user's headers."""
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            return  # it was removed meanwhile, and reading the record reports that the header is missing
        if content_digest(data) == digest:
            packed = f"{len(data)}:{base64.b64encode(zlib.compress(data)).decode()}"
            self.append({"header": digest, "contents": packed})

    def _is_new(self, what: str) -> bool:
        with self._guard:
            new = what not in self._written
            self._written.add(what)
        return new

    def _append_once(self, entry: Mapping[str, Any], **more: Any) -> None:
        """Append an entry with the further fields `more`, unless an equal entry was written before."""
        if self._is_new(json.dumps(entry, sort_keys=True)):
            self.append({**entry, **more})


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

    def document(self) -> dict[str, Any]:
        """Return the record as plain values."""
        return {"format": FORMAT, **self.versions, "builds": self.builds, "headers": self.headers}

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
    """Return the record in a file, a finished one or the ``.part`` of a program that was killed.

    Unless `trust_options`, a record is rejected if its options make a compiler run or write something, since its
    author may be untrusted.
    """
    try:
        text = sealed.read_given(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: cannot be read as a record: {error}") from None
    document = _json(text)
    lines = [document] if isinstance(document, dict) else [*map(_json, text.splitlines())]
    record = _checked(path, *_parts(path, lines))
    for build in () if trust_options else record.builds:
        try:
            why = rtcompile.RecordedBuild(build).untrusted_options()
        except InvalidRequest as error:
            raise InvalidRequest(f"{path}: {error}") from None
        if why:
            raise InvalidRequest(
                f"{path}: its options would run or write something here: {'; '.join({*why})}. If you "
                "trust who made the record, say so by --trust-options (rtcompile warm and bundle)"
            )
    return record


def _parts(path: str, lines: list[Any]) -> tuple[dict[str, str], list[Any], dict[str, Any]]:
    """Return the versions, builds and headers of a record's one document, or of a log's lines."""
    if not lines or not isinstance(lines[0], dict):
        raise InvalidRequest(
            f"{path}: this is not a record, or it is truncated; "
            "`rtcompile run --record FILE script.py` writes one"
        )
    versions = {"rtcompile": "", "cupy": ""}
    builds: list[Any] = []
    headers: dict[str, Any] = {}
    seen: set[str] = set()  # several processes may record the same build
    for entry in lines:
        if not isinstance(entry, dict):
            continue  # a count, or the incomplete last line of a killed program
        if "header" in entry:
            headers[str(entry["header"])] = entry.get("contents", "")
        elif "source" in entry:
            what = json.dumps({**entry, "milliseconds": 0})
            builds += [] if what in seen else [entry]
            seen.add(what)
        else:
            if entry.get("format") != FORMAT:
                raise InvalidRequest(
                    f"{path}: its format is {entry.get('format')!r}, and this rtcompile reads "
                    f"{FORMAT!r}; record the program again with `rtcompile run --record`"
                )
            versions.update((name, str(entry[name])) for name in versions if entry.get(name))
            given = entry.get("builds", []), entry.get("headers", {})
            if not isinstance(given[0], list) or not isinstance(given[1], dict):
                raise _damaged(path)
            builds += given[0]
            headers.update(given[1])
    return versions, builds, headers


def _checked(
    path: str, versions: Mapping[str, str], builds: list[Any], headers: dict[str, Any]
) -> Record:
    """Return the record after checking the types of all fields that are used before a build."""

    try:
        for entry in builds:
            rtcompile.RecordedBuild(entry)
    except InvalidRequest:
        raise _damaged(path) from None
    if not all(isinstance(text, str) for text in headers.values()):
        raise _damaged(path)
    sizes = [text.partition(":")[0] for text in headers.values()]
    if not all(size.isascii() and size.isdecimal() and len(size) < 16 for size in sizes):
        raise _damaged(path)
    if sum(map(int, sizes)) > MOST_HEADER_BYTES:
        raise InvalidRequest(f"{path}: its headers have more than {MOST_HEADER_BYTES >> 20} MiB")
    return Record(versions, builds, headers)


def _damaged(path: str) -> InvalidRequest:
    return InvalidRequest(f"{path}: this record is damaged; record the program again")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def loaded_versions() -> dict[str, str]:
    """Return the versions of the loaded packages on which a program's requests depend."""
    cupy = sys.modules.get("cupy._version")
    return {"rtcompile": __version__, "cupy": getattr(cupy, "__version__", "")}


def differences(record: Record, compilers: Sequence[str] = ()) -> list[str]:
    """Return a sentence for each version that differs here, without importing CuPy; `compilers` are this
    environment's."""
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


def _caller() -> str:
    """Return the line outside rtcompile and CuPy that made the request: ``"script.py:12"``."""
    frame = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in ("rtcompile", "cupy", "cupyx", "contextlib"):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""

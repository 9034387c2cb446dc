"""Records every build of a program, so another machine can make the same builds.

While the program runs, each request is appended to ``FILE.part`` as one line of JSON in one write.
Forked children append to the same file, and a killed program leaves its requests there. At the
program's end the lines become one JSON document, which is renamed to ``FILE``.
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
from collections.abc import Iterable, Mapping
from typing import Any

from rtcompile._version import __version__
from rtcompile.build.portable import compiler_versions, describe, distrusted
from rtcompile.errors import InvalidRequest, RtcompileError
from rtcompile.files import sealed
from rtcompile.files.sealed import content_digest
from rtcompile.lookup.find import listeners
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest

FORMAT = "rtcompile record 4"
MOST_HEADER_BYTES = 256 << 20  # of all headers of a record together, decompressed


class Recorder:
    """Records all requests from `start` to `finish`, which writes them to `path`."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._part = f"{self.path}.part"
        self._guard = threading.Lock()
        self._written: set[str] = set()
        self._process = 0
        self._problem: OSError | None = None

    def start(self) -> None:
        """Start recording; raise OSError if the file cannot be written."""
        if os.path.isdir(self.path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        os.close(os.open(self._part, flags, 0o644))
        self._process = os.getpid()
        self._append({"format": FORMAT, **loaded_versions()})
        listeners.append(self._note)

    def join(self) -> None:
        """Record this process's requests too, in the record of another process, which finishes it."""
        listeners.append(self._note)

    def finish(self) -> Record:
        """Stop, and write the whole record. A forked child leaves the writing to its parent."""
        with contextlib.suppress(ValueError):
            listeners.remove(self._note)
        self._append_once({"format": FORMAT, **loaded_versions()})
        record = read(self._part, trust_options=True)
        if os.getpid() == self._process:
            text = json.dumps(record.document(), indent=1)
            sealed.publish(self.path, f"{text}\n".encode(), durable=False, mode=0o666)
            os.unlink(self._part)
        if self._problem is not None:
            raise self._problem
        return record

    def _note(
        self,
        request: CompileRequest,
        code: ObjectCode | RtcompileError,
    ) -> None:
        if not isinstance(code, ObjectCode):
            return  # a failed build cannot be made in advance
        try:
            # CuPy is not loaded yet when recording starts.
            self._append_once({"format": FORMAT, **loaded_versions()})
            entry = {**describe(request, code), "asked by": _caller()}
            for header in code.build.headers:
                if header.label.startswith("user"):
                    self._keep(header.path, header.digest)
            self._append_once(entry, milliseconds=round(code.build.compiled_in, 1))
        except (
            OSError
        ) as error:  # for example a full disk: the program continues, and `finish` reports it
            self._problem = error

    def _keep(self, path: str, digest: str) -> None:
        """Write the contents of one of the user's headers, once."""
        if not self._is_new(digest):
            return
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            return  # it was removed meanwhile, and reading the record reports that the header is missing
        if content_digest(data) == digest:
            packed = f"{len(data)}:{base64.b64encode(zlib.compress(data)).decode()}"
            self._append({"header": digest, "contents": packed})

    def _is_new(self, what: str) -> bool:
        with self._guard:
            new = what not in self._written
            self._written.add(what)
        return new

    def _append_once(self, entry: Mapping[str, Any], **more: Any) -> None:
        """Append an entry with the further fields `more`, unless an equal entry was written before."""
        if self._is_new(json.dumps(entry, sort_keys=True)):
            self._append({**entry, **more})

    def _append(self, entry: Mapping[str, Any]) -> None:
        descriptor = os.open(self._part, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(descriptor, (json.dumps(entry) + "\n").encode())
        finally:
            os.close(descriptor)


class Record:
    """The requests of a program."""

    def __init__(
        self, versions: Mapping[str, str], builds: list[dict[str, Any]], headers: dict[str, str]
    ) -> None:
        # The versions of rtcompile, CuPy and CUDA in the program's run; "" for one that was not loaded.
        self.versions = {
            **versions,
            "cuda": ", ".join(sorted({_cuda(build) for build in builds} - {""})),
        }
        self.builds = builds  # as returned by `describe`
        self.headers = headers  # digest of a user's header to "SIZE:COMPRESSED"

    def document(self) -> dict[str, Any]:
        """Return the record as plain values."""
        return {
            "format": FORMAT,
            **self.versions,
            "builds": self.builds,
            "headers": self.headers,
        }

    def found_by_path(self) -> list[str]:
        """Return the headers outside all searched directories, which are found only by their paths."""
        # The host compiler's own headers are found so in builds with NVCC.
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

    Unless `trust_options`, a record is rejected if its options make a compiler run or write something:
    who wrote the record would decide what.
    """
    try:
        text = sealed.read_given(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: cannot be read as a record: {error}") from None
    document = _json(text)
    if isinstance(document, dict) and "builds" in document:
        record = _from_document(path, document)
    else:
        record = _from_lines(path, text.splitlines())
    for build in () if trust_options else record.builds:
        try:
            why = distrusted(build)
        except InvalidRequest as error:
            raise InvalidRequest(f"{path}: a build of the record is damaged: {error}") from None
        except (KeyError, TypeError, AttributeError):
            raise _damaged(path) from None
        if why:
            raise InvalidRequest(
                f"{path}: its options would run or write something here: {'; '.join({*why})}. If you "
                "trust who made the record, say so by --trust-options (rtcompile warm and bundle)"
            )
    return record


def _from_document(path: str, document: dict[str, Any]) -> Record:
    _check_format(path, document)
    builds, headers = document["builds"], document.get("headers")
    if not isinstance(builds, list) or not isinstance(headers, dict):
        raise _damaged(path)
    return _checked(path, _version_fields(document), builds, headers)


def _from_lines(path: str, lines: Iterable[str]) -> Record:
    first, *rest = [*lines, ""]
    document = _json(first)
    if not isinstance(document, dict):
        raise InvalidRequest(
            f"{path}: this is not a record, or it is truncated; "
            "`rtcompile run --record FILE script.py` writes one"
        )
    builds: dict[str, dict[str, Any]] = {}
    headers: dict[str, str] = {}
    for entry in (document, *map(_json, rest)):
        if not isinstance(entry, dict):
            continue  # the last line of a killed program, incomplete
        if "header" in entry:
            headers[str(entry["header"])] = entry.get("contents", "")
        elif "source" in entry:
            what = {key: value for key, value in entry.items() if key != "milliseconds"}
            builds.setdefault(
                json.dumps(what), entry
            )  # several processes may record the same build
        else:
            _check_format(path, entry)
            document = entry
    _check_format(path, document)
    return _checked(path, _version_fields(document), list(builds.values()), headers)


def _checked(
    path: str, versions: Mapping[str, str], builds: list[Any], headers: dict[str, Any]
) -> Record:
    """Return the record after checking the types of all fields that are used before a build."""

    def are_texts(values: Any, count: int) -> bool:
        texts = isinstance(values, list) and all(isinstance(value, str) for value in values)
        return texts and len(values) == count

    for entry in builds:
        read = entry.get("headers") if isinstance(entry, dict) else None
        if not isinstance(read, list) or not all(are_texts(header, 4) for header in read):
            raise _damaged(path)
        if not isinstance(entry.get("built by"), str):
            raise _damaged(path)
        asked = entry.get("asked")
        if (
            not isinstance(asked, dict)
            or {*asked} != {"options", "arch", "by cupy", "by a module", "anywhere"}
            or not isinstance(asked["options"], list)
            or not are_texts(asked["options"], len(asked["options"]))
        ):
            raise _damaged(path)
    if not are_texts([*headers, *headers.values()], 2 * len(headers)):
        raise _damaged(path)
    sizes = [text.partition(":")[0] for text in headers.values()]
    if not all(size.isascii() and size.isdecimal() and len(size) < 16 for size in sizes):
        raise _damaged(path)
    if sum(map(int, sizes)) > MOST_HEADER_BYTES:
        raise InvalidRequest(f"{path}: its headers have more than {MOST_HEADER_BYTES >> 20} MiB")
    return Record(versions, builds, headers)


def _damaged(path: str) -> InvalidRequest:
    return InvalidRequest(f"{path}: this record is damaged; record the program again")


def _check_format(path: str, document: Mapping[str, Any]) -> None:
    if document.get("format") != FORMAT:
        raise InvalidRequest(
            f"{path}: its format is {document.get('format')!r}, and this rtcompile reads "
            f"{FORMAT!r}; record the program again with `rtcompile run --record`"
        )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _version_fields(document: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(document.get(name, "")) for name in ("rtcompile", "cupy")}


def loaded_versions() -> dict[str, str]:
    """Return the versions of the loaded packages on which a program's requests depend."""
    cupy = sys.modules.get("cupy._version")
    return {"rtcompile": __version__, "cupy": getattr(cupy, "__version__", "")}


def differences(record: Record) -> list[str]:
    """Return a sentence for each version that differs here, without importing CuPy."""
    from importlib import metadata

    cupys = [
        distribution.version
        for distribution in metadata.distributions()
        if re.fullmatch(r"cupy(-cuda\d+x)?", str(distribution.metadata["Name"]).lower())
    ]
    compilers = [_release(version) for version in compiler_versions()]
    here = {"rtcompile": [__version__], "cupy": cupys, "cuda": compilers}
    titles = {"rtcompile": "rtcompile", "cupy": "CuPy", "cuda": "CUDA"}
    return [
        f"recorded with {titles[name]} {then}, and here is {titles[name]} {found[0]}"
        for name, found in here.items()
        if (then := record.versions[name]) and found and then not in found
    ]


def _cuda(entry: Mapping[str, Any]) -> str:
    """Return the CUDA release of the compiler of a build, ``"12.9"`` for ``"nvrtc 12.9.86"``."""
    return _release(entry["built by"].partition(" ")[2])


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _caller() -> str:
    """Return the line outside rtcompile and CuPy that made the request: ``"script.py:12"``."""
    frame = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in ("rtcompile", "cupy", "cupyx", "contextlib"):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""

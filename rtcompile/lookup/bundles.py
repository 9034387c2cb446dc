"""The bundles in use, which come with packages, their level of the look-up, and the format of their files.

A file has a head of fixed size, the sealed index, and the blobs of its builds: an object in the cache's format, and a
`Record` of the package's own headers, which are checked before use. Bundles come from other machines, so their bytes
are verified by digests, and the package's headers by contents. Their keys have neither a path nor rtcompile's version,
since a wheel is used in any folder and outlives upgrades. This module imports only what a hit needs.
"""

from __future__ import annotations

import os
import struct

from rtcompile.errors import InvalidRequest, UnsupportedArch, warn
from rtcompile.files import sealed
from rtcompile.files.fileset import FileSet, joined, texts_in
from rtcompile.files.sealed import content_digest
from rtcompile.lookup import environment as environments
from rtcompile.lookup.find import Query, links_of, loaded
from rtcompile.named import NamedTuple
from rtcompile.request import object_code
from rtcompile.request.object_code import Found, ObjectCode, Record, hit
from rtcompile.request.request import (
    EITHER,
    WITHOUT_PATH,
    CompileRequest,
    is_source,
    wanted_backend,
)
from rtcompile.request.values import Arch, absolute, exact, working_directory
from rtcompile.request.values import path as checked_path
from rtcompile.settings import cuda_of_cupy, import_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from rtcompile.request.options import Options


# --- The file ------------------------------------------------------------------------------------

MAGIC = b"rtcompile bundle 9\n".ljust(32, b"\0")
HEAD = struct.Struct("<32sQ")  # magic, bytes of the index
INDEX = "bundle index"
_MAGIC_OF_ANY_FORMAT = b"rtcompile bundle "

# The start, size and digest of a blob; the index ends at position 0.
Extent = tuple[int, int, str]


class UnusableError(Exception):
    """A bundle cannot be used; the message says why."""


class Row(NamedTuple):
    """One build in a bundle's index."""

    source: str  # its digest
    key: str  # `key_of` the request
    program: str
    arch: Arch
    kind: str  # "cubin" or "ptx"
    compiler: str  # "nvrtc 12.9.86"
    code: Extent = (0, 0, "")  # the object's file
    files: Extent = (0, 0, "")  # the file of a `Record`

    def encode(self) -> bytes:
        """Return the row as `decode` reads it."""
        texts = (*self[:6], *self.code, *self.files)
        return joined(map(str, texts))

    @classmethod
    def decode(cls, data: bytes) -> Row:
        """Read a row of the index; raise `UnusableError` if the data is not a row."""
        try:
            source, key, program, arch, kind, compiler, *numbers = texts_in(data)
            start, size, digest, at, length, digest_of_files = numbers
            code, files = (int(start), int(size), digest), (int(at), int(length), digest_of_files)
            row = cls(source, key, program, Arch.parse(arch), kind, compiler, code, files)
            _ = row.cuda
            return row
        except (ValueError, IndexError, InvalidRequest) as error:
            raise UnusableError(f"its index cannot be understood ({error})") from None

    @property
    def arch_option(self) -> str:
        """The architecture as ``--arch`` takes it: "sm_90a", or "compute_80" for PTX."""
        return self.arch.virtual if self.kind == "ptx" else str(self.arch)

    @property
    def backend(self) -> str:
        """The compiler's name."""
        return self.compiler.partition(" ")[0]

    @property
    def cuda(self) -> int:
        """The compiler's major version."""
        return int(self.compiler.split()[1].partition(".")[0])

    @property
    def sealed_key(self) -> str:
        """The key that the row's object is sealed under."""
        return " ".join((self.key, str(self.arch), self.kind, str(self.cuda)))


class Bundle:
    """A bundle on disk, read at first use; an unusable one is ignored with one warning."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problem = ""  # why it is ignored, "" while it is not
        self._rows: dict[str, list[bytes]] = {}  # by the source's digest
        self.end_of_index = 0  # the position of the first blob; 0 until it is open

    def open(self) -> bool:
        """Read the index on the first call; return whether it is usable. Callers `ignore` it on `UnusableError`."""
        if self.end_of_index or self.problem:
            return not self.problem
        try:
            head = self._bytes(0, HEAD.size)
        except FileNotFoundError:
            self.problem = "it is not there"  # this is normal in a checkout: no warning
            return False
        except OSError as error:
            raise UnusableError(error.strerror or str(error)) from None
        if head[:32] != MAGIC:
            if head.startswith(_MAGIC_OF_ANY_FORMAT):
                raise UnusableError("it was made by an rtcompile with another bundle format")
            raise UnusableError("it is no bundle")
        try:
            _, size = HEAD.unpack(head)
            fields = sealed.unseal(INDEX, "", self._bytes(HEAD.size, size))
        except (struct.error, OSError):
            fields = None
        if not fields:
            raise UnusableError("it is damaged")
        for row in fields:
            source = row.partition(b"\0")[0].decode("ascii", "replace")
            self._rows.setdefault(source, []).append(row)
        self.end_of_index = HEAD.size + size
        return True

    def rows(self, source: str | None = None) -> list[Row]:
        """Return the builds of a source by its digest, or all; raise `UnusableError` if the index is damaged."""
        if not self.open():
            return []
        every = self._rows.values() if source is None else [self._rows.get(source, ())]
        return [Row.decode(row) for rows in every for row in rows]

    def ignore(self, reason: str) -> None:
        """Stop using the bundle, and warn once."""
        if not self.problem:
            self.problem = reason
            warn(f"kernel bundle {self.path} is ignored: {reason}. None of its builds is used.")

    def object(self, row: Row) -> ObjectCode:
        """Return the code of a row; raise `UnusableError` if its blob has another key or another format."""
        obj = object_code.decode(row.sealed_key, self.blob(row.code))
        if obj is None:
            raise UnusableError("it contains builds of another format, or under other keys")
        return obj

    def files(self, row: Row, folders: Sequence[str] | None) -> FileSet:
        """Return the package's own headers of a row, in these folders; for None, with the folders' numbers as paths."""
        search: Any = None if folders is None else ()
        if folders:
            from rtcompile.files.headers import SearchDir

            search = tuple([SearchDir(f"user{at}", path) for at, path in enumerate(folders)])
        records = object_code.decode_records("", self.blob(row.files), search)
        if not records:
            raise UnusableError("its lists of headers cannot be understood")
        return records[0].files

    def blob(self, extent: Extent) -> bytes:
        """Return a blob; raise `UnusableError` if its digest differs from the index."""
        start, size, digest = extent
        try:
            data = self._bytes(self.end_of_index + start, size)
        except (OSError, OverflowError) as error:
            raise UnusableError(str(error)) from None
        if content_digest(data) != digest:
            raise UnusableError("it is damaged, or was replaced while in use")
        return data

    def _bytes(self, start: int, size: int) -> bytes:
        # The file may have any owner: the user who installed the package also installed its code.
        descriptor, status = sealed.open_regular(self.path)
        try:
            # A damaged size must not allocate more memory than the file's size.
            return os.pread(descriptor, min(size, status.st_size), start)
        finally:
            os.close(descriptor)


# --- The bundles in use ---------------------------------------------------------------------------

_bundles: dict[str, Bundle] = {}  # by path, in the order of use
_enabled = True


def use_bundle(path: str | os.PathLike[str]) -> None:
    """Search a bundle for the builds of this process, before the cache and the compilers.

    Nothing is read before the first build. A bundle that is damaged, is of another format or was
    made for another CUDA is ignored with one `RtcompileWarning`. A missing one (in a checkout or an
    editable install) is ignored silently. Builds are then compiled as usual.

    Parameters
    ----------
    path : path-like
        A file that ``rtcompile bundle`` or a build hook wrote.

    Raises
    ------
    InvalidRequest
        `path` is not a path.

    Examples
    --------
    >>> rtcompile.use_bundle("/site-packages/mykernels/kernels.rtcb")
    """
    full = absolute(checked_path("bundle", path))
    _bundles.setdefault(full, Bundle(full))


def in_use(paths: Sequence[str] = ()) -> list[Bundle]:
    """Return the bundles in use, these included, in the order in which they were added."""
    for path in paths:
        use_bundle(path)
    return list(_bundles.values()) if _enabled else []


class out_of_use:  # noqa: N801 - ``with`` statements use it like a function
    """Search no bundles in the body of ``with``, in which a new bundle's builds are compiled."""

    def __enter__(self) -> None:
        global _enabled
        _enabled = False
        environments.current().memory = None  # it may have code of bundles

    def __exit__(self, *_: object) -> None:
        global _enabled
        _enabled = True


_installed: dict[tuple[str, ...], int | None] = {}


def cuda_major() -> int | None:
    """Return the major version of the CUDA that CuPy launches code with; None if unknown."""
    # Not the toolkit's version, since there may be no toolkit. If CuPy is not loaded, its wheel's name has the
    # version.
    cupy = loaded("cupy")
    if cupy is not None:
        return int(cupy.cuda.runtime.runtimeGetVersion()) // 1000
    path = tuple(import_folders())
    if path not in _installed:
        _installed[path] = cuda_of_cupy(path)
    return _installed[path]


# --- The key of a request, without its folders ------------------------------------------------------

_MAX_KNOWN = 8192
_PLAIN = tuple([each for each in WITHOUT_PATH if "arch" not in each])


class Shape(NamedTuple):
    """Options without the paths of their folders; `text`, which is in the key, has only how these are nested."""

    text: str
    folders: tuple[str, ...]
    parsed: Options | None = None  # None for options that name no architecture


_shapes: dict[tuple[tuple[str, ...], str], Shape] = {}  # saves 20 to 100 us of a hit's 150


def key_of(request: CompileRequest, debug: bool) -> tuple[str, Shape] | None:
    """Return the key of a request's builds, for any architecture; None if it is invalid or links sources."""
    if any(is_source(item) or isinstance(item, CompileRequest) for item in request.link):
        return None  # no bundle records the headers of such a source
    try:
        directory = working_directory("") if request.depends_on_directory else ""
        shape = _shapes.get((request.options, directory)) or shape_of(request.options)
    except InvalidRequest:  # planning raises the error
        return None
    if len(_shapes) >= _MAX_KNOWN:
        _shapes.clear()
    _shapes[request.options, directory] = shape
    links = links_of(request.link)
    folder, _, program = request.name.rpartition("/")
    given = (
        "bundle 2",
        request.source_digest,
        program,
        _nested(f"{folder}/", shape.folders),
        shape.text,
        sorted({*request.name_expressions}),
        request.headers,
        None if links is None else [link[-1] for link in links],
        debug,
    )
    return content_digest(repr(given).encode()), shape


def shape_of(options: tuple[str, ...]) -> Shape:
    """Return the shape of options; it needs no parser if they are macros and the like, and folders after ``-I``."""
    plain: list[str] = []
    folders: list[str] = []
    given = iter(options)
    for option in given:
        words = option.split()
        if words == ["-I"]:
            words = [f"-I{next(given, '')}"]
        elif option.startswith("-I") and not any(word[0] == "-" for word in words[1:]):
            words = [option]  # the path may contain blanks
        is_quoted = len(words) > 1 and ("'" in option or '"' in option)
        for word in words:
            if word.startswith("-I") and word[2:3] not in ("", "'", '"'):
                plain.append("-I")
                folders.append(absolute(word[2:].removeprefix("=").strip()))
            elif word.startswith(_PLAIN) and len(word) > 2 and not is_quoted:
                plain.append(word.lstrip("-"))  # ``-std=`` and ``--std=`` are one option
            else:
                return _parsed_shape(options)
    return Shape(repr((plain, [_nested(each, folders) for each in folders])), tuple(folders))


def _parsed_shape(options: tuple[str, ...]) -> Shape:
    from rtcompile.request.options import parse

    parsed = parse(options)
    folders = tuple([absolute(path) for path in (*parsed.include_dirs, *parsed.last_dirs)])
    nested = [_nested(path, folders) for path in folders]
    nested += [_nested(path, folders) for path in parsed.pre_includes]
    return Shape(repr((parsed.key_fields, len(parsed.last_dirs), nested)), folders, parsed)


def _nested(path: str, folders: Sequence[str]) -> str:
    """Return a path as the position of the innermost folder above it and the rest; "" if there is none."""
    above = max([each for each in folders if path.startswith(f"{each}/")], key=len, default="")
    return f"{folders.index(above)} {path[len(above) + 1 :]}" if above else ""


# --- The level of the look-up ----------------------------------------------------------------------


class Search:
    """The search for a request in the bundles in use."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.bundles = in_use(query.settings.bundles)
        self.shape = Shape("", ())
        # The builds under the request's key, by its compiler, and for the CUDA of this process.
        self.found: list[tuple[Bundle, Row]] = []
        for bundle in self.bundles:
            try:
                self._add(bundle)
            except UnusableError as error:
                bundle.ignore(str(error))

    def _add(self, bundle: Bundle) -> None:
        request, settings = self.query.request, self.query.settings
        rows = bundle.rows(request.source_digest)
        # The key is needed only if a bundle has the source.
        known = key_of(request, settings.debug) if rows else None
        if known is None:
            return
        key, self.shape = known
        backend = wanted_backend(request, settings.fallback)
        rows = [row for row in rows if row.key == key and backend in (*EITHER, row.backend)]
        cuda = cuda_major() if rows else None
        found = [(bundle, row) for row in rows if cuda in (None, row.cuda)]
        self.found += found
        made_with = {row.cuda for row in (bundle.rows() if rows and not found else ())}
        if made_with and cuda not in made_with:
            made = " and ".join(map(str, sorted(made_with)))
            raise UnusableError(f"it was made with CUDA {made}, and this process uses CUDA {cuda}")

    def exact(self) -> Found | None:
        """Return the bundled build of exactly this request, or None."""
        for wanted in self._wanted() if self.found else ():
            for bundle, row in self.found:
                if (row.arch, row.kind) == wanted and (found := self.load(bundle, row)):
                    return found
        return None

    def _wanted(self) -> list[tuple[Arch, str]]:
        """Return the architectures and kinds for which a compiler of any version would compile."""
        target = self.query.request.target
        try:
            if requested := self.requested():
                return [requested]
        except UnsupportedArch:  # planning raises it, or passes over the architecture
            return []
        if self.query.capability is None:
            return []
        if self.query.settings.ptx and target == "cubin":
            target = "ptx"
        return [(arch, target) for arch in exact(self.query.capability)]

    def requested(self) -> tuple[Arch, str] | None:
        """Return the architecture and kind that the caller chose; None for the device's."""
        request, parsed = self.query.request, self.shape.parsed
        if request.arch is not None:
            return request.arch, request.target
        if parsed is None:
            return None
        from rtcompile.request.options import requested_architecture

        choice = requested_architecture(request, parsed, self.query.capability)
        return None if choice is None else (choice.arch, choice.target)

    def load(self, bundle: Bundle, row: Row) -> Found | None:
        """Return a build with the package's own headers; None if these have changed since."""
        try:
            files = self._unchanged(bundle, row)
            if files is None:
                return None
            return Found(hit(bundle.object(row), files, "bundle"), Record(files))
        except UnusableError as error:
            bundle.ignore(str(error))
            return None

    def _unchanged(self, bundle: Bundle, row: Row) -> FileSet | None:
        folders = self.shape.folders
        known = _known.get((row.files[2], folders))
        if known is None:
            known = bundle.files(row, folders)
        elif known.is_unchanged(self.query.recent):
            return known
        now = known.current()
        if now is not None:
            now.packed(folder_of_cupy())
            if len(_known) >= _MAX_KNOWN:
                _known.clear()
            _known[row.files[2], folders] = now
        return now


# The packages' own headers at the last comparison, by the digest of their list and the folders.
_known: dict[tuple[str, tuple[str, ...]], FileSet] = {}


def folder_of_cupy() -> tuple[str, ...]:
    """Return CuPy's folder, whose headers count as the toolkit's, since its kernels share a hundred of them."""
    cupy = loaded("cupy")
    return (f"{os.path.dirname(cupy.__file__)}/",) if cupy is not None else ()

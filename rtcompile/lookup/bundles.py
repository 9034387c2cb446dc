"""The bundles in use, which packages carry and which are a level of the look-up, and the format of their files.

A file has a head of fixed size, the sealed index, and the blobs of its rows: objects in the cache's format, and
lists of the package's own headers, which are checked before use. The index maps digests of requests,
without the paths of header folders, to builds. Bundles come from other machines, so their bytes are verified by
digests, and the package's headers by contents. This module imports only what a hit needs.
"""

from __future__ import annotations

import os
import struct

from rtcompile.errors import warn
from rtcompile.files import sealed
from rtcompile.files.fileset import FileSet
from rtcompile.files.sealed import content_digest
from rtcompile.lookup import environment as environments
from rtcompile.lookup.environment import versioned_digest
from rtcompile.lookup.find import WITHOUT_PATH, Found, Query, depends_on_directory, loaded
from rtcompile.request import object_code
from rtcompile.request.object_code import Record, hit
from rtcompile.request.values import SUFFIXES, absolute
from rtcompile.request.values import path as checked_path
from rtcompile.settings import cuda_of_cupy, import_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# --- The file ------------------------------------------------------------------------------------

MAGIC = b"rtcompile bundle 7\n".ljust(32, b"\0")
HEAD = struct.Struct("<32sQ")  # magic, bytes of the index
INDEX = "bundle index"
_MAGIC_OF_ANY_FORMAT = b"rtcompile bundle "

# The start, size and digest of a blob; the index ends at position 0.
Extent = tuple[int, int, str]


class UnusableError(Exception):
    """A bundle cannot be used; the message says why."""


class Bundle:
    """A bundle on disk, read at first use; an unusable one is ignored with one warning."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problem = ""  # why it is ignored, "" while it is not
        self.rows: list[bytes] = []
        # Digests of requests to the rows that are valid for them.
        self.queries: dict[str, list[int]] = {}
        self.end_of_index = 0  # the position of the first blob; 0 until it is open

    def open(self) -> bool:
        """Read the index on the first call; say whether it is usable. On UnusableError, call `ignore`."""
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
        queries: dict[str, list[int]] = {}
        try:
            for line in fields[0].decode().splitlines():
                query, *rows = line.split(" ")
                queries[query] = [int(row) for row in rows]
        except ValueError as error:
            raise UnusableError(f"its index cannot be understood ({error})") from None
        self.queries, self.rows = queries, fields[1:]
        self.end_of_index = HEAD.size + size
        return True

    def ignore(self, reason: str) -> None:
        """Stop using the bundle, and warn once."""
        if not self.problem:
            self.problem = reason
            warn(f"kernel bundle {self.path} is ignored: {reason}. None of its builds is used.")

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


# --- The files to check before a build is used ----------------------------------------------------

CHECKS = "bundle checks"  # the kind of the sealed blob that `read_checks` reads


def read_checks(data: bytes, folders: Sequence[str] | Mapping[int, str]) -> FileSet:
    """Decode a list of files to check, in these folders; raise `UnusableError` if it is damaged."""

    def here(path: str) -> str:
        at, _, rest = path.partition("/")
        return f"{folders[int(at)]}/{rest}"

    try:
        return FileSet.unpacked(sealed.unseal(CHECKS, "", data) or ()).moved(here)
    except (ValueError, LookupError, StopIteration, struct.error) as error:
        raise UnusableError(f"its checks cannot be understood ({error})") from None


# --- The bundles in use ---------------------------------------------------------------------------

_QUOTES_AND_LISTS = frozenset("\"'\\,")
_MAX_KNOWN = 8192

# By path, in the order of use. The value is None until the bundle is first searched.
_bundles: dict[str, Bundle | None] = {}
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
    use(checked_path("bundle", path))


def use(path: str) -> None:
    """Use a bundle as `use_bundle` does, without checking its path."""
    _bundles.setdefault(absolute(path), None)


def in_use(paths: Sequence[str] = ()) -> list[Bundle]:
    """Return the bundles in use, these included, in the order in which they were added."""
    for path in paths:
        use(path)
    found = []
    for path, bundle in list(_bundles.items()) if _enabled else ():
        if bundle is None:
            bundle = _bundles[path] = Bundle(path)
        found.append(bundle)
    return found


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


# --- The level of the look-up ----------------------------------------------------------------------


def find(query: Query) -> Found | None:
    """Return a request's build in the bundles in use; None if there is none or a plan is needed."""
    searched = in_use(query.settings.bundles)
    cuda = cuda_major() if searched else None
    found = digest_of(query) if searched else None
    if found is None or cuda is None:
        return None
    for bundle in searched:
        try:
            build = _find_in(bundle, *found, cuda, query.recent) if bundle.open() else None
        except UnusableError as error:
            bundle.ignore(str(error))
            continue
        if build is not None:
            return build
    return None


def _find_in(
    bundle: Bundle, request: str, folders: tuple[str, ...], cuda: int, recent: bool
) -> Found | None:
    rows = bundle.queries.get(request)
    if rows is None:
        return None
    try:
        read = [(bundle.rows[row].split(b"\0"), row) for row in rows]
        suffixes = [
            (SUFFIXES.index(fields[1].decode().lstrip("sm_0123456789")), row)
            for fields, row in read
            if fields[5] == b"%d" % cuda
        ]
        for _, row in sorted(suffixes):
            if build := load(bundle, row, folders, recent):
                return build
    except (IndexError, ValueError) as error:
        raise UnusableError(f"its index cannot be understood ({error})") from None
    return None


def load(bundle: Bundle, row: int, folders: tuple[str, ...], recent: bool = False) -> Found | None:
    """Return the build of a row with the package's own headers; None if these have changed since."""
    fields = bundle.rows[row].split(b"\0")
    checks = _extent(fields[11:14])
    checked = _checked_files(bundle, checks, folders, recent)
    if checked is None:
        return None
    key = b" ".join((*fields[:3], fields[5])).decode("utf-8", "surrogateescape")
    decoded = object_code.decode(key, bundle.blob(_extent(fields[8:11])))
    if decoded is None:
        raise UnusableError("it contains builds of another format, or under another's key")
    return Found(hit(decoded[1], checked, "bundle"), Record(checked))


def _extent(texts: Sequence[bytes]) -> Extent:
    try:
        start, size, digest = (text.decode() for text in texts)
        return int(start), int(size), digest
    except ValueError as error:
        raise UnusableError(f"its index cannot be understood ({error})") from None


# The packages' own headers at the last comparison, by the digest of their list and the folders.
_known: dict[tuple[str, tuple[str, ...]], FileSet] = {}


def _checked_files(
    bundle: Bundle, checks: Extent, folders: tuple[str, ...], recent: bool
) -> FileSet | None:
    """Return the package's own headers if they are the same as when the build was compiled."""
    known = _known.get((checks[2], folders))
    if known is None:
        known = read_checks(bundle.blob(checks), folders)
    elif known.is_unchanged(recent):
        return known
    now = known.refreshed()
    if now is not None:
        now.packed(folder_of_cupy())
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[checks[2], folders] = now
    return now


def folder_of_cupy() -> tuple[str, ...]:
    """Return CuPy's header folder, which counts as the toolkit's, since its kernels share a hundred headers."""
    folder = getattr(loaded("cupy._core.core"), "_get_header_dir_path", None)
    return (f"{folder()}/",) if folder is not None else ()


# --- The digest of a request without its folders ---------------------------------------------------


_Shape = tuple[tuple[str, ...], tuple[str, ...]]
_shapes: dict[tuple[str, ...], _Shape | None] = {}  # 20 to 100 us, of a hit's 150


def digest_of(query: Query) -> tuple[str, tuple[str, ...]] | None:
    """Return a request's digest without its folders, and the folders; None if it depends on more."""
    request = query.request
    identity = query.identity
    if identity is None or depends_on_directory(request) or "/" in request.name:
        return None
    if request.link:
        return None
    shape = _shapes.get(request.options, ())
    if shape == ():
        if len(_shapes) >= _MAX_KNOWN:
            _shapes.clear()
        shape = _shapes[request.options] = shape_of(request.options)
    if not shape:
        return None
    options, folders = shape
    assert identity[1] is request.options
    return versioned_digest("request", [repr((*identity[:1], options, *identity[2:]))]), folders


def _words(option: str) -> list[str]:
    """Return the options in one string, "-DN=1 -lineinfo", if none contains a path."""
    words = option.split()
    is_plain = not _QUOTES_AND_LISTS & {*option}
    if is_plain and all(len(w) > 2 and w.startswith(WITHOUT_PATH) for w in words):
        return words
    return [option]


def shape_of(options: tuple[str, ...]) -> _Shape | None:
    """Return the options with each folder replaced by its position in the others, and the folders."""
    options = tuple([word for option in options for word in _words(option)])
    folders = [option[2:] for option in options if option.startswith("-I/")]
    if len(set(folders)) < len(folders) or any(len(option.split()) != 1 for option in options):
        return None
    if any(os.path.normpath(path) != path or _QUOTES_AND_LISTS & {*path} for path in folders):
        return None
    shape = []
    for option in options:
        if option.startswith("-I/"):
            inside = [each for each in folders if option.startswith(f"-I{each}/")]
            parent = max(inside, key=len, default="")
            rest = option[len(f"-I{parent}/") :] if parent else ""
            option = f"-I {folders.index(parent) if parent else ''} {rest}"
        shape.append(option)
    return tuple(shape), tuple(folders)

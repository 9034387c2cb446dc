"""The bundles in use, which are a level of the look-up from the first `use` on.

A request's build is found wherever its header folders lie.

A bundle lists the digests of the requests that its builds serve. A build that is found is verified: its
bytes by their digests, the package's own headers by their contents. This module imports only what a
hit needs.
"""

from __future__ import annotations

import os

from rtcompile.bundles.sections import Extent, Sections, UnusableError, number, read_checks
from rtcompile.lookup import find as lookup
from rtcompile.lookup.environment import digest
from rtcompile.lookup.find import WITHOUT_PATH, Found, Query, depends_on_directory, loaded
from rtcompile.request import object_code
from rtcompile.request.object_code import hit
from rtcompile.request.values import SUFFIXES
from rtcompile.settings import import_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from rtcompile.bundles.file import Bundle
    from rtcompile.files.fileset import FileSet
    from rtcompile.files.headers import Header

_QUOTES_AND_LISTS = frozenset("\"'\\,")
_MAX_KNOWN = 8192

# By path, in the order of use. The value is None until the bundle is first searched.
_bundles: dict[str, Sections | None] = {}
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
    from rtcompile.request.values import path as checked_path

    use(checked_path("bundle", path))


def use(path: str) -> None:
    """Use a bundle as `use_bundle` does, without checking its path."""
    _bundles.setdefault(os.path.abspath(path), None)
    if _LEVEL not in lookup.LEVELS:
        lookup.LEVELS = (lookup.LEVELS[0], _LEVEL, *lookup.LEVELS[1:])


def in_use() -> list[Bundle]:
    """Return the bundles in use, in the order in which they were added."""
    from rtcompile.bundles.file import Bundle

    found = []
    for sections in sections_in_use():
        if sections.reader is None:
            sections.reader = Bundle(sections.path, sections)
        found.append(sections.reader)
    return found


def sections_in_use() -> list[Sections]:
    """Return the sections of the bundles in use, in the order in which they were added."""
    found = []
    for path, sections in list(_bundles.items()) if _enabled else ():
        if sections is None:
            sections = _bundles[path] = Sections(path)
        found.append(sections)
    return found


class out_of_use:  # noqa: N801 - ``with`` statements use it like a function
    """Search no bundle in the body of ``with``, where the builds of a new bundle are compiled."""

    def __enter__(self) -> None:
        global _enabled
        _enabled = False

    def __exit__(self, *_: object) -> None:
        global _enabled
        _enabled = True


_installed: dict[tuple[str, ...], int | None] = {}


def cuda_major() -> int | None:
    """Return the major version of the CUDA that CuPy launches code with; None if unknown.

    The toolkit's version is not used, since a machine may have no toolkit or one of another
    version. If CuPy is not loaded, the version is read from the name of the installed CuPy wheel.
    """
    cupy = loaded("cupy")
    if cupy is not None:
        return int(cupy.cuda.runtime.runtimeGetVersion()) // 1000
    path = tuple(import_folders())
    if path not in _installed:
        _installed[path] = next(filter(None, map(_cuda_of_wheel, path)), None)
    return _installed[path]


def _cuda_of_wheel(folder: str) -> int | None:
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return None
    for name in names:
        if name.startswith("cupy_cuda") and name.endswith(".dist-info"):
            digits = name.removeprefix("cupy_cuda").partition("x-")[0]
            if digits.isdecimal():
                return int(digits)
    return None


# --- The level of the look-up ----------------------------------------------------------------------


class _Files:
    """The files of a bundle's build: the package's own are checked, the others only listed."""

    __slots__ = ("_checked", "_headers", "_row")

    uncacheable = ""
    is_empty = False  # `is_unchanged` says whether bundles are in use

    def __init__(self, checked: FileSet, row: tuple[Sections, int, Sequence[str]]) -> None:
        self._checked = checked
        self._row = row
        self._headers: tuple[Header, ...] | None = None

    @property
    def headers(self) -> tuple[Header, ...]:
        """Every header that the build read, including those that have changed since."""
        if self._headers is None:
            from rtcompile.bundles.file import Bundle

            sections, row, folders = self._row
            self._headers = Bundle(sections.path, sections).headers_of(row, folders)
        return self._headers

    def is_unchanged(self, recent: bool = False) -> bool:
        return _enabled and self._checked.is_unchanged(recent)


def find(query: Query) -> Found | None:
    """Return a request's build in the bundles in use; None if there is none or a plan is needed."""
    cuda = cuda_major()
    found = digest_of(query)
    if found is None or cuda is None:
        return None
    for sections in sections_in_use():
        try:
            build = _find_in(sections, *found, cuda, query.recent) if sections.open() else None
        except UnusableError as error:
            sections.ignore(str(error))
            continue
        if build is not None:
            return build
    return None


_LEVEL: lookup.Level = ("bundle", find, None)


def _find_in(
    sections: Sections, request: str, folders: tuple[str, ...], cuda: int, recent: bool
) -> Found | None:
    rows = sections.queries.get(request)
    if rows is None:
        return None
    try:
        read = [(sections.rows[row].split(b"\0"), row) for row in rows]
        usable = [(fields, row) for fields, row in read if fields[5] == b"%d" % cuda]
        for fields, row in sorted(usable, key=_preference):
            checked = _checked_files(sections, fields[14:17], folders, recent)
            if checked is None:
                continue
            key, arch, kind = fields[:3]
            name = b" ".join((key, arch, kind, fields[5])).decode("utf-8", "surrogateescape")
            data = sections.blob(_extent(fields[8:11]))
            decoded = object_code.decode(name, data)
            if decoded is None:
                raise UnusableError("it contains builds of another format, or under another's key")
            files: Any = _Files(checked, (sections, row, folders))
            return Found(hit(decoded[1], files, "bundle"), files)
    except (IndexError, ValueError) as error:
        raise UnusableError(f"its index cannot be understood ({error})") from None
    return None


def _preference(found: tuple[list[bytes], int]) -> int:
    return SUFFIXES.index(found[0][1].decode().lstrip("sm_0123456789"))


def _extent(texts: Sequence[bytes]) -> Extent:
    start, size, digest = (text.decode() for text in texts)
    return number(start), number(size), digest


# The packages' own headers as they were last compared, by the digest of their list and the folders.
_known: dict[tuple[str, tuple[str, ...]], FileSet] = {}


def _checked_files(
    sections: Sections, extent: Sequence[bytes], folders: tuple[str, ...], recent: bool
) -> FileSet | None:
    """Return the package's own headers if they are those that the build was compiled from."""
    checks = _extent(extent)
    known = _known.get((checks[2], folders))
    if known is None:
        known = read_checks(sections.blob(checks), folders)
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
    """Return CuPy's header folder, which counts as a toolkit's: its kernels share a hundred headers."""
    folder = getattr(loaded("cupy._core.core"), "_get_header_dir_path", None)
    return (f"{folder()}/",) if folder is not None else ()


# --- The digest of a request without its folders ---------------------------------------------------

_Shape = tuple[tuple[str, ...], tuple[str, ...]]
_shapes: dict[tuple[str, ...], _Shape | None] = {}


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
    return digest("asked", [repr((*identity[:1], options, *identity[2:]))]), folders


def _words(option: str) -> list[str]:
    """Return the options in one string, "-DN=1 -lineinfo", where all of them name no path."""
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

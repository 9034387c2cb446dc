"""Finds what a bundle has for the words of a request, without making the request.

The words (`rtcompile.cache.words`) decide what is asked of a bundle, wherever its folders of headers
lie: a bundle made from a record has the digest of what was asked. What is found is verified as on the
full road: the bytes by their digests, the package's own headers by their contents. This module
imports only what the first hit needs.
"""

from __future__ import annotations

import os
import sys

from rtcompile import bundles
from rtcompile.bundles.checks import Checks, read_checks
from rtcompile.bundles.parts import Parts, UnusableError, number
from rtcompile.cache import files, surroundings, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rtcompile.core.request import ObjectCode

__all__ = ["FoundShipped", "digest_of", "find"]

_COMPILED_IN, _NAMES = 9, 11  # fields of an object file: see `objects.encode`
# Of several builds the one for exactly this generation of devices is taken, as on the full road.
_SUFFIXES = "af"
_QUOTES_AND_LISTS = frozenset("\"'\\,")
_MOST_KNOWN = 8192


class FoundShipped:
    """What a bundle has for a request; it is used as a `rtcompile.cache.answers.Answer` is.

    Attributes
    ----------
    code : bytes
        The machine code.
    names : tuple of (str, str)
        Name expression and its symbol.
    depends_on_files : bool
        Whether headers of the package's own were read, or asked for.
    """

    __slots__ = (
        "_checks",
        "_compiled_in",
        "_object",
        "_parts",
        "_row",
        "code",
        "depends_on_files",
        "names",
    )

    def __init__(
        self, parts: Parts, row: int, data: bytes, fields: Sequence[bytes], checks: Checks
    ) -> None:
        texts = [field.decode("utf-8", "surrogateescape") for field in fields[_NAMES:]]
        self.code = fields[0]
        self.names = tuple(zip(texts[::2], texts[1::2], strict=True))
        self._compiled_in = fields[_COMPILED_IN]
        self._object = data
        self._parts = parts
        self._row = row
        self._checks = checks
        self.depends_on_files = not checks.is_empty()

    def compiled_in(self) -> float:
        """Return the milliseconds that the compiler took: 0 from a bundle, which does not keep them."""
        return float(self._compiled_in)

    def own_files_hold(self) -> bool:
        """Say whether the package's own headers are as they were, and none has come or gone."""
        return self._checks.hold("")

    def object_code(self) -> ObjectCode:
        """Return the code as the full road would have returned it, whatever has changed since."""
        from rtcompile.bundles.file import Bundle

        bundle = Bundle(self._parts.path, self._parts)
        return bundle.found(self._row, self._object, self._checks.folders)


def find(said: Sequence[str], capability: tuple[int, int], *, settled: bool) -> FoundShipped | None:
    """Return what the bundles in use have for words; None where the full road has to be taken.

    Parameters
    ----------
    said : sequence of str
        The words.
    capability : (int, int)
        That of the device, or `words.CUPY`.
    settled : bool
        Whether CuPy's own headers that were found unchanged within the last second are taken as
        they were.
    """
    cupy = sys.modules.get("cupy")
    asked = digest_of(said, capability)
    if cupy is None or asked is None:
        return None
    digest, folders = asked
    cuda = b"%d" % (int(cupy.cuda.runtime.runtimeGetVersion()) // 1000)
    below = _below() if settled else ""
    for parts in bundles.parts_in_use():
        try:
            found = _find_in(parts, digest, folders, cuda, below) if parts.open() else None
        except UnusableError as error:
            parts.ignore(str(error))
            continue
        if found is not None:
            return found
    return None


def _below() -> str:
    core = sys.modules.get("cupy._core.core")
    return f"{core._get_header_dir_path()}/" if core is not None else ""


def _find_in(
    parts: Parts, digest: str, folders: tuple[str, ...], cuda: bytes, below: str
) -> FoundShipped | None:
    rows = parts.asked.get(digest)
    if rows is None:
        return None
    try:
        read = [(parts.rows[row].split(b"\0"), row) for row in rows]
        usable = [(fields, row) for fields, row in read if fields[5] == cuda]
        for fields, row in sorted(usable, key=_preference):
            checks = _checks_of(parts, fields[14:17], folders)
            if not checks.hold(below):
                continue
            key, arch, kind = fields[:3]
            name = b" ".join((key, arch, kind, cuda)).decode("utf-8", "surrogateescape")
            data = parts.blob(_place(fields[8:11]))
            sealed = files.unseal("object", name, data)
            if sealed is None or len(sealed) < _NAMES:
                raise UnusableError("it holds builds of another format, or under another's key")
            return FoundShipped(parts, row, data, sealed, checks)
    except (IndexError, ValueError) as error:
        raise UnusableError(f"its index cannot be understood ({error})") from None
    return None


def _preference(found: tuple[list[bytes], int]) -> int:
    arch = found[0][1].decode()
    return _SUFFIXES.find(arch[-1]) if arch[-1:] in _SUFFIXES else len(_SUFFIXES)


def _place(texts: Sequence[bytes]) -> tuple[int, int, str]:
    start, size, digest = (text.decode() for text in texts)
    return number(start), number(size), digest


# --- words, wherever the folders lie -------------------------------------------------------------

_Shape = tuple[tuple[str, ...], tuple[str, ...]]
_shapes: dict[tuple[str, ...], _Shape | None] = {}


def digest_of(
    said: Sequence[str], capability: tuple[int, int]
) -> tuple[str, tuple[str, ...]] | None:
    """Return a digest of words that is the same wherever their folders lie, and these folders.

    None where the request depends on more than these: an option may name a path in another way, or
    quote something.
    """
    try:
        given = words.read(said, capability)
    except ValueError:
        return None
    if given.folder or (capability != words.CUPY and "/" in given.fixed[1]):
        return None
    shape = _shapes.get(given.options, ())
    if shape == ():
        if len(_shapes) >= _MOST_KNOWN:
            _shapes.clear()
        shape = _shapes[given.options] = _shape_of(given.options)
    if not shape:
        return None
    options, folders = shape
    parts = [*map(str, capability), *given.fixed, str(len(options)), *options, *given.names]
    raw = [part.encode("utf-8", "surrogateescape") for part in parts]
    # It holds rtcompile's version: another one may make another request of the same words.
    return surroundings.digest("asked", raw), folders


def _shape_of(options: tuple[str, ...]) -> _Shape | None:
    """Return options with their folders replaced by how these are nested, and the folders."""
    folders = [option[2:] for option in options if option.startswith("-I/")]
    if words.folder_of(options) != "" or len(set(folders)) < len(folders):
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


_checks: dict[tuple[str, tuple[str, ...]], Checks] = {}


def _checks_of(parts: Parts, place: Sequence[bytes], folders: tuple[str, ...]) -> Checks:
    """Return the checks of a row; builds with the same headers share them."""
    where = _place(place)
    known = _checks.get((where[2], folders))
    if known is None:
        if len(_checks) >= _MOST_KNOWN:
            _checks.clear()
        known = _checks[where[2], folders] = read_checks(parts.blob(where), folders)
    return known

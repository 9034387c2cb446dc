"""Reads a bundle's builds by key, with the headers that they were compiled from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from rtcompile.bundles.index import (
    Bundle,
    Extent,
    UnusableError,
    load,
    read_checks,
)
from rtcompile.errors import RtcompileError
from rtcompile.files import headers
from rtcompile.files.fileset import texts_in
from rtcompile.files.headers import SearchDir
from rtcompile.named import NamedTuple
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.values import Arch


class Row(NamedTuple):
    """One build in a bundle's index; as a dataclass it would take 0.7 of a first hit's 2 ms."""

    key: str  # `KeyInputs.bundle_key()`, the same on every machine
    arch: Arch
    kind: str  # "cubin" or "ptx"
    backend: str
    compiler: str
    cuda: int  # the compiler's major version
    program: str  # this and the next three are for messages
    source: str  # its digest
    options: tuple[str, ...]  # effective ones
    names: tuple[str, ...]
    at: int = -1  # its position in the index
    code: Extent = (0, 0, "")
    checks: Extent = (0, 0, "")

    def sealed_key(self) -> str:
        """Return the key that the row's object is sealed under."""
        return " ".join((self.key, str(self.arch), self.kind, str(self.cuda)))


def _decode(at: int, data: bytes) -> Row:
    texts = texts_in(data)
    key, arch, kind, backend, compiler, cuda, program, source = texts[:8]
    code, checks = ((int(texts[i]), int(texts[i + 1]), texts[i + 2]) for i in (8, 11))
    names = 15 + int(texts[14])
    more = tuple(texts[15:names]), tuple(texts[names:]), at, code, checks
    return Row(key, Arch.parse(arch), kind, backend, compiler, int(cuda), program, source, *more)


def rows(bundle: Bundle, key: str | None = None) -> list[Row]:
    """Return the builds under `key`, or all of them; none if the bundle cannot be used."""
    try:
        return read_rows(bundle, key)
    except UnusableError as error:
        bundle.ignore(str(error))
        return []


def read_rows(bundle: Bundle, key: str | None = None) -> list[Row]:
    """Return the same; raise `UnusableError` if the bundle cannot be used."""
    if not bundle.open():
        return []
    begin = b"" if key is None else key.encode("utf-8", "surrogateescape") + b"\0"
    try:
        return [_decode(at, row) for at, row in enumerate(bundle.rows) if row.startswith(begin)]
    except (ValueError, IndexError, TypeError, RtcompileError) as error:
        raise UnusableError(f"its index cannot be understood ({error})") from None


def require_cuda(bundle: Bundle, major: int) -> None:
    """Ignore a bundle if none of its builds was made with this major version of CUDA."""
    cuda = sorted({row.cuda for row in rows(bundle)})
    if cuda and major not in cuda:
        made_with = " and ".join(map(str, cuda))
        bundle.ignore(f"it was made with CUDA {made_with}, and this process uses CUDA {major}")


def code_of(bundle: Bundle, row: Row, own: Sequence[SearchDir]) -> ObjectCode | None:
    """Return the build of a row; None if the package's own headers have changed since."""
    try:
        found = load(bundle, row.at, own_folders(own))
    except UnusableError as error:
        bundle.ignore(str(error))
        return None
    return None if found is None else found.obj


def difference(bundle: Bundle, row: Row, own: Sequence[SearchDir]) -> str:
    """Describe how the package's own headers differ from those that the row was compiled from."""
    with suppress(UnusableError):
        return read_checks(bundle.blob(row.checks), own_folders(own)).difference()
    return ""


def own_folders(own: Iterable[SearchDir]) -> tuple[str, ...]:
    """Return the folders in a request; headers passed as strings have a label, and need no checks."""
    return tuple(each.path for each in own if each.is_own and not headers.label(each.path))

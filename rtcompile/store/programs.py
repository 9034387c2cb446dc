"""Programs that other libraries compiled, in the cache beside our builds: a whole program is found, or none."""

from __future__ import annotations

from rtcompile.files.sealed import content_digest, seal, unseal
from rtcompile.settings import Settings
from rtcompile.store.folder import Folder, count_hit
from rtcompile.store.store import Store

_KIND, _SEAL = "programs", "program"


class KeptPrograms:
    """Programs of other libraries by their own keys, in the cache: counted, evicted and verified as builds are.

    ``programs[key]`` is the code under a key, both bytes; what is damaged or was evicted is a `KeyError`.
    ``len(programs)`` counts them. Where the cache can't be written there is a warning, and nothing is kept.

    Examples
    --------
    >>> programs = rtcompile.KeptPrograms()
    >>> programs[b"key"] = b"code"
    >>> programs[b"key"]
    b'code'
    """

    def __init__(self) -> None:
        settings = Settings.from_environ()
        self._store = Store.open(settings)
        self._folder = Folder(settings.cache_dir, readable=settings.cache_on_disk, resolution=0)

    def __getitem__(self, key: bytes) -> bytes:
        name = content_digest(key)
        data = self._folder.read(_KIND, name)
        fields = None if data is None else unseal(_SEAL, name, data)
        if not fields:
            raise KeyError(key)
        count_hit(self._folder)
        return fields[0]

    def __setitem__(self, key: bytes, code: bytes) -> None:
        name = content_digest(key)
        self._store.publish(_KIND, name, seal(_SEAL, name, [code]))

    def __delitem__(self, key: bytes) -> None:
        self[key]  # raises KeyError
        self._folder.discard(_KIND, content_digest(key))

    def __len__(self) -> int:
        return sum(not name.startswith(".") for name, _ in self._folder.listing(_KIND))

    def clear(self) -> None:
        """Remove all programs; builds stay."""
        for name, _ in self._folder.listing(_KIND):
            self._folder.discard(_KIND, name)

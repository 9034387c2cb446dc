"""The builds of this process whose objects are in memory, by lookup key; the oldest go first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from rtcompile.cache import manifests
from rtcompile.cache.manifests import ManifestEntry
from rtcompile.core.request import ObjectCode

_MOST_BYTES = 128 << 20

Known = tuple[ManifestEntry, ObjectCode]


class Memory:
    """Builds by lookup key, the latest first."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: OrderedDict[str, list[Known]] = OrderedDict()
        self._held = 0  # bytes of code in it

    def find(self, key: str) -> Sequence[Known]:
        """Return the builds under `key`."""
        return self._known.get(key, [])

    def remember(self, key: str, build: ManifestEntry, obj: ObjectCode) -> None:
        """Add a build; drop others where there are too many."""
        with self._guard:
            before = self._known.pop(key, [])
            others = [known for known in before if known[0].object_key != build.object_key]
            now = [(build, obj), *others][: manifests.MOST_BUILDS]
            self._known[key] = now
            self._held += _weight(now) - _weight(before)
            while self._held > _MOST_BYTES and len(self._known) > 1:
                _, dropped = self._known.popitem(last=False)
                self._held -= _weight(dropped)

    def clear(self) -> None:
        """Forget all of them."""
        with self._guard:
            self._known.clear()
            self._held = 0


def _weight(known: Sequence[Known]) -> int:
    return sum(len(obj.code) for _, obj in known)

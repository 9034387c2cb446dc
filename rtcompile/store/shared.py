"""The port of shared stores: what the extra that uses the stores imports, and the one call of the core for them.

The extra is `rtcompile.extras.cluster`. It is loaded if RTCOMPILE_REMOTE is set and a build is in neither memory nor
the local cache.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

from rtcompile.files import fileset as fileset
from rtcompile.request import key as key
from rtcompile.request.key import KeyInputs as KeyInputs
from rtcompile.request.object_code import MOST_LISTED as MOST_LISTED
from rtcompile.request.object_code import Found as Found
from rtcompile.request.object_code import Record as Record
from rtcompile.request.object_code import decode_records as decode_records
from rtcompile.request.object_code import encode_records as encode_records
from rtcompile.request.values import one_of as one_of
from rtcompile.settings import cache_dir as cache_dir
from rtcompile.settings import flag as flag
from rtcompile.settings import note as note
from rtcompile.settings import seconds as seconds
from rtcompile.store.folder import Folder as Folder
from rtcompile.store.folder import at_end as at_end
from rtcompile.store.locks import Busy as Busy
from rtcompile.store.store import Store as Store
from rtcompile.store.store import object_file as object_file


def sharing(inputs: KeyInputs, store: Store) -> Any:
    """Return the build in the stores of RTCOMPILE_REMOTE; None if it cannot be shared, or no store can be used."""
    # It has `find()` and `build(compile, seconds, waits)`.
    from rtcompile import _SHARING

    found = EntryPoint("sharing", _SHARING, "")
    return found.load()(inputs, store) if key.may_travel(inputs) else None

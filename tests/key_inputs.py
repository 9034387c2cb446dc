"""Key inputs, objects and header trees for the cache's tests; a test passes only the differences."""

from pathlib import Path
from typing import Any

from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import SearchDir
from rtcompile.files.sealed import content_digest
from rtcompile.request.key import KeyInputs
from rtcompile.request.object_code import BuildInfo, ObjectCode
from rtcompile.request.values import Arch
from rtcompile.store.store import Store

COMPILERS = {"nvrtc": "12.9.86 CL-36037853", "nvcc": "12.9.86 at /usr/local/cuda"}


def make_key_inputs(**changes: Any) -> KeyInputs:
    fields: dict[str, Any] = {
        "source": 'extern "C" __global__ void k() {}',
        "name": "kernel.cu",
        "options": (("std", "c++17"), ("fmad", "true")),
        "arch": Arch(9, 0, "a"),
        "compilers": COMPILERS,
    }
    given = {**fields, **changes}
    digest = content_digest(given["source"].encode("utf-8", "surrogateescape"))
    return KeyInputs(**{"source_digest": digest, **given})


def make_object(
    code: bytes = b"\x7fELF code", backend: str = "nvrtc", **changes: Any
) -> ObjectCode:
    fields: dict[str, Any] = {
        "kind": "cubin",
        "arch": Arch(9, 0, "a"),
        "lowered_names": {"f<int>": "_Z1fIiEvv"},
        "build": BuildInfo(backend, log="a warning", compiler=f"{backend} 12.9.86"),
    }
    return ObjectCode(code, **{**fields, **changes})


class HeaderTree:
    """A folder with header directories, and a fake compiler that reads the given headers."""

    def __init__(self, root: Path, *labels: str) -> None:
        self.root = root
        self.search = tuple(SearchDir(label, str(root / label)) for label in labels)
        for label in labels:
            (root / label).mkdir(parents=True)

    def write(self, name: str, text: str) -> str:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def path(self, name: str) -> str:
        return str(self.root / name)

    def key_inputs(self, **changes: Any) -> KeyInputs:
        return make_key_inputs(**{"search": self.search, **changes})

    def record(self, *names: str, inputs: KeyInputs | None = None) -> FileSet:
        """Record a build that read these headers."""
        from rtcompile.compilers import observed  # some tests count what a hit imports

        used = inputs or self.key_inputs()
        trace = [name if name.startswith("/") else self.path(name) for name in names]
        return observed.record(trace, used.search, source=used.source, name=used.name)

    def build(
        self, store: Store, inputs: KeyInputs, *names: str, code: bytes = b"\x7fELF code"
    ) -> bool:
        """Build `inputs`, reading these headers, and add it to the store."""
        with store.building(inputs):
            dependencies = self.record(*names, inputs=inputs)
            return not store.add(inputs, make_object(code), dependencies).reason


def open_store(cache: Path, *, on_disk: bool = True, size: int = 1 << 30) -> Store:
    """Return a store as in a new process, with nothing in memory."""
    return Store(str(cache), on_disk=on_disk, size=size)


def add(kept: Store, inputs: KeyInputs | None = None, obj: ObjectCode | None = None) -> Store:
    """Add a build that reads no header."""
    used = inputs or make_key_inputs()
    with kept.building(used):
        kept.add(used, obj or make_object(), FileSet())
    return kept

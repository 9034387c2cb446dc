"""Cache keys, and the decision whether a build may be cached and shared. Pure.

All keys contain rtcompile's version, as the names of index entries do (`environment.versioned_digest`); only those of
bundles (`lookup.bundles.key_of`) do not.

Fields are labelled and length-prefixed, so ``field("a", "bc")`` never equals ``field("ab", "c")``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from rtcompile import __version__
from rtcompile.files import headers as memory_headers
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import Header, SearchDir, relative_to
from rtcompile.files.sealed import content_digest
from rtcompile.named import NamedTuple, computed_once
from rtcompile.request import cxx
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import EITHER
from rtcompile.request.values import Arch

# --- Cache keys: the digest of labelled, length-prefixed fields -----------------------------------


def field(label: str, value: str) -> bytes:
    """Return one field of a key: ``field("nvrtc", "12.9.86")``."""
    # Python represents a path's bytes that are not UTF-8 as lone surrogates.
    name, data = label.encode(), value.encode("utf-8", "surrogateescape")
    return b"%d:%s=%d:%s;" % (len(name), name, len(data), data)


def fields(label: str, values: Iterable[str]) -> list[bytes]:
    """Return one field for each value, in their order."""
    return [field(label, value) for value in values]


def digest(found: Iterable[bytes]) -> str:
    """Return the key that these fields make, in hexadecimal."""
    return content_digest(b"".join(found))


class KeyInputs(NamedTuple):
    """The inputs of a cache key: a request together with everything that its environment adds."""

    source: str
    source_digest: str
    # The program's path. Some binaries contain its last component; ``#include "…"`` searches its directory.
    name: str
    # `Options.key_fields`: effective options without paths and without meaningless order.
    options: tuple[tuple[str, str], ...]
    arch: Arch
    target: str = "cubin"
    name_expressions: tuple[str, ...] = ()  # their order does not matter
    # The requested compiler; requests in `EITHER` accept objects of either compiler.
    backend: str = "auto"
    # Backend to the identity of its compiler's build, for the compilers that were found.
    compilers: Mapping[str, str] = MappingProxyType({})
    search: tuple[SearchDir, ...] = ()
    links: tuple[str, ...] = ()  # digests of further link inputs, in order
    # Whether the options write paths into the binary (``-G``, ``-lineinfo``).
    paths_matter: bool = False
    pre_includes: tuple[str, ...] = ()  # headers read before the source, as the options spell them
    # Headers passed as strings; their folder's name is a digest of all.
    texts: tuple[tuple[str, str], ...] = ()
    linker: str = ""  # the identity of the linker's build, if the build is linked
    allow_fixups: bool = True  # whether rtcompile may add an option because of an error
    # The options that were added because of an error; empty in a look-up.
    fixups: tuple[str, ...] = ()
    is_linked: bool = False  # False in a look-up

    @computed_once  # a miss needs it 14 times, which would take a tenth of its caller's time
    def lookup_key(self) -> str:
        """Return the key of the records of these inputs: everything known before a header is read, paths included."""
        return digest([*self._policy("lookup"), self._content, self._paths()])

    @computed_once
    def portable_key(self) -> str:
        """Return the key of the records for other folders and machines with the same contents."""
        return digest([*self._policy("portable"), self._content])

    @computed_once
    def key_without_files(self) -> str:
        """Return the object key of NVRTC's build if it reads no file and has no path; "" if NVRTC may not build it."""
        if self.fixups or self.is_linked or self.backend not in (*EITHER, "nvrtc"):
            return ""
        return self.object_key(FileSet(), backend="nvrtc") if "nvrtc" in self.compilers else ""

    def object_key(self, dependencies: FileSet, *, backend: str, path_bound: bool = False) -> str:
        """Return the object's key: compiler build and contents, and paths only if `path_bound`."""
        found = [field("key", "object"), self._content]
        found += [field("built by", backend), field("compiler", self.compilers.get(backend, ""))]
        found += [*_read(dependencies.headers), *fields("fixup", self.fixups)]
        found += fields("__has_include", dependencies.include_results)
        if not dependencies.is_empty:  # The object is never used without checking these files.
            found.append(field("files", "checked"))
        if path_bound:
            found.append(self._paths())
        return digest(found)

    def all_compilers(self) -> str:
        """Return the identities of all compilers and of the linker, on which a failure depends."""
        return repr([*sorted(self.compilers.items()), self.linker])

    def serves(self, backend: str, compiler: str) -> bool:
        """Return whether an object of this compiler may be used; without NVCC here, any NVCC's may."""
        if self.backend not in (*EITHER, backend):
            return False
        own = self.compilers.get(backend)
        if own is None:
            return backend == "nvcc"
        return compiler in (own, linked_by(own, self.linker))

    def linked(self, backend: str) -> KeyInputs:
        """Return the key inputs of an object that `backend` compiled and the linker linked."""
        own = linked_by(self.compilers.get(backend, ""), self.linker)
        compilers = MappingProxyType({**self.compilers, backend: own})
        return self._replace(compilers=compilers, is_linked=True)

    def summary(self) -> dict[str, str]:
        """Return the fields as short texts, to show in what two requests differ."""
        named = {
            "source": self.source_digest[:16],
            "program": os.path.basename(self.name),
            "arch": str(self.arch),
            "target": self.target,
            "requested compiler": self.backend,
            "name expressions": ", ".join(sorted(set(self.name_expressions))),
            "link": ", ".join(self.links),
            "header directories": ", ".join(directory.label for directory in self.search),
        }
        for label, value in self.options:
            before = named.get(f"option {label}")
            named[f"option {label}"] = f"{before} {value}" if before else value
        return named

    def _policy(self, kind: str) -> list[bytes]:
        # Without the backend, the result of "auto" would depend on whether backend="nvcc" was requested before.
        policy = field("allow fixups", str(self.allow_fixups))
        return [field("key", kind), field("requested compiler", self.backend), policy]

    @computed_once  # a miss of 20 ms needs it eight times, which would take a millisecond
    def _content(self) -> bytes:
        # Another version of rtcompile may turn the same normal form into other flags.
        folder, _, program = self.name.rpartition("/")
        found = [
            field("rtcompile", __version__),
            field("arch", str(self.arch)),
            field("target", self.target),
            field("program", program),
            *[field(f"option {label}", value) for label, value in self.options],
            *fields("link", self.links),
            *_layout(self.search, folder, self.pre_includes),
            field("paths matter", str(self.paths_matter)),
            field("source digest", self.source_digest),
            *fields("name expression", sorted(set(self.name_expressions))),
        ]
        if self.texts:
            found.append(field("texts", memory_headers.folder(self.texts)))
        return b"".join(found)

    def _paths(self) -> bytes:
        """Return the paths in a lookup key, and in the object key of code that has a path."""
        directories = fields("directory", [directory.path for directory in self.search])
        return b"".join(
            [field("program", self.name), *directories, *fields("-include", self.pre_includes)]
        )


def linked_by(compiler: str, linker: str) -> str:
    """Return the identity of a compiler and a linker together."""
    return f"{compiler}; linked by {linker}"


# Memoised, since all keys of one build, and all builds of a batch, share search directories and headers.
@functools.lru_cache
def _layout(
    search: tuple[SearchDir, ...], program: str, pre_includes: tuple[str, ...]
) -> tuple[bytes, ...]:
    """Return how the search directories are labelled and nested, which determines the names of each header."""
    # ``<inc/a.h>`` in ``/p`` and ``<a.h>`` in ``/p/inc`` are the same file, but not with ``/q/inc``.
    found = [field("label", directory.label) for directory in search]
    placed = relative_to(search)
    for position, directory in enumerate(search):
        parent, rest = placed(directory.path)
        inside = f"{parent} {rest}" if parent not in (-1, position) else ""
        found.append(field("inside", inside))
    for label, path in (("program in", f"{program}/"), *(("-include", p) for p in pre_includes)):
        parent, rest = placed(path)
        placed_at = f"{parent} {rest}" if parent >= 0 else os.path.basename(path)
        found.append(field(label, placed_at))
    return tuple(found)


@functools.lru_cache(maxsize=16)
def _read(headers: tuple[Header, ...]) -> tuple[bytes, ...]:
    found = []
    for label, relative, contents in sorted({(h.label, h.relative, h.digest) for h in headers}):
        found += [field(f"header {label}", relative), field("digest", contents)]
    return tuple(found)


# --- Decides whether a build may be cached --------------------------------------------------------


def reason_against(inputs: KeyInputs) -> str:
    """Return why a build must not be cached, such as a clock macro; ``""`` if it may."""
    for text in (inputs.source, *(text for _, text in inputs.texts)):
        if clock := cxx.scan(text).clock:
            return f"{clock} is different in every build"
    clock = _mentions(inputs.options).clock
    return f"an option has {clock}, which is different in every build" if clock else ""


@functools.lru_cache(maxsize=16)  # the kernels of a batch often have the same options
def _mentions(options: tuple[tuple[str, str], ...]) -> cxx.Mentions:
    """Return the words of `Mentions` that the values of options contain."""
    found = [cxx.scan(value) for _, value in options]
    clock = next((each.clock for each in found if each.clock), "")
    return cxx.Mentions(clock, any(each.own_path for each in found))


def may_travel(inputs: KeyInputs) -> bool:
    """Return whether another machine's build may be used, as far as the inputs tell."""
    return not reason_against(inputs) and not _names_its_path(inputs)


def _names_its_path(inputs: KeyInputs) -> bool:
    own = cxx.scan(inputs.source).own_path or _mentions(inputs.options).own_path
    return inputs.paths_matter or own


def path_bound(
    inputs: KeyInputs, obj: ObjectCode, dependencies: FileSet, *, same_system: bool = False
) -> bool:
    """Return whether the code contains a path; on the `same_system` the host compiler's paths do not matter."""
    # In the user's files a mention of ``__FILE__`` is enough, since the program may compute with it. Toolkit
    # headers use it in assertions, so the code shows the path, except LTO-IR, which is compressed.
    if _names_its_path(inputs):
        return True
    if own_path := dependencies.own_path:
        mentioning = [label for label in own_path if label or not same_system]
        if obj.kind == "ltoir" or any(not each or each.startswith("user") for each in mentioning):
            return True
    paths = _encoded(inputs.search, os.path.dirname(inputs.name))
    return any(path in obj.code for path in paths)


@functools.lru_cache(maxsize=16)
def _encoded(search: tuple[SearchDir, ...], folder: str) -> list[bytes]:
    """Return the paths of a build's folders, except those of one character, which any code contains."""
    paths = [*(directory.path for directory in search), folder]
    return [os.fsencode(path) for path in paths if len(path) > 1]


@functools.lru_cache(maxsize=16)  # a batch's variants have the same dependencies
def portable(dependencies: FileSet, search: tuple[SearchDir, ...], beside: str) -> bool:
    """Return whether all files that were looked for are in the search path or the host compiler's folders."""
    paths = [header.path for header in dependencies.headers]
    paths += [*dependencies.absent, *dependencies.present]
    split_path = relative_to(search)
    return all(
        split_path(path)[0] >= 0
        or (path.startswith("/usr/") and not path.startswith(beside or "\0"))
        for path in paths
    )


def is_portable(inputs: KeyInputs, obj: ObjectCode, dependencies: FileSet) -> bool:
    """Return whether another machine, or other folders on this one, may use a build."""
    if path_bound(inputs, obj, dependencies, same_system=True):
        return False
    return portable(dependencies, inputs.search, inputs.name.rpartition("/")[0])

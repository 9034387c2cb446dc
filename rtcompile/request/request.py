"""`CompileRequest`, the validated request for a build. Every cache hit loads this module, so it imports very little."""

from __future__ import annotations

import os
from _collections_abc import Mapping  # `collections.abc` is the same, and loads `collections`

from rtcompile.errors import InvalidRequest, shown
from rtcompile.files.sealed import content_digest, read_argument
from rtcompile.named import computed_once
from rtcompile.request.object_code import TARGETS, ObjectCode
from rtcompile.request.values import Arch, Value, items, one_of, strings, text, truth
from rtcompile.request.values import path as checked_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from rtcompile.request.values import Backend, Target


BACKENDS = ("auto", "nvrtc", "nvcc")
# The wanted backends for which NVRTC is tried first and NVCC may compile too.
EITHER = ("auto", "nvrtc-first")
_NONE: tuple[object, ...] = ()
_CUBIN = TARGETS[0]
DEFAULT_NAME = "kernel.cu"
_NAME_MAX = 200  # bytes of a program's file name; file systems allow 255
_MOST_HEADERS = 10_000
_PART_MAX, _PATH_MAX = 255, 1024  # bytes of each part of a header's name, and of the whole

# Options without a path, which mean the same in every working directory.
WITHOUT_PATH = (
    "--define-macro=",
    "--device-debug",
    "--fmad=",
    "--gpu-architecture=",
    "--maxrregcount=",
    "--std=",
    "--use_fast_math",
    "-D",
    "-U",
    "-arch=",
    "-default-device",
    "-ftz=",
    "-lineinfo",
    "-std=",
    "-use_fast_math",
)
_ANYWHERE = (*WITHOUT_PATH, "-I/")


class CompileRequest(Value):
    """The description of one build: everything that can change its code, and nothing else.

    Parameters
    ----------
    source, options, arch, name_expressions, name, backend, target, link, headers, include_dirs
        As in `rtcompile.compile`. Other libraries' objects in `link` are read at once. `headers` becomes sorted pairs,
        and each of `include_dirs` a ``-I`` at the end of `options`.
    allow_fixups : bool
        Whether rtcompile may add an option because of an error, such as ``--device-int128``.
    may_pass_over_arch : bool
        Whether to ignore an architecture in the options that the device cannot run, as `RawModule` does.

    Raises
    ------
    InvalidRequest
        An argument of a wrong type or value; the message names it.

    Examples
    --------
    >>> request = rtcompile.CompileRequest("__global__ void k() {}", arch="sm_80")
    >>> request.replace(options=("-DN=4",)).options
    ('-DN=4',)
    """

    source: str
    options: tuple[str, ...]
    arch: Arch | None
    name_expressions: tuple[str, ...]
    name: str
    backend: str
    target: str
    link: tuple[Any, ...]
    headers: tuple[tuple[str, str], ...]
    allow_fixups: bool
    may_pass_over_arch: bool

    def __init__(
        self,
        source: str,
        options: Sequence[str] | str = (),
        arch: str | Arch | None = None,
        name_expressions: Iterable[str] = (),
        name: str = DEFAULT_NAME,
        backend: Backend = "auto",
        target: Target = "cubin",
        link: Sequence[Any] = (),
        headers: Mapping[str, str] | tuple[tuple[str, str], ...] = (),
        allow_fixups: bool = True,
        may_pass_over_arch: bool = False,
        include_dirs: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        # Every public function makes a request, so these arguments are checked only here.
        source = text("source", source)
        options = strings("options", options)
        if include_dirs is not _NONE:
            options += folder_options("include_dirs", include_dirs)
        wants_ptx = False
        if arch is not None and not isinstance(arch, Arch):
            arch, wants_ptx = _architecture(arch)
        kind, by = one_of("target", target, TARGETS), one_of("backend", backend, BACKENDS)
        if kind == "fatbin" and by == "nvrtc":
            raise InvalidRequest("backend='nvrtc' makes no fatbin; leave backend= out to use NVCC")
        if wants_ptx and kind == _CUBIN:
            kind = "ptx"
        # Defaults need no check. They are compared by `is`, since comparing with an array is ambiguous.
        if link is not _NONE:
            # Other libraries' objects become bytes, since comparing those may need a device.
            found = enumerate(items("link", link, "source strings, paths, ObjectCodes"))
            link = tuple([_plain(item, f"link[{at}]") for at, item in found])
        if link and kind not in ("cubin", "ptx"):
            raise InvalidRequest(f"link= makes a cubin or PTX, not target={kind!r}")
        fixups = truth("allow_fixups", allow_fixups)
        ignores_arch = truth("may_pass_over_arch", may_pass_over_arch)
        self.__dict__.update(
            source=source,
            options=options,
            arch=arch,
            name_expressions=() if name_expressions is _NONE else _names(name_expressions),
            name=name if name is DEFAULT_NAME else _program(name),
            backend=by,
            target=kind,
            link=link,
            headers=() if headers is _NONE else header_texts(headers),
            allow_fixups=fixups,
            may_pass_over_arch=ignores_arch,
        )
        if arch is not None and not ignores_arch and fixups and names_architecture(self):
            refuse_two_architectures(self)  # CuPy's requests (no fix-ups) may name two

    @computed_once
    def source_digest(self) -> str:
        """The source's digest, which keys contain instead of the long source."""
        return content_digest(self.source.encode())

    @computed_once
    def depends_on_directory(self) -> bool:
        """Whether an option may contain a path relative to the working directory."""
        # One string may hold several options: "-DN=1 -I include".
        words = [word for option in self.options for word in option.split()]
        return len([word for word in words if word.startswith(_ANYWHERE)]) < len(words)


def wanted_backend(request: CompileRequest, fallback: str) -> str:
    """Return ``"auto"``, ``"nvrtc-first"``, or the one compiler that may be used.

    The request's backend decides; `fallback` says what ``"auto"`` means, and ``"nvrtc-first"`` what ``"nvcc"`` means.
    """
    if request.target == "fatbin":
        return "nvcc"
    if request.backend == "auto":
        return {"always": "nvcc", "never": "nvrtc"}.get(fallback, "auto")
    is_first = request.backend == "nvcc" and fallback == "nvrtc-first"
    return fallback if is_first else request.backend


def folder_options(name: str, given: object) -> tuple[str, ...]:
    """Return ``-I`` for each folder of an argument."""
    found = (given,) if isinstance(given, (str, os.PathLike)) else items(name, given, "paths")
    return tuple([f"-I{checked_path(f'{name}[{at}]', folder)}" for at, folder in enumerate(found)])


def _architecture(given: str) -> tuple[Arch, bool]:
    """Return an architecture, and whether its name means PTX, as ``compute_90`` does."""
    try:
        arch = Arch.parse(given)
    except InvalidRequest as error:
        raise InvalidRequest(f"arch: {error}") from None
    kind = given.strip().lower().partition("_")[0]
    if kind == "lto":
        raise InvalidRequest(
            f"arch={shown(given)} also names a kind of code; write arch='{arch}', target='ltoir'"
        )
    return arch, kind == "compute"


def names_architecture(request: CompileRequest) -> bool:
    """Return whether an option may name an architecture."""
    options = " ".join(request.options)
    return "arch" in options or "code" in options


def refuse_two_architectures(request: CompileRequest) -> None:
    """Raise InvalidRequest if the options name another architecture, or another kind of code."""
    from rtcompile.request import options as compiler_options

    requested = compiler_options.parse(request.options).arch
    if requested and not any(
        option.arch == request.arch and not (option.virtual and request.target == _CUBIN)
        for option in requested
    ):
        named = f"{request.arch} ({request.target})"
        raise InvalidRequest(
            f"arch= is {named} and the options name {', '.join(map(str, requested))}; give one of them"
        )


def header_texts(given: Any) -> tuple[tuple[str, str], ...]:
    """Return the sorted headers, after checking that all of them can be files of one folder at once."""
    pairs = tuple(given.items()) if isinstance(given, Mapping) else given
    if not isinstance(pairs, tuple) or any(
        not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs
    ):
        raise InvalidRequest(
            f"headers must map names to texts, not {shown(given)}; write headers={{'tile.cuh': text}}"
        )
    if len(pairs) > _MOST_HEADERS:
        raise InvalidRequest(
            f"headers has {len(pairs):,} texts, more than {_MOST_HEADERS:,}; NVCC would need each as a file. "
            "Give a directory with -I instead"
        )
    found = {_header(name): text(f"headers[{shown(name)}]", value) for name, value in pairs}
    for name in found:
        parts = name.split("/")
        for end in range(len(parts)):
            folder = "/".join(parts[:end])
            if folder in found:
                raise InvalidRequest(
                    f"headers: {folder!r} is a header and the folder of {name!r}; rename one of them"
                )
    return tuple(sorted(found.items()))


def _plain(item: Any, name: str) -> Any:
    if isinstance(item, (str, ObjectCode, CompileRequest)):
        return item
    code, kind = getattr(item, "code", None), getattr(item, "code_type", None)
    kind = getattr(item, "kind", None) if kind is None else kind
    if code is None or kind is None:
        return item
    from rtcompile.request.units import LINKED_KINDS, LinkInput

    if not isinstance(kind, str) or kind not in LINKED_KINDS:
        raise InvalidRequest(
            f"{name} is a {type(item).__name__} of kind {shown(kind)}; of other libraries' code, only the kinds "
            f"{', '.join(LINKED_KINDS)} can be linked"
        )
    if isinstance(code, (str, os.PathLike)):
        code = read_argument(os.fspath(code), f"{name}: cannot read {shown(code)}")
    if not isinstance(code, (bytes, bytearray, memoryview)):
        raise InvalidRequest(
            f"{name} is a {type(item).__name__} whose code is {shown(code)}, not bytes"
        )
    return LinkInput(LINKED_KINDS[kind], name, bytes(code))


def _names(values: object) -> tuple[str, ...]:
    if isinstance(values, str):
        raise InvalidRequest(
            "name_expressions must be a list of str, not one str, which CuPy splits into its "
            f"letters; write name_expressions=[{shown(values)}]"
        )
    names = strings("name_expressions", values)
    for at, name in enumerate(names):
        if "\n" in name.strip() or "\r" in name.strip():  # NVRTC reads only the first line
            raise InvalidRequest(
                f"name_expressions[{at}] must be on one line, not {shown(name)}; write "
                f"{shown(' '.join(name.split()))}"
            )
    return names


def _header(given: object) -> str:
    name = text("headers: a name", given)
    parts = name.split("/")
    if (
        not name.isprintable()
        or any(character in name for character in '"<>\\')
        or any(part in ("", ".", "..") or len(part.encode()) > _PART_MAX for part in parts)
        or len(name.encode()) > _PATH_MAX
    ):
        raise InvalidRequest(
            f"headers: {shown(name)} is not a valid name; it must be a path in the headers' own "
            "folder, as #include spells it: 'tile.cuh' or 'mylib/tile.cuh', without '..' or '.'"
        )
    return name


def _program(value: object) -> str:
    name = text("name", value)
    file_name = name.rpartition("/")[2]
    if not name or not name.isprintable() or len(file_name.encode()) > _NAME_MAX:
        raise InvalidRequest(
            f"name must be a file name: printable, on one line, its last part at most {_NAME_MAX} "
            f"bytes long, not {shown(name)}; write name={DEFAULT_NAME!r} or leave it out"
        )
    return name


def is_source(item: object) -> bool:
    """Return whether an element of ``link=`` is a source and not a path: it contains a newline, ``;`` or ``{``."""
    return isinstance(item, str) and any(character in item for character in "\n;{")


def with_headers(request: CompileRequest) -> CompileRequest:
    """Return the request with ``-I`` for the virtual folder of its headers, which is searched first."""
    from rtcompile.files import headers as header_files

    if not request.headers:
        return request
    option = f"-I{header_files.folder(request.headers)}"
    if option in request.options:
        return request
    return request.replace(options=(option, *request.options))

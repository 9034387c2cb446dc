"""The record of a program's builds, and how another machine repeats them; and the record of CuPy's own kernels.

While the program runs, its processes append each build to ``FILE.part``, as one line of JSON with its headers. At the
program's end the lines become one JSON document, ``FILE``. Both are records.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import rtcompile
from rtcompile import Arch, CompileRequest, InvalidRequest, ObjectCode, __version__
from rtcompile.build.plan import linker_input
from rtcompile.files import sealed
from rtcompile.files.sealed import content_digest
from rtcompile.named import NamedTuple
from rtcompile.request import options as compiler_options
from rtcompile.request.units import LinkInput
from rtcompile.request.values import absolute, working_directory
from rtcompile.request.values import path as checked_path

FORMAT = "rtcompile record 6"
_FOLDER = "rtcompile-warm-"
_MOST_HEADER_BYTES = 256 << 20
_MOST_WRITTEN_BYTES = 1 << 30  # of all versions of all headers together

# The sources of CuPy's own kernels, written by benchmarks/cupy_record.py. They have no paths, so they are valid for any
# prefix, architecture and CUDA version.
KERNELS = os.path.join(os.path.dirname(__file__), "kernels_of_cupy", "kernels.json.xz")


# --- A build of a record ----------------------------------------------------------------------------


class RecordedBuild(NamedTuple):
    """A request of a program, and what repeats its build elsewhere.

    Parameters
    ----------
    request
        The program's own request, with the contents of files to link.
    arch, kind, compiler
        What it was built for, what code it made, and which compiler built it.
    folder
        The working directory, in which the request's relative header directories are.
    headers
        The label, the relative path, the path and the digest of each header that was read.
    origin
        The line of the program: ``"train.py:12"``.
    milliseconds
        How long the compiler took.
    """

    request: CompileRequest
    arch: Arch
    kind: str = "cubin"
    compiler: str = ""
    folder: str = "/"
    headers: tuple[tuple[str, str, str, str], ...] = ()
    origin: str = ""
    milliseconds: float = 0.0

    @classmethod
    def of(cls, request: CompileRequest, code: ObjectCode, origin: str = "") -> RecordedBuild:
        """Return the recorded form of a request and its result."""
        if request.link:
            given = tuple(linker_input(item, index) for index, item in enumerate(request.link))
            request = request.replace(link=given)
        return cls(
            request,
            code.arch,
            code.kind,
            code.build.compiler,
            working_directory("") if request.depends_on_directory else "/",
            tuple((h.label, h.relative, h.path, h.digest) for h in code.build.headers),
            origin,
            round(code.build.compiled_in, 1),
        )

    def encode(self) -> dict[str, Any]:
        """Return the build as plain values, for JSON."""
        own = self.request
        arch = None if own.arch is None else str(own.arch)
        request = {**own._named(), "arch": arch, "link": [*map(_link, own.link)]}
        return {**self._asdict(), "request": request, "arch": str(self.arch)}

    @classmethod
    def decode(cls, fields: Any) -> RecordedBuild:
        """Return the build of plain values; raise `InvalidRequest` or an error of Python if they are damaged."""
        given = fields["request"]
        headers = tuple((name, text) for name, text in given["headers"])
        link = tuple(map(_linked, given["link"]))
        build = cls(
            **{
                **fields,
                "request": CompileRequest(**{**given, "headers": headers, "link": link}),
                "arch": Arch.parse(fields["arch"]),
                "headers": tuple(map(tuple, fields["headers"])),
                "milliseconds": float(fields["milliseconds"]),
            }
        )
        texts = [build.kind, build.compiler, checked_path("folder", build.folder), build.origin]
        for label, relative, path, digest in build.headers:
            texts += [label, relative, path, digest]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a value is not a text")
        return build

    def repeated(
        self, archs: Sequence[str] = (), moved: Callable[[str], str] | None = None
    ) -> list[CompileRequest]:
        """Return the requests that repeat the build, for each of `archs` if the program chose no architecture.

        `moved` maps the program's header directories to those to search.
        """
        own = self.request

        def directory(path: str) -> str:
            there = absolute(f"{self.folder}/{path}" if path[:1] != "/" else path)
            return there if moved is None else moved(there)

        named = compiler_options.parse(own.options).arch and not own.may_pass_over_arch
        request = own.replace(
            options=compiler_options.with_directories(own.options, directory),
            arch=self.arch,
            # ``-arch=compute_90`` made PTX; `arch` replaces this option, so `target` has to ask for PTX.
            target=self.kind if own.arch is None and named else own.target,
        )
        by_cupy = not own.allow_fixups
        if not archs or not (by_cupy or (own.arch is None and not named)):
            return [request]
        # CuPy's own kernels are compiled for sm_90 and not sm_90a, as CuPy does.
        devices = map(_device, archs)
        return [request.replace(arch=a.replace(suffix="") if by_cupy else a) for a in devices]

    def requested(
        self, request: CompileRequest
    ) -> tuple[CompileRequest | None, tuple[int, int] | None]:
        """Return the program's request for one of `repeated`, and its device's capability; or None twice."""
        own = self.request
        fixed = own.allow_fixups and any("arch" in o or "code" in o for o in own.options)
        if own.depends_on_directory or fixed:  # it depends on more than the device
            return None, None
        if own.arch is not None:
            return own.replace(arch=request.arch), None
        assert request.arch is not None
        return own, (request.arch.major, request.arch.minor)

    def distrusted(self) -> list[str]:
        """Return why options are unsafe in a stranger's record: they run or write something."""
        linked = [item for item in self.request.link if isinstance(item, CompileRequest)]
        given = [each.options for each in (self.request, *linked)]
        return [why for options in given for why in compiler_options.distrusted(options)]


def _device(name: str) -> Arch:
    try:
        arch = Arch.parse(name)
    except ValueError as error:
        raise InvalidRequest(f"--arch: {error}") from None
    if name.startswith("compute_"):
        raise InvalidRequest(f"--arch {name}: give a device's architecture, {arch}")
    return arch


def _link(item: Any) -> dict[str, Any]:
    if isinstance(item, LinkInput):
        return {**item._asdict(), "data": base64.b64encode(item.data).decode()}
    return {"source": item.source, "options": item.options, "name": item.name}


def _linked(item: Mapping[str, Any]) -> LinkInput | CompileRequest:
    if "source" in item:
        return CompileRequest(item["source"], options=item["options"], name=item["name"])
    return LinkInput(item["kind"], item["name"], base64.b64decode(item["data"], validate=True))


# --- Records ------------------------------------------------------------------------------------------


class Record:
    """The builds of a program."""

    def __init__(
        self, versions: Mapping[str, str], builds: Iterable[RecordedBuild], headers: dict[str, str]
    ) -> None:
        self.builds = list(builds)
        # The versions of rtcompile, CuPy and CUDA in the program's run; "" for one that was not loaded.
        cudas = {_release(build.compiler) for build in self.builds}
        self.versions = {**versions, "cuda": ", ".join(sorted(cudas - {""}))}
        self.headers = headers  # digest of a user's header to its text

    def encode(self) -> dict[str, Any]:
        """Return the record as plain values, for JSON."""
        builds = [build.encode() for build in self.builds]
        return {"format": FORMAT, **self.versions, "builds": builds, "headers": self.headers}

    def found_by_path(self) -> list[str]:
        """Return the headers outside all searched directories, which are found only by their paths."""
        # In builds with NVCC the host compiler's own headers are among them.
        by_nvrtc = [build for build in self.builds if build.compiler.startswith("nvrtc")]
        headers = [header for build in by_nvrtc for header in build.headers]
        return list(dict.fromkeys(path for label, _, path, _ in headers if not label))


def read(path: str, *, trust_options: bool = False) -> Record:
    """Return the record in a file; unless `trust_options`, raise if its options would run or write something."""
    text = sealed.read_text(path)
    document = _json(text)
    # Else it is a log, whose lines are records, counts, and the incomplete last line of a killed program.
    documents = [document] if isinstance(document, dict) else [*map(_json, text.splitlines())]
    if not documents or not isinstance(documents[0], dict):
        raise InvalidRequest(
            f"{path}: this is not a record, or it is truncated; "
            "`rtcompile run --record FILE script.py` writes one"
        )
    documents = [document for document in documents if isinstance(document, dict)]
    if other := [name for each in documents if (name := each.get("format")) != FORMAT]:
        raise InvalidRequest(
            f"{path}: its format is {other[0]!r}, and this rtcompile reads {FORMAT!r}; record the "
            "program again with `rtcompile run --record`"
        )
    versions = {"rtcompile": "", "cupy": ""}
    builds: dict[RecordedBuild, RecordedBuild] = {}  # several processes may record the same build
    headers: dict[str, str] = {}
    try:
        for document in documents:
            versions.update((n, str(document[n])) for n in versions if document.get(n))
            for build in map(RecordedBuild.decode, document["builds"]):
                builds.setdefault(build._replace(milliseconds=0.0), build)
            headers.update(document["headers"])
        if not all(isinstance(text, str) for text in headers.values()):
            raise TypeError("a header is not a text")
    except (InvalidRequest, LookupError, TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest(
            f"{path}: this record is damaged ({error}); record the program again"
        ) from None
    for build in () if trust_options else builds:
        try:
            why = build.distrusted()
        except InvalidRequest as error:
            raise InvalidRequest(f"{path}: {error}") from None
        if why:
            raise InvalidRequest(
                f"{path}: its options would run or write something here: {'; '.join({*why})}. If you "
                "trust who made the record, say so by --trust-options (rtcompile warm and bundle)"
            )
    return Record(versions, builds.values(), headers)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def differences(record: Record, compilers: Sequence[str] = ()) -> list[str]:
    """Return a sentence for each version that differs from this machine's, which has `compilers`; import no CuPy."""
    cuda = [*map(_release, compilers)]
    here = {"rtcompile": [__version__], "cupy": [*cupys().values()], "cuda": cuda}
    titles = {"rtcompile": "rtcompile", "cupy": "CuPy", "cuda": "CUDA"}
    return [
        f"recorded with {titles[name]} {then}, and here is {titles[name]} {found[0]}"
        for name, found in here.items()
        if (then := record.versions[name]) and found and then not in found
    ]


def cupys() -> dict[str, str]:
    """Return the versions of the installed distributions of CuPy, by their names."""
    from importlib import metadata

    every = {str(each.metadata["Name"]).lower(): each.version for each in metadata.distributions()}
    return {n: version for n, version in every.items() if re.fullmatch(r"cupy(-cuda\d+x)?", n)}


def _release(compiler: str) -> str:
    """Return the CUDA release of a compiler: ``"12.9"`` for ``"nvrtc 12.9.86"`` or ``"12.9.86"``."""
    found = re.search(r"\d+\.\d+", compiler)
    return found[0] if found else ""


# --- Repeats a record's builds, even on a machine without a GPU or the program's folders -------------------


def warm(
    record: Record,
    *,
    archs: Sequence[str] = (),
    progress: bool | Callable[[int, int, Any], Any] | None = None,
) -> list[ObjectCode]:
    """Build a record in parallel into the cache, for `archs` where the program did not choose one."""
    from rtcompile.build.planned import add_to_index  # a program that is recorded does not need it

    with requests(record, archs) as found:
        # The most expensive builds start first: none of them is left for the end.
        costs = [(build.milliseconds, len(build.headers)) for _, build in found]
        order = sorted(range(len(found)), key=costs.__getitem__, reverse=True)
        wanted = [found[index][0] for index in order]
        done: list[Any] = rtcompile.compile_many(wanted, progress=progress, errors="return")
    outcomes = [outcome for _, outcome in sorted(zip(order, done, strict=True))]
    for request, build in found:
        # With this entry of the index, the program's own request finds the build at once.
        requested, capability = build.requested(request)
        if requested is not None:
            add_to_index(requested, capability)
    failed = {i: o for i, o in enumerate(outcomes) if not isinstance(o, ObjectCode)}
    if failed:
        results = [None if i in failed else o for i, o in enumerate(outcomes)]
        raise rtcompile.BatchError(failed, results, {i: found[i][0].name for i in failed})
    return outcomes


@contextmanager
def requests(
    record: Record, archs: Sequence[str] = ()
) -> Iterator[list[tuple[CompileRequest, RecordedBuild]]]:
    """Yield what to build for a record; the headers that it needs exist in the body of ``with``."""
    with tempfile.TemporaryDirectory(prefix=_FOLDER) as folder:
        relocated = _Relocated(record, folder)
        yield [
            (request, build)
            for build in record.builds
            for request in build.repeated(archs, relocated.moved(build))
        ]


class _Relocated:
    """Folders for a record's headers: several if a program rewrites a header during its run."""

    def __init__(self, record: Record, folder: str) -> None:
        self._record = record
        self._folder = folder
        self._written = 0
        self._states: list[dict[str, str]] = []  # of each folder: path to digest

    def moved(self, build: RecordedBuild) -> Callable[[str], str] | None:
        """Return a function from a directory to the folder with its recorded headers; None if they are in place."""
        own = {
            os.path.abspath(path): digest
            for label, _, path, digest in build.headers
            if label.startswith("user")
        }
        if all(self._is_unchanged(*header) for header in own.items()):
            return None
        fitting = (  # a folder that has no other contents for these headers
            number
            for number, state in enumerate(self._states)
            if all(state.get(path, digest) == digest for path, digest in own.items())
        )
        number = next(fitting, len(self._states))
        if number == len(self._states):
            self._states.append({})
        state = self._states[number]
        folder = os.path.join(self._folder, str(number))
        # All directories are moved together, so they stay nested as they were.
        for path, digest in own.items():
            if path not in state:
                self._write(folder + path, path, digest)
                state[path] = digest

        def moved(directory: str) -> str:
            target = folder + os.path.abspath(directory)
            os.makedirs(target, exist_ok=True)
            return target

        return moved

    @functools.cache  # noqa: B019  # the object lives as long as one warming
    def _is_unchanged(self, path: str, digest: str) -> bool:
        try:
            small = os.stat(path).st_size <= _MOST_HEADER_BYTES  # /proc/kcore has 128 TiB
            return small and content_digest(sealed.read_given(path)) == digest
        except (OSError, ValueError):  # missing, or a path with a NUL
            return False

    def _write(self, target: str, path: str, digest: str) -> None:
        try:
            data = self._record.headers[digest].encode("utf-8", "surrogateescape")
        except (KeyError, UnicodeEncodeError):
            data = b""
        if content_digest(data) != digest:
            raise InvalidRequest(
                f"the record lacks the contents of a header (digest {digest[:16]}…); record the "
                "program again with `rtcompile run --record`"
            )
        self._written += len(data)
        if self._written > _MOST_WRITTEN_BYTES:
            problem = "the record's headers, in all their versions, have more than 1 GiB"
            raise InvalidRequest(problem)
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(data)
        except (ValueError, OSError) as error:  # a path with a NUL, or below another header's
            problem = f"a header of the record is damaged: {path!r}: {error}"
            raise InvalidRequest(problem) from None


# --- The kernels that everyday CuPy programs use, for the CuPy that is installed here ------------------


def record_of_cupy(arch: str) -> Record:
    """Return the record of the installed CuPy's kernels for a device."""
    import lzma

    try:
        import cupy
        from cupy import _core
    except ImportError as error:
        raise InvalidRequest(
            f"CuPy's kernels are built with its headers, and CuPy cannot be imported: {error}"
        ) from None
    with lzma.open(KERNELS) as file:
        document: dict[str, Any] = json.loads(file.read())
    here, made_for = str(cupy.__version__), document["cupy"]
    if here.split(".")[:1] != made_for.split(".")[:1]:
        raise InvalidRequest(
            f"this is CuPy {here}, and rtcompile knows the kernels of CuPy {made_for}: record your own "
            "program with `rtcompile run --record kernels.json script.py`"
        )
    if here.split(".")[:2] == made_for.split(".")[:2]:
        made_for = here  # a patch release has the same kernels
    options = functools.cache(_core.core.assemble_cupy_compiler_options)
    builds = [
        RecordedBuild(
            CompileRequest(
                kernel["source"],
                options=(*options(tuple(kernel["options"])), "-ftz=true"),
                arch=arch,
                name_expressions=kernel["names"],
                name=kernel["name"],
                backend="nvrtc",
                allow_fixups=False,
            ),
            Arch.parse(arch),
            milliseconds=kernel["milliseconds"],
        )
        for kernel in document["kernels"]
    ]
    return Record({"rtcompile": __version__, "cupy": made_for}, builds, {})

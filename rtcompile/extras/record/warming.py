"""Repeats builds: those of a record, even on a machine without a GPU or the program's folders, and CuPy's own kernels."""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import rtcompile
from rtcompile import Arch, CompileRequest, InvalidRequest, ObjectCode, __version__
from rtcompile.build import elsewhere
from rtcompile.build.elsewhere import LinkInput, linker_input
from rtcompile.build.elsewhere import options as compiler_options
from rtcompile.errors import public, shown
from rtcompile.extras.record.recording import MOST_HEADER_BYTES, Record
from rtcompile.files import sealed
from rtcompile.files.sealed import content_digest
from rtcompile.named import NamedTuple
from rtcompile.request.values import absolute

_FOLDER = "rtcompile-warm-"
_MOST_WRITTEN_BYTES = 1 << 30  # of headers, for all states of them

KERNELS_FORMAT = "rtcompile kernels of CuPy 1"
KERNELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels_of_cupy")
_FILE = re.compile(r"(\d+)\.(\d+)\.json\.xz")


# --- A build as plain values, which another process or machine can repeat -----------------------------


class RecordedBuild:
    """A build as plain values, which can be written to a file or sent, to repeat the build elsewhere.

    Parameters
    ----------
    fields : mapping
        `fields` of another one, for example from JSON. They are checked; for a stranger's fields, also check
        `untrusted_options`.

    Attributes
    ----------
    fields : dict
        Texts, numbers, lists and dicts: the request, and the dependencies of its result.

    Raises
    ------
    InvalidRequest
        The fields are damaged.

    Examples
    --------
    >>> request = rtcompile.CompileRequest("__global__ void k() {}", arch="sm_80")
    >>> [code] = rtcompile.compile_many([request])
    >>> fields = rtcompile.types.RecordedBuild.of(request, code).fields
    >>> [again] = rtcompile.types.RecordedBuild(fields).requests()
    >>> again == request
    True
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        requested = fields.get("requested") if isinstance(fields, Mapping) else None
        if not (
            isinstance(requested, dict)
            and {*requested} == {"options", "arch", "by cupy", "by a module", "in any folder"}
            and _are_texts(requested["options"])
            and isinstance(fields.get("headers"), list)
            and all(_are_texts(header, 4) for header in fields["headers"])
            and isinstance(fields.get("built by"), str)
        ):
            raise InvalidRequest(f"fields are not those of a RecordedBuild: {shown(fields)}")
        self.fields = dict(fields)

    @classmethod
    @public
    def of(cls, request: CompileRequest, code: ObjectCode) -> RecordedBuild:
        """Record a request and its result, which the functions in `rtcompile.lookup.find.listeners` get."""
        named = compiler_options.parse(request.options).arch and not request.may_pass_over_arch
        own = compiler_options.with_directories(request.options, absolute)
        fields = {
            "requested": {
                "options": list(request.options),
                "arch": None if request.arch is None else str(request.arch),
                "by cupy": not request.allow_fixups,
                "by a module": request.may_pass_over_arch,
                # False if an option has a relative path, which means another file in another directory.
                "in any folder": not elsewhere.depends_on_directory(request),
            },
            "name": request.name,
            "source": request.source,
            # Relative directories become absolute: they refer to the recorded program's working directory.
            "options": list(own),
            "arch": str(code.arch),
            "follows device": request.arch is None or not request.allow_fixups,
            "name expressions": list(request.name_expressions),
            "backend": request.backend,
            # ``-arch=compute_90`` made PTX, and the fields also have the architecture.
            "target": code.kind if request.arch is None and named else request.target,
            "link": [_link(item, index) for index, item in enumerate(request.link)],
            "given headers": dict(request.headers),
            "built by": code.build.compiler,
            "headers": [[h.label, h.relative, h.path, h.digest] for h in code.build.headers],
        }
        return cls(fields)

    @public
    def untrusted_options(self) -> list[str]:
        """Return why options are unsafe in a stranger's record: they run or write something."""
        fields = self.fields
        try:
            sources = [item["options"] for item in fields["link"] if "source" in item]
            given = (fields["options"], fields["requested"]["options"], *sources)
            return [each for options in given for each in compiler_options.distrusted(options)]
        except (KeyError, TypeError, AttributeError) as error:
            raise _damaged(error) from None

    @public
    def requests(
        self, archs: Sequence[str] = (), moved: Callable[[str], str] | None = None
    ) -> list[CompileRequest]:
        """Return the requests that repeat the build.

        Parameters
        ----------
        archs : sequence of str
            Architectures to build for, instead of the recorded one, if the program chose none.
        moved : callable, optional
            Maps each recorded header directory to the one to search.
        """
        request = self._request()
        if moved is not None:
            options = compiler_options.with_directories(request.options, moved)
            request = request.replace(options=options)
        named = compiler_options.parse(request.options).arch and request.allow_fixups
        follows = self.fields.get("follows device") and not (
            named and not request.may_pass_over_arch
        )
        if not archs or not follows:
            return [request]
        return [request.replace(arch=self._arch(name)) for name in archs]

    def _request(self) -> CompileRequest:
        """Return the request, for the architecture it was built for."""
        fields = self.fields
        try:
            return CompileRequest(
                fields["source"],
                options=tuple(fields["options"]),
                arch=Arch.parse(fields["arch"]),
                name_expressions=tuple(fields["name expressions"]),
                name=fields["name"],
                backend=fields["backend"],
                target=fields["target"],
                link=tuple(_linked(item) for item in fields["link"]),
                headers=fields["given headers"],
                allow_fixups=not fields["requested"]["by cupy"],
                may_pass_over_arch=fields["requested"]["by a module"],
            )
        except (InvalidRequest, KeyError, TypeError, ValueError) as error:
            raise _damaged(error) from None

    def _arch(self, name: str) -> Arch:
        try:
            arch = Arch.parse(name)
        except ValueError as error:
            raise InvalidRequest(f"--arch: {error}") from None
        if name.startswith("compute_"):
            raise InvalidRequest(f"--arch {name}: give a device's architecture, {arch}")
        # CuPy's own kernels are compiled for sm_90 and not sm_90a, as CuPy does.
        return arch.replace(suffix="") if self.fields["requested"]["by cupy"] else arch

    @public
    def add_to_index(self, request: CompileRequest) -> None:
        """Write the index entry with which the program's own request finds the build of one of `requests`."""
        requested, capability = self.program_request(request)
        if requested is not None:
            elsewhere.add_to_index(requested, capability)

    def program_request(
        self, request: CompileRequest
    ) -> tuple[CompileRequest | None, tuple[int, int] | None]:
        """Return the program's request for one of `requests`, and its device's capability; or None twice."""
        recorded = self.fields["requested"]
        request = request.replace(options=tuple(recorded["options"]))  # with its original folders
        fixed = not recorded["by cupy"] and any("arch" in o or "code" in o for o in request.options)
        if not recorded["in any folder"] or fixed:  # it depends on more than the device
            return None, None
        if recorded["arch"] is not None:
            return request, None
        assert request.arch is not None
        return request.replace(arch=None), (request.arch.major, request.arch.minor)


def _are_texts(values: Any, count: int = 0) -> bool:
    """Return whether a value is a list of str, with `count` elements unless that is 0."""
    texts = isinstance(values, list) and all(isinstance(value, str) for value in values)
    return texts and (not count or len(values) == count)


def _damaged(error: Exception) -> InvalidRequest:
    text = error if isinstance(error, InvalidRequest) else repr(error)
    return InvalidRequest(f"a recorded build is damaged: {text}")


def _link(item: Any, index: int) -> dict[str, Any]:
    given = linker_input(item, index)
    if isinstance(given, LinkInput):
        data = base64.b64encode(given.data).decode()
        return {"kind": given.kind, "name": given.name, "data": data}
    return {"source": given.source, "options": list(given.options), "name": given.name}


def _linked(item: Mapping[str, Any]) -> LinkInput | CompileRequest:
    if "source" in item:
        return CompileRequest(item["source"], options=tuple(item["options"]), name=item["name"])
    return LinkInput(item["kind"], item["name"], base64.b64decode(item["data"], validate=True))


# --- All builds of a record ---------------------------------------------------------------------------


class Wanted(NamedTuple):
    """A build of a record."""

    request: CompileRequest
    recorded: RecordedBuild
    origin: str  # the line of the program: ``"train.py:12"``
    cost: tuple[float, int]  # milliseconds if recorded, and headers


def warm(
    record: Record,
    *,
    archs: Sequence[str] = (),
    progress: bool | Callable[[int, int, Any], Any] | None = None,
) -> list[ObjectCode]:
    """Build a record in parallel into the cache, for `archs` where the program did not choose one."""
    with requests(record, archs) as found:
        # The most expensive builds start first: none of them is left for the end.
        order = sorted(range(len(found)), key=lambda index: found[index].cost, reverse=True)
        wanted = [found[index].request for index in order]
        done: list[Any] = rtcompile.compile_many(wanted, progress=progress, errors="return")
    by_index = dict(zip(order, done, strict=True))
    outcomes = [by_index[index] for index in range(len(found))]
    for each in found:
        each.recorded.add_to_index(each.request)
    failed = {i: o for i, o in enumerate(outcomes) if not isinstance(o, ObjectCode)}
    if failed:
        results = [None if i in failed else o for i, o in enumerate(outcomes)]
        raise rtcompile.BatchError(failed, results, {i: found[i].request.name for i in failed})
    return outcomes


@contextmanager
def requests(record: Record, archs: Sequence[str] = ()) -> Iterator[list[Wanted]]:
    """Yield the builds of a record; the headers that they need exist in the body of ``with``."""
    with tempfile.TemporaryDirectory(prefix=_FOLDER) as folder:
        relocated = _Relocated(record, folder)
        found = []
        for entry in record.builds:
            milliseconds = entry.get("milliseconds")
            cost = float(milliseconds) if isinstance(milliseconds, (int, float)) else 0.0
            origin, count = str(entry.get("requested at") or ""), len(entry["headers"])
            recorded = RecordedBuild(entry)
            for request in recorded.requests(archs, relocated.moved(entry)):
                found.append(Wanted(request, recorded, origin, (cost, count)))
        yield found


class _Relocated:
    """Folders for a record's headers: several if a program rewrites a header during its run."""

    def __init__(self, record: Record, folder: str) -> None:
        self._record = record
        self._folder = folder
        self._written = 0
        self._states: list[dict[str, str]] = []  # of each folder: path to digest

    def moved(self, entry: Mapping[str, Any]) -> Callable[[str], str] | None:
        """Return what names the folder that has a directory's recorded headers; None if they are in place."""
        own = {
            os.path.abspath(path): digest
            for label, _, path, digest in entry["headers"]
            if label.startswith("user")
        }
        if all(self._is_there(*header) for header in own.items()):
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
    def _is_there(self, path: str, digest: str) -> bool:
        try:
            small = os.stat(path).st_size <= MOST_HEADER_BYTES  # /proc/kcore has 128 TiB
            return small and content_digest(sealed.read_given(path)) == digest
        except (OSError, ValueError):  # missing, or a path with a NUL
            return False

    def _write(self, target: str, path: str, digest: str) -> None:
        there = self._is_there(path, digest)
        data = sealed.read_given(path) if there else self._record.contents(digest)
        self._written += len(data)
        if self._written > _MOST_WRITTEN_BYTES:
            problem = "the record's headers, once for each build's, fill the disk"
            raise InvalidRequest(problem)
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(data)
        except (ValueError, OSError) as error:  # a path with a NUL, or below another header's
            problem = f"a header of the record is damaged: {path!r}: {error}"
            raise InvalidRequest(problem) from None


# --- The kernels that everyday CuPy programs use, for the CuPy that is installed here ------------------

# The file of each minor version of CuPy, made by benchmarks/cupy_record.py, has the sources that CuPy generates. It
# has no paths, so it is valid for any prefix, architecture and CUDA version.


def record_of_cupy(arch: str) -> Record:
    """Return the record of the installed CuPy's kernels for a device."""
    try:
        import cupy
        from cupy._core import core
    except ImportError as error:
        raise InvalidRequest(
            f"CuPy's kernels are built with its headers, and CuPy cannot be imported: {error}"
        ) from None
    here = str(cupy.__version__)
    document = _read(here)
    made_for = document["cupy"]
    if here.split(".")[:2] == made_for.split(".")[:2]:
        made_for = here  # a patch release has the same kernels
    result = ObjectCode(b"", "cubin", Arch.parse(arch))  # as of a build, without headers
    alike = {
        own: RecordedBuild.of(
            CompileRequest(
                "",
                options=(*core.assemble_cupy_compiler_options(own), "-ftz=true"),
                arch=arch,
                backend="nvrtc",
                allow_fixups=False,
            ),
            result,
        ).fields
        for own in {tuple(kernel["options"]) for kernel in document["kernels"]}
    }
    builds = [
        {
            **alike[tuple(kernel["options"])],
            **{name: kernel[name] for name in ("name", "source", "milliseconds")},
            "name expressions": kernel["names"],
        }
        for kernel in document["kernels"]
    ]
    return Record({"rtcompile": __version__, "cupy": made_for}, builds, {})


def files_of_cupy() -> dict[tuple[int, int], str]:
    """Return the file of each minor version of CuPy whose kernels are known."""
    found = filter(None, map(_FILE.fullmatch, os.listdir(KERNELS)))
    return {(int(name[1]), int(name[2])): os.path.join(KERNELS, name[0]) for name in found}


def _read(version: str) -> dict[str, Any]:
    """Return the kernels of a version of CuPy, or those of the nearest minor version."""
    import lzma

    known = files_of_cupy()
    wanted = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    near = [each for each in known if each[:1] == wanted[:1]]
    if not near:
        names = ", ".join(f"{major}.{minor}" for major, minor in sorted(known))
        raise InvalidRequest(
            f"this is CuPy {version}, and rtcompile knows the kernels of CuPy {names}: record your own "
            "program with `rtcompile run --record kernels.json script.py`"
        )
    nearest = min(near, key=lambda each: abs(each[1] - wanted[1]))
    with lzma.open(known[nearest]) as file:
        document: dict[str, Any] = json.loads(file.read())
    return document

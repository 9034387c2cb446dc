"""Requests as plain values, from which another process or machine makes the same builds.

It is all that records need of the core, beside the files that they write.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from rtcompile.build import links, many, planned
from rtcompile.errors import InvalidRequest, RtcompileError
from rtcompile.lookup.find import depends_on_directory, query_of
from rtcompile.request import options as compiler_options
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.request.units import LinkInput
from rtcompile.request.values import Arch, items, replace
from rtcompile.settings import Settings, absolute
from rtcompile.store.store import Store
from rtcompile.toolkit import remembered

if TYPE_CHECKING:
    from rtcompile.store.remote import Remote


def describe(request: CompileRequest, code: ObjectCode) -> dict[str, Any]:
    """Return a request, and what its build depended on, as plain values."""
    named = compiler_options.parse(request.options).arch and not request.may_pass_over_arch
    return {
        "asked": {
            "options": list(request.options),
            "arch": None if request.arch is None else str(request.arch),
            "by cupy": not request.allow_fixups,
            "by a module": request.may_pass_over_arch,
            # False if an option has a relative path, which names another file in another directory.
            "anywhere": not depends_on_directory(request),
        },
        "name": request.name,
        "source": request.source,
        # Relative directories become absolute: they refer to the recorded program's working directory.
        "options": list(compiler_options.with_directories(request.options, absolute)),
        "arch": str(code.arch),
        "follows device": request.arch is None or not request.allow_fixups,
        "name expressions": list(request.name_expressions),
        "backend": request.backend,
        # ``-arch=compute_90`` made PTX, and the entry has the architecture besides.
        "target": code.kind if request.arch is None and named else request.target,
        "link": [_link(item, index) for index, item in enumerate(request.link)],
        "given headers": dict(request.headers),
        "built by": code.build.compiler,
        "headers": [[h.label, h.relative, h.path, h.digest] for h in code.build.headers],
    }


def request_of(entry: Mapping[str, Any]) -> CompileRequest:
    """Return the request that an entry describes, for the architecture it was built for."""
    try:
        return CompileRequest(
            entry["source"],
            options=tuple(entry["options"]),
            arch=Arch.parse(entry["arch"]),
            name_expressions=tuple(entry["name expressions"]),
            name=entry["name"],
            backend=entry["backend"],
            target=entry["target"],
            link=tuple(_linked(item) for item in entry["link"]),
            headers=entry["given headers"],
            allow_fixups=not entry["asked"]["by cupy"],
            may_pass_over_arch=entry["asked"]["by a module"],
        )
    except InvalidRequest as error:
        raise InvalidRequest(f"a build of the record is damaged: {error}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"a build of the record is damaged: {error!r}") from None


def requests_of(builds: Any) -> list[CompileRequest]:
    """Return the requests of a list of requests, modules and kernels; raise for what is none of them."""
    given = items("builds", builds, "CompileRequests or RawModules")
    return [request for request, _, _ in many.requests_in(given, {})]


def fetch(stores: Remote, requests: Iterable[CompileRequest]) -> tuple[int, int, int]:
    """Write to the cache what shared stores have; return how many came, were there, and no store has."""
    from rtcompile.build import miss
    from rtcompile.store import sharing

    settings = Settings.from_environ()
    store = Store.open(settings)
    inputs = []
    count = there = 0
    for request in requests:
        count += 1
        # What cannot be planned is built, and fails, when it is used.
        with suppress(RtcompileError):
            wanted = miss.identified(planned.plan(request, settings), settings).key_inputs
            if store.find(wanted) is None:
                inputs.append(wanted)
            else:
                there += 1
    came = sharing.fetch_many(stores, inputs, store)
    return came, there, count - came - there


def distrusted(entry: Mapping[str, Any]) -> list[str]:
    """Return why options of an entry are not for a stranger to give: they run or write something."""
    sources = [item["options"] for item in entry["link"] if "source" in item]
    given = (entry["options"], entry["asked"]["options"], *sources)
    return [each for options in given for each in compiler_options.distrusted(options)]


def with_directories(request: CompileRequest, moved: Callable[[str], str]) -> CompileRequest:
    """Return a request with each directory that headers are searched in replaced by another."""
    return request.replace(options=compiler_options.with_directories(request.options, moved))


def compiler_versions() -> list[str]:
    """Return the versions of the compilers that are installed here."""
    found = remembered.current()
    return [each.version for each in (found.nvrtc, found.nvcc) if each is not None]


def _link(item: Any, index: int) -> dict[str, Any]:
    given = links.given(item, index)
    if isinstance(given, LinkInput):
        data = base64.b64encode(given.data).decode()
        return {"kind": given.kind, "name": given.name, "data": data}
    return {"source": given.source, "options": list(given.options), "name": given.name}


def _linked(item: Mapping[str, Any]) -> LinkInput | CompileRequest:
    if "source" in item:
        return CompileRequest(item["source"], options=tuple(item["options"]), name=item["name"])
    return LinkInput(item["kind"], item["name"], base64.b64decode(item["data"], validate=True))


# --- For architectures, and for the program that was recorded ----------------------------------------


class ProgramRequest(NamedTuple):
    """A request as the program makes it; `capability` is None if it names its architecture."""

    request: CompileRequest
    capability: tuple[int, int] | None

    def add_to_index(self) -> None:
        """Add an index entry for it, valid in the same environment, if it was built."""
        with suppress(RtcompileError):
            query = query_of(self.request, Settings.from_environ(), self.capability)
            planned.keep_known(query)


def for_archs(
    entry: Mapping[str, Any], request: CompileRequest, archs: Sequence[str]
) -> Iterator[tuple[CompileRequest, ProgramRequest | None]]:
    """Yield the builds of an entry, each with the request that the program makes for it."""
    named = compiler_options.parse(request.options).arch and request.allow_fixups
    if not archs or not entry.get("follows device") or (named and not request.may_pass_over_arch):
        yield request, _by_program(entry, request, None)
        return
    for name in archs:
        try:
            arch = Arch.parse(name)
        except ValueError as error:
            raise InvalidRequest(f"--arch: {error}") from None
        if name.startswith("compute_"):
            raise InvalidRequest(f"--arch {name}: give a device's architecture, {arch}")
        if entry["asked"]["by cupy"]:
            # CuPy's own kernels are compiled for sm_90 and not sm_90a, as CuPy does.
            arch = replace(arch, suffix="")
        yield request.replace(arch=arch), _by_program(entry, request, arch)


def _by_program(
    entry: Mapping[str, Any], request: CompileRequest, arch: Arch | None
) -> ProgramRequest | None:
    """Return the request that the program will make; None if it depends on more than the device."""
    recorded = entry["asked"]
    request = request.replace(options=tuple(recorded["options"]))  # with the program's own folders
    fixed = not recorded["by cupy"] and any("arch" in o or "code" in o for o in request.options)
    if not recorded["anywhere"] or fixed:
        return None
    if recorded["arch"] is not None:
        return ProgramRequest(request if arch is None else request.replace(arch=arch), None)
    built = request.arch if arch is None else arch
    assert built is not None
    return ProgramRequest(request.replace(arch=None), (built.major, built.minor))

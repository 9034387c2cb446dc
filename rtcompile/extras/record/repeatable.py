"""`RecordedBuild`: a build as plain values, which another process or machine can repeat."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rtcompile import Arch, CompileRequest, InvalidRequest, ObjectCode
from rtcompile.build import elsewhere
from rtcompile.build.elsewhere import LinkInput, linker_input
from rtcompile.build.elsewhere import options as compiler_options
from rtcompile.errors import public, shown
from rtcompile.request.values import absolute


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

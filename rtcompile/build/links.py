"""Turns the elements of `link=` into named bytes for the linker, by compiling or reading them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from rtcompile.errors import InvalidRequest, shown
from rtcompile.files import sealed
from rtcompile.inspect.cubin import kind_of
from rtcompile.request import options as compiler_options
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.request.units import LinkInput
from rtcompile.request.values import Arch, absolute
from rtcompile.request.values import path as checked_path
from rtcompile.settings import Settings

BuildFunction = Callable[[CompileRequest, Settings], ObjectCode]

_SOURCE_SUFFIXES = (".cu", ".cuh", ".cpp", ".c")


def inputs(
    request: CompileRequest, settings: Settings, build: BuildFunction, arch: Arch
) -> tuple[LinkInput, ...]:
    """Return `request.link` as linker inputs; sources among them are compiled by `build`."""
    items = [given(item, index) for index, item in enumerate(request.link)]
    lto = request.target == "ltoir" or compiler_options.parse(request.options).lto
    lto = lto or any(isinstance(item, LinkInput) and item.kind == "ltoir" for item in items)
    target = "ltoir" if lto else "object"
    return tuple(_compiled(item, request, arch, target, settings, build) for item in items)


def of_ptx(path: str, options: Sequence[str], arch: str | Arch | None) -> CompileRequest | None:
    """Return the request that links a PTX file; None for other files, or without linker options."""
    from rtcompile.request import command_lines

    parsed = compiler_options.parse(options)
    _, *flags = command_lines.for_nvjitlink(parsed, Arch(7, 5), (99, 0))
    if not flags and not parsed.unknown:
        return None
    try:
        data = sealed.read_given(path)
    except OSError as error:
        raise InvalidRequest(f"no module can be read from {path!r}: {error.strerror}") from None
    if kind_of(data) != "ptx":
        return None
    if parsed.unknown:
        raise InvalidRequest(
            f"options={list(options)!r}: {shown(parsed.unknown[0])} is no option that rtcompile "
            f"knows. {path} is linked, with the options {', '.join(command_lines.FOR_THE_LINKER)}; "
            "a compiler's other options are taken and have no effect on PTX"
        )
    ptx = LinkInput("ptx", os.path.basename(path), data)
    return CompileRequest("", options=options, arch=arch, link=(ptx,), name="linked.cu")


def given(item: Any, index: int) -> LinkInput | CompileRequest:
    """Return the bytes of an element of ``link=``, or the source to compile first."""
    if isinstance(item, (LinkInput, CompileRequest)):
        return item
    if isinstance(item, ObjectCode):
        return LinkInput(item.kind, f"link[{index}]", item.code)
    if isinstance(item, str) and _is_source(item):
        return CompileRequest(item, name=f"link{index}.cu")
    if isinstance(item, (str, os.PathLike)):
        return _file(checked_path(f"link[{index}]", item), index)
    raise InvalidRequest(
        f"link[{index}] is {shown(item)}; it may be a source string, a CompileRequest, "
        "an ObjectCode, or the path of a cubin, PTX, LTO-IR, fatbin, object or archive file"
    )


def _is_source(text: str) -> bool:
    # Every useful translation unit has one of these characters, and paths do not have them.
    return any(character in text for character in "\n;{")


def _file(path: str, index: int) -> LinkInput | CompileRequest:
    try:
        data = sealed.read_given(path)
    except OSError as error:
        raise InvalidRequest(f"link[{index}]: cannot read {path!r}: {error}") from None
    if path.endswith(_SOURCE_SUFFIXES):
        folder = os.path.dirname(absolute(path))
        try:
            source = data.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"link[{index}]: {path!r} is not valid UTF-8: {error}") from None
        return CompileRequest(source, name=os.path.basename(path), options=(f"-I{folder}",))
    kind = kind_of(data)
    if kind is None:
        raise InvalidRequest(
            f"link[{index}]: {path!r} is no cubin, PTX, LTO-IR, fatbin, object or archive "
            f"(it begins with {data[:8]!r})"
        )
    return LinkInput(kind, os.path.basename(path), data)


def _compiled(
    item: LinkInput | CompileRequest,
    request: CompileRequest,
    arch: Arch,
    target: str,
    settings: Settings,
    build: BuildFunction,
) -> LinkInput:
    if isinstance(item, LinkInput):
        return item
    if item.link:
        raise InvalidRequest(f"{item.name} has its own link=; pass all inputs to one link=")
    # The program's options (-std, -G, …) apply to each part, unless the part has its own.
    unit = item.replace(
        options=(*request.options, *item.options),
        arch=arch,
        target=target,
        link=(),
        may_pass_over_arch=request.may_pass_over_arch,
    )
    code = build(unit, settings)
    return LinkInput(code.kind, item.name, code.code)

"""The format of object files: the code with everything needed to use and describe it. No pickle."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rtcompile.cache import files
from rtcompile.core.arch import Arch
from rtcompile.core.request import BuildInfo, ObjectCode
from rtcompile.errors import RtcompileError

__all__ = ["asked", "decode", "encode"]


def encode(
    key: str, obj: ObjectCode, name: str, asked: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """Return the file that is kept under `key`.

    Parameters
    ----------
    key : str
        The key that `decode` will be given.
    obj : ObjectCode
        The build of a program called `name`.
    name : str
        The program's name.
    asked : mapping of str to str
        Describes its question.
    """
    build = obj.build
    texts = [name, obj.kind, str(obj.arch), build.backend, build.compiler, build.log]
    # The reason for using NVCC still holds on a hit; the reason for the miss does not.
    texts.append(build.why if build.backend == "nvcc" else "")
    texts.append("\0".join(f"{label}\0{value}" for label, value in asked.items()))
    texts += [f"{build.compiled_in:.1f}", ""]  # in pairs, as the names are
    for expression, symbol in obj.lowered_names.items():
        texts += [expression, symbol]
    fields = [obj.code, *(text.encode("utf-8", "surrogateescape") for text in texts)]
    return files.seal("object", key, fields)


def decode(key: str, data: bytes) -> tuple[str, ObjectCode] | None:
    """Return (program name, object) of the file found under `key`; None if it does not verify."""
    fields = files.unseal("object", key, data)
    if fields is None or len(fields) < 11 or not len(fields) % 2:
        return None
    texts = [f.decode("utf-8", "surrogateescape") for f in fields[1:]]
    name, kind, arch, backend, compiler, log, why = texts[:7]
    try:
        return name, ObjectCode(
            code=fields[0],
            kind=kind,
            arch=Arch.parse(arch),
            lowered_names=MappingProxyType(dict(zip(texts[10::2], texts[11::2], strict=True))),
            build=BuildInfo(
                backend=backend, log=log, why=why, compiler=compiler, compiled_in=float(texts[8])
            ),
        )
    except (ValueError, RtcompileError):  # whole, but written by another version of rtcompile
        return None


def asked(key: str, data: bytes) -> dict[str, str]:
    """Return the summary of the question in a file (`Question.summary`); empty if it is damaged."""
    fields = files.unseal("object", key, data)
    if fields is None or len(fields) < 11 or not fields[8]:
        return {}
    texts = fields[8].decode("utf-8", "surrogateescape").split("\0")
    return dict(zip(texts[::2], texts[1::2], strict=False))

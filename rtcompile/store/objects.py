"""The format of object files: the code with everything needed to use and describe it. No pickle."""

from __future__ import annotations

from types import MappingProxyType

from rtcompile.errors import RtcompileError
from rtcompile.files import sealed
from rtcompile.files.fileset import FileSet
from rtcompile.request.object_code import BuildInfo, ObjectCode
from rtcompile.request.values import Arch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from rtcompile.store.manifests import ManifestEntry


def encode(
    key: str,
    obj: ObjectCode,
    name: str,
    asked: Mapping[str, str] = MappingProxyType({}),
    manifest_key: str = "",
) -> bytes:
    """Return the file of a program's build that is kept under `key`.

    `manifest_key` is the portable manifest's key, for a build that read nothing and has no manifest
    file: see `portable_entry`.
    """
    build = obj.build
    texts = [name, obj.kind, str(obj.arch), build.backend, build.compiler, build.log]
    # The reason for using NVCC still holds on a hit; the reason for the miss does not.
    texts.append(build.why if build.backend == "nvcc" else "")
    texts.append("\0".join(f"{label}\0{value}" for label, value in asked.items()))
    texts += [
        f"{build.compiled_in:.1f}",
        manifest_key,
    ]  # two, since `decode` expects pairs from here on
    for expression, symbol in obj.lowered_names.items():
        texts += [expression, symbol]
    fields = [obj.code, *(text.encode("utf-8", "surrogateescape") for text in texts)]
    return sealed.seal("object", key, fields)


def decode(key: str, data: bytes) -> tuple[str, ObjectCode] | None:
    """Return (program name, object) of the file found under `key`; None if it does not verify."""
    fields = sealed.unseal("object", key, data)
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


def portable_entry(key: str, data: bytes) -> tuple[str, ManifestEntry] | None:
    """Return the manifest that `encode` named: its key and what is in it; None if it named none."""
    fields = sealed.unseal("object", key, data)
    if fields is None or len(fields) < 11 or not fields[10]:
        return None
    from rtcompile.store.manifests import ManifestEntry

    backend, compiler, manifest = (fields[at].decode("utf-8", "replace") for at in (4, 5, 10))
    compiler = compiler.removeprefix(f"{backend} ")
    return manifest, ManifestEntry(backend, compiler, key, FileSet())


def asked(key: str, data: bytes) -> dict[str, str]:
    """Return `KeyInputs.summary` from a file; empty if it is damaged."""
    fields = sealed.unseal("object", key, data)
    if fields is None or len(fields) < 11 or not fields[8]:
        return {}
    texts = fields[8].decode("utf-8", "surrogateescape").split("\0")
    return dict(zip(texts[::2], texts[1::2], strict=False))

"""A cache for programs of `cuda.core`, which also supports headers and name expressions, and the hook into cuda.core.

>>> from rtcompile.extras.cuda_core import ProgramCache  # doctest: +SKIP
>>> code = Program(source, "c++", options).compile("cubin", cache=ProgramCache())  # doctest: +SKIP

`rtcompile.install("cuda.core")` lets rtcompile compile what `cuda.core.Program.compile` compiles. `Program` is an
immutable extension type, so a subclass takes its place in cuda.core's modules. Names that a program imported before
keep the original class.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import cuda.core
from cuda.core import ObjectCode, ProgramOptions
from cuda.core.utils import ProgramCacheResource, make_program_cache_key

import rtcompile
from rtcompile import CompileRequest, InvalidRequest, RtcompileError
from rtcompile.build.elsewhere import Settings
from rtcompile.files.sealed import content_digest, seal, unseal
from rtcompile.store.shared import Folder, Store, count

_Theirs: Any = cuda.core.Program
_KNOWN = ("1.0", "1.1", "1.2")  # releases whose `Program` was compared with the subclass
_KIND, _SEAL = "programs", "program"  # the cache's folder, and the kind of the files in it


class ProgramCache(ProgramCacheResource):  # type: ignore[misc]
    """rtcompile's cache as the ``cache=`` of `cuda.core.Program.compile`; it verifies and evicts programs as builds."""

    def __init__(self) -> None:
        settings = Settings.from_environ()
        self._store = Store.open(settings)
        self._folder = Folder(settings.cache_dir, readable=settings.cache_on_disk, resolution=0)

    def __getitem__(self, key: bytes | str) -> bytes:
        name = _name(key)
        data = self._folder.read(_KIND, name)
        fields = None if data is None else unseal(_SEAL, name, data)
        if not fields:
            raise KeyError(key)
        count({"hits": 1})
        return fields[0]

    def __setitem__(self, key: bytes | str, value: Any) -> None:
        name = _name(key)
        self._store.publish(_KIND, name, seal(_SEAL, name, [_code(value)]))

    def __delitem__(self, key: bytes | str) -> None:
        self[key]  # raises KeyError
        self._folder.discard(_KIND, _name(key))

    def __len__(self) -> int:
        return sum(not name.startswith(".") for name, _ in self._folder.listing(_KIND))

    def clear(self) -> None:
        """Remove all programs, but no builds."""
        for name, _ in self._folder.listing(_KIND):
            self._folder.discard(_KIND, name)

    def compile(
        self,
        code: Any,
        code_type: str,
        options: Any,
        target_type: str,
        name_expressions: Sequence[str | bytes] = (),
        logs: Any = None,
    ) -> Any:
        """Compile a program, or find it in the cache; it may have include paths and name expressions.

        C++ is compiled as by `rtcompile.compile`, in a worker, with unchanged options, and again if a header that it
        read has changed. PTX and NVVM IR are compiled by ``Program(…)``, with this object as its ``cache=``.

        Parameters
        ----------
        code, code_type, options
            As of `cuda.core.Program`; `options` is a `ProgramOptions`.
        target_type, name_expressions, logs
            As of `cuda.core.Program.compile`.

        Returns
        -------
        cuda.core.ObjectCode
            The code, with the symbols of the name expressions.

        Raises
        ------
        CompileError
            NVRTC rejected the source.
        ValueError, TypeError
            `cuda.core` does not cache such a program, since an option makes the compiler write a file.
        """
        if not isinstance(options, ProgramOptions):
            raise InvalidRequest(f"options must be a ProgramOptions, not {type(options).__name__}")
        if code_type.lower() != "c++":
            theirs = _Theirs(code, code_type, options)
            return theirs.compile(target_type, name_expressions, logs, cache=self)
        # Options that cuda.core rejects for other reasons than headers are rejected here too.
        make_program_cache_key(
            code=code,
            code_type=code_type,
            options=options,
            target_type=target_type,
            name_expressions=name_expressions,
            extra_digest=b"headers",
        )
        target: Any = target_type.lower()
        names = [each if isinstance(each, str) else each.decode() for each in name_expressions]
        given = [option.decode() for option in options.as_bytes("nvrtc", target)]
        if not any(option.startswith(("--ftz=", "--use_fast_math")) for option in given):
            given.append("--ftz=false")  # NVRTC's default, which is not rtcompile's
        request = CompileRequest(
            code,
            options=given,
            arch=options.arch,
            name_expressions=names,
            name=options.name or "default_program",
            backend="nvrtc",
            target=target,
            allow_fixups=False,
        )
        found: Any = rtcompile.compile_many([request], progress=False, errors="return")[0]
        if isinstance(found, RtcompileError):
            raise found
        if logs is not None:
            logs.write(found.build.log)
        symbols = {
            each: found.lowered_names[name].encode()  # bytes, as of cuda.core's own programs
            for each, name in zip(name_expressions, names, strict=True)
        }
        made = getattr(ObjectCode, f"from_{target}")
        return made(found.code, name=options.name or "", symbol_mapping=symbols)


def _name(key: bytes | str) -> str:
    return content_digest(key.encode() if isinstance(key, str) else key)


def _code(value: object) -> bytes:
    """Return the code of a value as bytes; an `ObjectCode` may name a file, which is read."""
    code = value.code if isinstance(value, ObjectCode) else value
    if isinstance(value, ObjectCode) and isinstance(code, str):
        return Path(code).read_bytes()
    if isinstance(code, (bytes, bytearray, memoryview)):
        return bytes(code)
    raise TypeError(f"cache values must be bytes-like or ObjectCode, not {type(value).__name__}")


# --- The hook into cuda.core --------------------------------------------------------------------------


class Program(_Theirs):  # type: ignore[misc]
    """A `cuda.core.Program` whose C++ is compiled by rtcompile, and found in its cache."""

    def __init__(self, code: Any, code_type: str, options: Any = None) -> None:
        super().__init__(code, code_type, options)
        self._given = code, code_type, options

    def compile(
        self,
        target_type: str,
        name_expressions: Sequence[str | bytes] = (),
        logs: Any = None,
        *,
        cache: Any = None,
    ) -> Any:
        """Compile the program to PTX, a cubin or LTO-IR, as `cuda.core.Program.compile` does."""
        code, code_type, options = self._given
        if cache is None and str(code_type).lower() == "c++":
            if not isinstance(options, ProgramOptions):
                options = ProgramOptions(**(options or {}))
            # cuda.core compiles what rtcompile rejects or cannot cache, so users get cuda.core's errors.
            with suppress(RtcompileError, ValueError, TypeError):
                return ProgramCache().compile(
                    code, code_type, options, target_type, name_expressions, logs
                )
        try:
            return super().compile(target_type, name_expressions, logs, cache=cache)
        except Exception as error:  # noqa: BLE001  # raised again below
            failure = error.with_traceback(None)
        # cuda.core 1.2 cannot free a `Program` in a reference cycle, such as that of a traceback with this frame.
        del self
        raise failure


def _modules(current: Any) -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "cuda" and vars(module).get("Program") is current:
            yield module


def install() -> str | None:
    """Replace `Program`; return why that is impossible, ``""`` if it is done, None if it was done before."""
    if cuda.core.Program is Program:
        return None
    version = cuda.core.__version__
    if not version.startswith(tuple(f"{known}." for known in _KNOWN)):
        return (
            f"cuda.core {version} is not known; rtcompile is tested with {', '.join(_KNOWN)}. "
            "cuda.core compiles its programs itself, as before. Install one of these, or a newer rtcompile."
        )
    for module in _modules(_Theirs):
        module.Program = Program  # type: ignore[attr-defined]
    return ""


def uninstall() -> None:
    """Restore cuda.core's `Program`."""
    for module in _modules(Program):
        module.Program = _Theirs  # type: ignore[attr-defined]

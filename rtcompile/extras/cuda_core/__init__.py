"""A cache for programs of `cuda.core`, which also supports headers and name expressions.

>>> from rtcompile.extras.cuda_core import ProgramCache  # doctest: +SKIP
>>> code = Program(source, "c++", options).compile("cubin", cache=ProgramCache())  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuda.core import ObjectCode, Program, ProgramOptions
from cuda.core.utils import ProgramCacheResource, make_program_cache_key

import rtcompile
from rtcompile import CompileRequest, InvalidRequest, RtcompileError


class ProgramCache(rtcompile.KeptPrograms, ProgramCacheResource):  # type: ignore[misc]
    """rtcompile's cache as the ``cache=`` of `cuda.core.Program.compile`."""

    def __setitem__(self, key: bytes | str, value: Any) -> None:
        super().__setitem__(key, _code(value))

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
            return Program(code, code_type, options).compile(
                target_type, name_expressions, logs, cache=self
            )
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


def _code(value: object) -> bytes:
    """Return the code of a value as bytes; an `ObjectCode` may name a file, which is read."""
    code = value.code if isinstance(value, ObjectCode) else value
    if isinstance(value, ObjectCode) and isinstance(code, str):
        return Path(code).read_bytes()
    if isinstance(code, (bytes, bytearray, memoryview)):
        return bytes(code)
    raise TypeError(f"cache values must be bytes-like or ObjectCode, not {type(value).__name__}")

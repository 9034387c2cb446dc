"""Compiles a `TranslationUnit` with NVCC, in a worker.

NVCC makes only device code, so only the host compiler's preprocessor runs. NVCC has no name expressions; `Markers`
adds them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rtcompile.errors import limit_reached, own
from rtcompile.files.headers import FOLDER, IN_JOB
from rtcompile.request import cxx, units
from rtcompile.request.option_table import nvcc_path
from rtcompile.request.units import (
    Compiled,
    CompileFailure,
    Limits,
    LinkInput,
    TranslationUnit,
    joined_logs,
)
from rtcompile.request.values import Arch
from rtcompile.workers import pool

if TYPE_CHECKING:
    from rtcompile.toolkit.model import Toolchain


# --- Lowered names from NVCC ----------------------------------------------------------------------

_FIRST_EXPRESSION = 2


class Markers:
    """Variables initialised with the addresses of a source's name expressions; their PTX shows the symbols."""

    def __init__(self, source: str, expressions: Iterable[str]) -> None:
        # Sorted and numbered like NVRTC's, since messages contain the number.
        self.expressions = sorted(set(expressions))
        # The digest gives units that are linked together different markers.
        digest = hashlib.sha256("\0".join((source, *self.expressions)).encode())
        self.prefix = f"rtcompile_{digest.hexdigest()[:16]}_"

    def text(self) -> str:
        """Return the declarations, one line per expression."""
        lines = [""]
        for i, expression in enumerate(self.expressions):
            # NVRTC accepts `&x` and casts as well as plain names.
            plain = not expression.lstrip().startswith(("&", "("))
            here = f'#line {i + _FIRST_EXPRESSION} "__nv_name_map"'
            start = f'extern "C" __device__ void* const volatile {self.prefix}{i} = (void*)'
            # Kept on one line, since the numbers of the following lines count from here.
            one_line = " ".join(expression.splitlines())
            lines += [here, f"{start}{'&' if plain else ''}(", here, one_line, here, ");"]
        return "\n".join(lines)

    def named_in(self, log: str) -> str:
        """Return NVCC's log with errors in expressions rewritten to NVRTC's form, which names the expression."""

        def rewritten(match: re.Match[str]) -> str:
            file, number, message = match.groups()
            index = int(number) - _FIRST_EXPRESSION
            # A "#line" in the source, or a `\` at its end, can make the number wrong.
            if not 0 <= index < len(self.expressions):
                return match[0]
            expression = self.expressions[index]
            pragma = "  #pragma nv_mangled_name "
            return (
                f"{file}{message}\n{pragma}{expression}\n{'^':>{len(pragma) + 1}}\n\n"
                f"{file}Error in parsing name expression for lowered name lookup. "
                f'Input name expression was: "{expression}"\n'
            )

        return re.sub(r"(__nv_name_map\((\d+)\): error: )(.*)\n(?:[ \t].*\n)*", rewritten, log)

    def read(self, ptx: str) -> tuple[dict[str, str], str]:
        """Return the symbol of each expression, and the PTX without the markers."""
        # ".visible .global .align 8 .u64 NAME = generic(SYMBOL);"; functions without "generic".
        line = re.compile(
            rf"^[^\n]*\.global\b[^\n=]*\b{self.prefix}(\d+)\s*=\s*(?:generic\()?([\w$%.]+)\)?\s*;\n",
            re.MULTILINE,
        )
        found = {int(match[1]): match[2] for match in line.finditer(ptx)}
        for i, expression in enumerate(self.expressions):
            if i not in found:
                raise ValueError(f"nvcc's PTX names no symbol for the expression {expression!r}")
        unmarked = line.sub("", ptx)
        names = {expression: found[i] for i, expression in enumerate(self.expressions)}
        return names, ptx if self.prefix in unmarked else unmarked


# --- Compiles a `TranslationUnit` with NVCC, in a worker ------------------------------------------

# The kinds of code that NVCC makes, and its flags for each.
_TARGET_FLAGS = {
    "cubin": ("--cubin",),
    "object": ("--cubin", "-rdc=true"),
    "ptx": ("--ptx",),
    "ltoir": ("--ltoir", "-rdc=true"),
    "fatbin": ("--fatbin",),
}
_HOST_COMPILER_FLAGS = ("-ccbin", "--compiler-bindir")
# NVCC's linker recognises the kind of an input by its file's suffix. These suffixes differ from the kind's name.
_SUFFIXES = {"object": "o", "archive": "a"}

_SOURCE = "kernel.cu"
_PTX = "kernel.ptx"
_TRACE = "headers.d"
_RESULT = "result"

_SIGKILL, _SIGXFSZ = 9, 25
_CHILD_DIED = re.compile(r"died due to signal (\d+)")
_OPENED = re.compile(rf"^\.+ (?!{re.escape(FOLDER)})(.+)$", re.MULTILINE)
_SCRATCH_NAME = re.compile(r"\S*tmpxft_[0-9a-f]+_[0-9a-f]+-\d+_")


def compile(
    unit: TranslationUnit, toolchain: Toolchain, *, limits: Limits
) -> Compiled | CompileFailure:
    """Compile a unit with the toolchain's NVCC, adding the flag for the kind of output."""
    nvcc = _Nvcc(toolchain, limits)
    if not unit.name_expressions:
        return nvcc.compile(unit)
    # Compile to PTX, read the names in it, and assemble it; this takes 30 ms longer than one run.
    markers = Markers(unit.source, unit.name_expressions)
    marked = unit._replace(source=unit.source + markers.text())
    flags = [flag.replace("code=lto_", "code=sm_") for flag in unit.flags]
    plain = tuple(flag for flag in flags if flag not in ("-dlto", "--dlink-time-opt"))
    ptx = nvcc.compile(marked._replace(target="ptx", flags=plain))
    if isinstance(ptx, CompileFailure):
        return ptx._replace(log=markers.named_in(ptx.log))
    try:
        names, unmarked = markers.read(ptx.code.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        log = joined_logs(ptx.log, f"{error}\n")
        return CompileFailure("error", log, nvcc.command, "nvcc", trace=ptx.trace)
    code = unmarked.encode("utf-8", "surrogateescape")
    stays = unit.target == "ltoir" or markers.prefix in unmarked
    notes = (f"variables {markers.prefix}* for its name expressions are in the code",) * stays
    if unit.target == "ptx":
        return ptx._replace(code=code, lowered_names=names, notes=notes)
    # The markers cannot be removed from LTO-IR, and without them the templates would be missing.
    if unit.target == "ltoir":
        outcome = nvcc.compile(marked)
    else:
        outcome = nvcc.run((*_TARGET_FLAGS[unit.target], *unit.flags), {_PTX: code}, unit.target)
    if isinstance(outcome, CompileFailure):
        return outcome._replace(trace=ptx.trace)
    return outcome._replace(
        lowered_names=names,
        log=outcome.log if unit.target == "ltoir" else joined_logs(ptx.log, outcome.log),
        trace=ptx.trace,
        milliseconds={k: v + ptx.milliseconds[k] for k, v in outcome.milliseconds.items()},
        notes=notes,
    )


def link(
    inputs: Sequence[LinkInput], arch: Arch, toolchain: Toolchain, *, limits: Limits
) -> Compiled | CompileFailure:
    """Link inputs without LTO-IR with NVCC's linker, which adds the device runtime."""
    nvcc = _Nvcc(toolchain, limits)
    files: dict[str, bytes] = {}
    for i, given in enumerate(inputs):
        stem = re.sub(r"\W+", "_", os.path.splitext(os.path.basename(given.name))[0])
        # NVRTC ends its PTX with a NUL, at which ptxas would stop and report a missing end.
        data = given.data.rstrip(b"\0") if given.kind == "ptx" else given.data
        files[f"{i}-{stem}.{_SUFFIXES.get(given.kind, given.kind)}"] = data
    # Wheels have libcudadevrt in lib, but their nvcc searches lib64.
    root = os.path.dirname(os.path.dirname(toolchain.require_nvcc().binary))
    library = nvcc_path(os.path.join(root, "lib"))
    flags = ("--device-link", "--cubin", f"-arch={arch}", f"-L{library}")
    outcome = nvcc.run(flags, files, "cubin")
    if isinstance(outcome, CompileFailure):
        return outcome._replace(kind="link") if outcome.kind == "error" else outcome
    spent = dict(outcome.milliseconds)
    return outcome._replace(milliseconds={"link": spent.pop("compile"), **spent})


class _Nvcc:
    """NVCC for one unit."""

    def __init__(self, toolchain: Toolchain, limits: Limits) -> None:
        self._path = toolchain.require_nvcc().path
        self._host = toolchain.host_compiler or toolchain.not_found("host_compiler")
        self._limits = limits
        self.command: tuple[str, ...] = ()

    def compile(self, unit: TranslationUnit) -> Compiled | CompileFailure:
        """Compile a unit's source, ignoring its name expressions."""
        texts = {path.lstrip("/"): text.encode() for path, text in unit.texts}
        moved = [flag.replace(FOLDER, IN_JOB) for flag in unit.flags]
        # The name is for diagnostics, __FILE__ and line information.
        name = unit.name.replace("\\", "\\\\").replace('"', '\\"')
        files = {_SOURCE: f'#line 1 "{name}"\n{unit.source}\n'.encode(), **texts}
        flags = (*_TARGET_FLAGS[unit.target], *moved, "-MD", "-MF", _TRACE)
        outcome = self.run(flags, files, unit.target)
        if isinstance(outcome, CompileFailure) and units.missing_headers(outcome.log):
            # Without a header, the host compiler writes no rule. With -H, it prints each header that it opens.
            again = self.run((*flags, "-Xcompiler=-H"), files, unit.target)
            if units.missing_headers(again.log):
                outcome = outcome._replace(trace=tuple(_OPENED.findall(again.log)))
        if outcome.trace is None:
            return outcome
        # NVCC also lists the names in #line directives as files that it read.
        named = {
            unit.name,
            *(file for _, file in cxx.renumbered(cxx.readable(unit.source)).values() if file),
        }
        trace = tuple(
            self._plain(path)
            for path in outcome.trace
            if path not in named or (path != unit.name and os.path.isfile(path))
        )
        return outcome._replace(trace=trace)

    def _plain(self, path: str) -> str:
        """Return a path without ``bin/..``: a wheel's NVCC has it in its headers' paths, unlike search directories."""
        root, programs, rest = path.partition("/bin/../")
        is_own = programs and os.path.realpath(f"{root}/bin/..") == os.path.realpath(root)
        return f"{root}/{rest}" if is_own and self._path.startswith(f"{root}/bin/") else path

    def run(
        self, flags: tuple[str, ...], files: dict[str, bytes], kind: str
    ) -> Compiled | CompileFailure:
        """Run NVCC on the files, among which may be headers that were passed as strings."""
        has_host = any(flag.startswith(_HOST_COMPILER_FLAGS) for flag in flags)
        host = () if has_host else ("-ccbin", nvcc_path(self._host))
        inputs = [name for name in files if not name.startswith(IN_JOB)]
        self.command = (self._path, *flags, *host, *inputs, "-o", _RESULT)
        environ = units.nvcc_environ(getattr(own, "environ", None) or os.environ)
        # NVCC searches PATH for its other tools, even if NVCC itself was not found there.
        environ["PATH"] = os.path.dirname(self._path) + os.pathsep + environ.get("PATH", os.defpath)
        job: dict[str, Any] = {
            "command": list(self.command),
            "environ": environ,
            "files": files,
            "results": [_RESULT, _TRACE],
        }
        outcome = pool.run(pool.Job("rtcompile.workers.zygote:run", job), self._limits)
        if isinstance(outcome, pool.Crash):
            death = pool.failure(outcome, self.command, "nvcc", self._limits)
            return death._replace(inputs=files)
        reply = outcome.value
        log = _SCRATCH_NAME.sub("", reply["log"]).replace(IN_JOB, FOLDER)
        if reply["status"] != 0 or _RESULT not in reply["files"]:
            trace = _trace(reply, files) if _TRACE in reply["files"] else None
            return _failure(reply, log, self.command, files)._replace(trace=trace)
        return Compiled(
            code=reply["files"][_RESULT],
            kind=kind,
            lowered_names={},
            log=log,
            trace=_trace(reply, files),
            milliseconds={"queue": outcome.queued * 1e3, "compile": reply["seconds"] * 1e3},
        )


def _trace(reply: dict[str, Any], files: dict[str, bytes]) -> tuple[str, ...]:
    """Return the dependencies in the Makefile rule of ``nvcc -MD``, except rtcompile's own files."""
    rule = reply["files"].get(_TRACE, b"").decode("utf-8", "surrogateescape")
    words = re.findall(r"(?:\\.|[^\s\\])+", rule.replace("\\\n", " ").partition(" :")[2])
    paths = (re.sub(r"\\(.)", r"\1", word).replace("$$", "$") for word in words)
    return tuple(path for path in paths if path not in files)


def _failure(
    reply: dict[str, Any], log: str, command: tuple[str, ...], files: Mapping[str, bytes]
) -> CompileFailure:
    """Return why NVCC failed: it could not start, one of its programs crashed, or it reported an error."""
    milliseconds = reply["seconds"] * 1e3
    if reply["error"]:
        return CompileFailure("start", reply["error"], command, "nvcc")
    # A signal ended NVCC, or one of its programs (128 + signal, or a message).
    status, died = reply["status"], _CHILD_DIED.search(log)
    signal = -status if status < 0 else status - 128 if 128 < status < 192 else 0
    signal = int(died[1]) if died else signal
    if not signal:
        return CompileFailure("error", log, command, "nvcc", milliseconds=milliseconds)
    if signal == _SIGXFSZ and (limit := limit_reached(errno.EFBIG)):
        raise limit
    # If memory runs out, the kernel sends SIGKILL to a compiler but not to its worker.
    kind = "memory" if signal == _SIGKILL else "crash"
    if not died:  # a shell that NVCC started printed at most "Killed"
        log = f"The compiler died due to signal {signal}.\n{log}"
    return CompileFailure(
        kind, log, command, "nvcc", signal=signal, milliseconds=milliseconds, inputs=files
    )

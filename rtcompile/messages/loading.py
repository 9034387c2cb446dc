"""Says why code is not loaded or launched, and why it lacks a kernel or a variable: the mistake, the fix, what it has.

The catalogue of messages, which takes 40 ms to import, is imported for errors of the driver only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rtcompile.cubin import Elf, demangled, kernel_symbols, simple_name, variable_symbols
from rtcompile.errors import DriverError, RtcompileError, warn
from rtcompile.files.sealed import read_argument
from rtcompile.lookup import find as lookup
from rtcompile.request import cxx
from rtcompile.request.object_code import KERNEL_MARKS, ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.request.values import Arch

_MOST_LISTED = 10


def absent(
    kind: str, name: str, code: bytes, *, program: str, source: str, lowered: Mapping[str, str]
) -> str:
    """Return why a module has no "kernel" or "variable" of a name: the mistake, the fix, and what it has."""
    symbols = kernel_symbols(code) if kind == "kernel" else variable_symbols(code)
    first, fix = _why(kind, name, symbols, lowered, _in_source(source))
    expressions = {symbol: f"'{expression}'" for expression, symbol in lowered.items()}
    listed = [expressions.get(symbol) or demangled(symbol) for symbol in symbols[:_MOST_LISTED]]
    more = f" and {len(symbols) - _MOST_LISTED} more" if len(symbols) > _MOST_LISTED else ""
    has = f"the {kind}s: {', '.join(listed)}{more}" if symbols else f"no {kind}s."
    return f"{program} has no {kind} {name!r}{first}\n  hint: {fix}\n  It has {has}"


def warn_without_kernels(request: CompileRequest, code: ObjectCode) -> None:
    """Warn if the code of a source with ``__global__`` functions has no kernel.

    A source of device functions or variables has none on purpose, also beside a kernel that is only declared.
    """
    found = _in_source(request.source)
    if any(found.values()) or (found and not variable_symbols(code.code)):
        warn(f"{request.name}: {no_kernels(code, request.source)}")


def no_kernels(code: ObjectCode, source: str) -> str:
    """Return why a cubin or PTX has no kernel; "" if it has one, and for other code."""
    mark = KERNEL_MARKS.get(code.kind)
    if mark is None or mark in code.code:
        return ""
    found = _in_source(source)
    templates = [name for name, is_template in found.items() if is_template]
    if templates:
        return (
            f"The code contains no kernel: {templates[0]!r} is a template, and nothing instantiates "
            f"it. Name the instance: name_expressions=['{templates[0]}<float>']."
        )
    return "The code contains no kernel: " + (
        "those in the source are only declared, or excluded by an #if."
        if found
        else "the source defines no __global__ function."
    )


def _in_source(source: str) -> dict[str, bool]:
    """Return the kernels that a source mentions, and whether each is a template."""
    found: dict[str, bool] = {}
    for kernel in cxx.kernels(source):
        found[kernel.name] = found.get(kernel.name, False) or kernel.template is not None
    return found


def _why(  # a line for each mistake
    kind: str,
    name: str,
    symbols: Sequence[str],
    lowered: Mapping[str, str],
    in_source: Mapping[str, bool],
) -> tuple[str, str]:
    """Return the end of the message after the missing name, and the fix."""
    plain = name.partition("<")[0].rpartition("::")[2].strip()
    is_kernel = kind == "kernel"
    mangled = [symbol for symbol in symbols if simple_name(symbol) == plain and symbol != plain]
    instances = [symbol for symbol in mangled if is_kernel and "<" in demangled(symbol)]
    if is_kernel and "<" in name:
        given = f"name_expressions has {', '.join(map(repr, lowered))}" if lowered else "none is"
        return (
            f": a C++ name is found only if it is among name_expressions; {given}",
            f"Compile with name_expressions=['{name}'].",
        )
    if instances:
        known = next((e for e, symbol in lowered.items() if symbol in instances), "")
        ask = f"get_function('{known}')" if known else f"name_expressions=['{name}<float>']"
        return ": it is a template", f"Ask for an instance by its whole name: {ask}."
    if mangled:
        declared = demangled(mangled[0])
        how = 'extern "C" __global__' if is_kernel else 'extern "C"'
        expression = declared.partition("(")[0] if is_kernel else f"&{declared}"
        return (
            f": its {declared} is C++, whose names are mangled",
            f"Declare it {how}, or compile with name_expressions=['{expression}'].",
        )
    if not is_kernel:
        return "", _nearest(name, symbols, lowered) or (
            "A variable that no kernel uses, or that is static, may be gone: name it in "
            "name_expressions to keep it."
        )
    if in_source.get(plain):
        return (
            ": it is a template, and nothing instantiates it",
            f"Compile with name_expressions=['{name}<float>'] (its real arguments) and ask for "
            "that name.",
        )
    if plain in in_source:
        fix = "Is it only declared, static, or excluded by an #if?"
        return ", although its source names it", fix
    return "", _nearest(name, symbols, lowered) or (
        "Ask for one of those that it has." if symbols else "Does the source define it?"
    )


def _nearest(name: str, symbols: Sequence[str], lowered: Mapping[str, str]) -> str:
    import difflib

    names = [*map(simple_name, symbols), *lowered]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"Is {close[0]!r} meant?" if close else ""


# --- Errors of the driver ---------------------------------------------------------------------------


def of_load(error: Any, program: str, code: bytes | str = b"") -> DriverError:
    """Return the error for a program that the driver did not load; `code` is its code, or its path."""
    from rtcompile.messages import catalogue
    from rtcompile.messages.facts import BuildContext

    if isinstance(error, DriverError):  # there is no device, as its message says
        return error
    capability = None
    with suppress(RtcompileError):
        capability = lookup.compute_capability()
    if isinstance(code, str):
        path, code = code, b""
        with suppress(RtcompileError):  # the driver's message names a file that does not exist
            code = read_argument(path, path)
    arch: Arch | None
    try:
        arch = Elf(code).arch()
    except ValueError:
        target = re.search(rb"^\s*\.target\s+(sm_\d+[af]?)", code, re.MULTILINE)
        arch = Arch.parse(target[1].decode()) if target else None
    compiled_for = "" if arch is None else f" (compiled for {arch})"
    first = f"{program}{compiled_for} was not loaded: {error}"
    hint = catalogue.hint_for(str(error), BuildContext(arch=arch, capability=capability))
    return DriverError(f"{first}\n  hint: {hint}" if hint else first, error.status)


def of_launch(kernel: Any, message: str, status: int, block: Any, shared: Any) -> DriverError:
    """Return the error for a launch of a `RawKernel` that the driver rejected with `message`."""
    from rtcompile.messages import catalogue

    problems = []
    with suppress(Exception):  # every query fails in a context that an earlier error destroyed
        threads, most = math.prod(map(int, block)), kernel.max_threads_per_block
        static, dynamic = kernel.shared_size_bytes, kernel.max_dynamic_shared_size_bytes
        if isinstance(shared, int) and shared > dynamic:
            problems.append(
                f"shared_mem={shared} is more than the {dynamic} bytes of dynamic shared memory "
                f"that the kernel may have now ({static} are static); set "
                f"kernel.max_dynamic_shared_size_bytes = {shared} first."
            )
        if threads > most:
            problems.append(
                f"{threads} threads in a block are more than the {most} that the kernel's registers "
                "and __launch_bounds__ allow; take smaller blocks."
            )
    hint = " ".join(problems) or catalogue.hint_for(message)
    first = f"the launch of {kernel.name} was rejected: {message}"
    return DriverError(f"{first}\n  hint: {hint}" if hint else first, status)

"""Decides what to do after NVRTC refused a source: use NVCC, add a flag, or show the error. Pure.

The messages' texts decide, since NVRTC gives its errors no numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from rtcompile.messages import missing_includes, spaces
from rtcompile.messages.diagnostics import Diagnostic, parse
from rtcompile.messages.line_directives import line_in_source


class HostDeclarations(Protocol):
    """What the headers that NVCC reads declare; `toolkit.declared` searches those of this machine."""

    def runtime(self, name: str) -> bool:
        """Say whether CUDA's runtime declares `name`."""

    def driver(self, name: str) -> bool:
        """Say whether the CUDA driver's header declares `name`."""

    def host_header(self, name: str) -> bool:
        """Say whether `name` is a header of the host compiler or its system."""

    def std(self, name: str) -> bool:
        """Say whether `name` is in namespace std."""

    def c_library(self, name: str) -> bool:
        """Say whether `name` is the C library's."""

    def brought_along(self, name: str) -> bool:
        """Say whether `name` is a type or macro that NVCC knows without any include."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about a refusal."""

    action: str  # "nvcc", "add-flags" (NVRTC with `flags`), or "error" (show NVRTC's errors)
    reason: str  # one line, for the log and `BuildInfo.why`
    flags: tuple[str, ...] = ()  # options to add, for NVCC too


class _Case(NamedTuple):
    """An error, and what else is known of the build."""

    error: Diagnostic
    source: str
    name: str
    options: Sequence[str]
    package_of: Callable[[str], object]
    declared: HostDeclarations

    @property
    def in_device_code(self) -> bool:
        """Whether the error is in code that NVCC would compile for the device; not so in headers."""
        line = line_in_source(self.error, self.source, self.name)
        return line > 0 and spaces.says_device(self.source, line, self.error.column)


_Test = Callable[[re.Match[str], _Case], bool]


@dataclass(frozen=True, slots=True)
class _Rule:
    """A pattern of messages, and the action to take where `holds` is true of the error.

    In `reason` and `flags` ``{0}`` is the pattern's group, a name, and ``{std_header}`` and
    ``{global_header}`` are the standard headers that bring it.
    """

    pattern: re.Pattern[str]
    action: str
    reason: str
    holds: _Test
    flags: tuple[str, ...]

    def apply(self, case: _Case) -> Decision | None:
        """Return what the rule says of an error, None if it says nothing."""
        match = self.pattern.search(case.error.message)
        if match is None or not self.holds(match, case):
            return None
        groups = match.groups()
        name = groups[0] if groups else ""
        headers = {
            "std_header": missing_includes.STD.get(name, ""),
            "global_header": missing_includes.GLOBAL.get(name, ""),
        }
        flags = tuple(flag.format(*groups, **headers) for flag in self.flags)
        return Decision(self.action, self.reason.format(*groups, **headers), flags)


def _host_code(_: re.Match[str], case: _Case) -> bool:
    return not case.in_device_code


def _device_code_or_header(_: re.Match[str], case: _Case) -> bool:
    """Whether the error is in device code, or in a header, whose text is not available here."""
    in_header = line_in_source(case.error, case.source, case.name) <= 0
    return in_header or case.in_device_code


def _host_header(match: re.Match[str], case: _Case) -> bool:
    return case.package_of(match[1]) is None and case.declared.host_header(match[1])


def _packaged(match: re.Match[str], case: _Case) -> bool:
    return case.package_of(match[1]) is not None


def _runtime_function(match: re.Match[str], case: _Case) -> bool:
    return case.declared.runtime(match[1])


def _driver_function(match: re.Match[str], case: _Case) -> bool:
    return case.declared.driver(match[1])


def _in_std(match: re.Match[str], case: _Case) -> bool:
    return case.declared.std(match[1])


def _qualified_by_std(_: re.Match[str], case: _Case) -> bool:
    """Whether the caret's name is looked for in std, not cuda::std: NVCC has no more in the latter."""
    line, __, caret = case.error.excerpt.partition("\n")
    at = caret.find("^")
    name = re.match(r"\w+", line[at:])
    return (
        name is not None
        and re.search(r"(?<![\w:])(?:::)?std\s*::\s*(?:\w+\s*::\s*)*$", line[:at]) is not None
        and case.declared.std(name[0])
    )


def _in_c_library(match: re.Match[str], case: _Case) -> bool:
    return not case.in_device_code and case.declared.c_library(match[1])


def _asks_for_extended_lambda(_: re.Match[str], case: _Case) -> bool:
    return any("extended-lambda" in option for option in case.options)


def _in_host_library(_: re.Match[str], case: _Case) -> bool:
    wrong_use = case.error.message.startswith(("static assertion", "#error"))
    return not wrong_use and re.search(r"/(?:thrust|cub/device)/", case.error.file) is not None


def _rule(
    pattern: str,
    action: str,
    reason: str,
    holds: _Test = lambda match, case: True,
    flags: tuple[str, ...] = (),
) -> _Rule:
    return _Rule(re.compile(pattern), action, reason, holds, flags)


_UNKNOWN = r'(?:identifier|the global scope has no) "({})"'
_NO_MEMBER = r'namespace "std" has no (?:actual )?member (?:\w+ )?"(\w+)"'
_NO_FILE = r'(?:cannot|could not) open source file "([^"]+)"'
_LAUNCH = r"device-side kernel launch could not be processed"

# The first row that fits an error and holds for it counts. An error without a row is the user's.
_RULES = (
    _rule(
        r"explicitly marked as a __host__ function is not allowed in JIT mode"
        r"|is considered a host (?:function|variable)"
        r'|attribute "__host__" does not apply here',
        "nvcc",
        "NVRTC compiles no host code",
    ),
    _rule(
        r"[Nn]ot supported (?:when compiling )?(?:with|by|in|under) (?:NVRTC|nvrtc)",
        "nvcc",
        "a header excludes NVRTC",
    ),
    _rule(_NO_FILE, "nvcc", "NVRTC has no <{0}>, a header of the host compiler", _host_header),
    _rule(_NO_FILE, "error", "<{0}> is of a package that is not installed", _packaged),
    # Device functions that NVCC declares without being asked.
    _rule(
        _UNKNOWN.format(
            r"cudaGridDependencySynchronize|cudaTriggerProgrammaticLaunchCompletion"
            r"|cudaGetCurrentGraphExec|cudaGraphSetConditional|cudaGraphKernelNode\w+"
        ),
        "add-flags",
        "NVRTC does not include by itself the header of {0}",
        _device_code_or_header,
        ("-include=cuda_device_runtime_api.h",),
    ),
    _rule(
        _UNKNOWN.format(r"cuda[A-Z]\w*"),
        "nvcc",
        "{0} is the host's CUDA runtime",
        _runtime_function,
    ),
    _rule(_UNKNOWN.format(r"cu[A-Z]\w*"), "nvcc", "{0} is the CUDA driver's", _driver_function),
    _rule(
        _NO_MEMBER,
        "add-flags",
        "std::{0} is in <{std_header}>, which is not included",
        lambda match, case: match[1] in missing_includes.STD,
        ("-include={std_header}",),
    ),
    _rule(
        _UNKNOWN.format(r"\w+"),
        "add-flags",
        "{0} is in <{global_header}>, which is not included",
        lambda match, case: match[1] in missing_includes.GLOBAL,
        ("-include={global_header}",),
    ),
    _rule(
        _NO_MEMBER,
        "nvcc",
        "NVRTC has no std::{0}",
        _in_std,
    ),
    _rule(
        r'name followed by "::" must be a class or namespace name'
        r'|namespace "cuda::std[\w:]*" has no (?:actual )?member',
        "nvcc",
        "NVRTC lacks a part of namespace std",
        _qualified_by_std,
    ),
    _rule(_UNKNOWN.format(r"\w+"), "nvcc", "{0} is the host's C library", _in_c_library),
    _rule(
        _UNKNOWN.format(r"\w+"),
        "nvcc",
        "{0} is of the host's headers",
        lambda match, case: case.declared.brought_along(match[1]),
    ),
    _rule(
        _UNKNOWN.format(r"__[A-Z]+(?:_[A-Z0-9]+)*__"), "nvcc", "{0} is a macro of the host compiler"
    ),
    _rule(
        _UNKNOWN.format(r"__builtin_va_\w+"), "nvcc", "NVRTC has no variable arguments", _host_code
    ),
    _rule(
        r"dynamic initialization is not supported for a (?:function-scope static )?__device__",
        "nvcc",
        "a host object is initialised at run time",
        _host_code,
    ),
    _rule(
        r"device code does not support exception handling"
        r"|cannot use thread_local specifier for"
        r"|<typeinfo> must be included before typeid is used",
        "nvcc",
        "NVRTC takes host code for device code",
        _host_code,
    ),
    _rule(_LAUNCH, "nvcc", "host code launches a kernel", _host_code),
    _rule(_LAUNCH, "add-flags", "device code launches a kernel", flags=("-rdc=true",)),
    _rule(
        r'128-bit .* type is only supported .*"(--device-\w+)"',
        "add-flags",
        "a 128-bit type needs {0}",
        flags=("{0}",),
    ),
    _rule(
        r"annotation on lambda requires --extended-lambda",
        "nvcc",
        "NVRTC has no annotated lambdas",
        _asks_for_extended_lambda,
    ),
    # Any error inside these headers follows from their being host code, which no shim can mend.
    _rule(r"", "nvcc", "Thrust and CUB's device-wide algorithms are host code", _in_host_library),
)


# These decide whatever other errors there are: the others follow from them, with NVCC too.
_FINAL_RULES = (
    _rule(
        r"requires at least C\+\+ ?\d\d",
        "error",
        "a header needs a newer -std than the options ask for",
    ),
)


def decide(
    log: str,
    *,
    source: str = "",
    name: str = "kernel.cu",
    options: Iterable[str] = (),
    package_of: Callable[[str], object] = lambda header: None,
    declared: HostDeclarations,
) -> Decision:
    """Decide what to do about a source that NVRTC refused.

    One error that is a limit of NVRTC sends the whole source to NVCC, since only NVCC can report
    what else is wrong with it. Without such an error the first error decides. An error in a device
    function may be correct host code; `declared` has the names that NVCC would know.
    """
    given = tuple(options)
    errors = [each for each in parse(log) if each.severity in ("error", "fatal")]
    cases = [_Case(each, source, name, given, package_of, declared) for each in errors]
    for case in cases:
        for rule in _FINAL_RULES:
            if (verdict := rule.apply(case)) is not None:
                return verdict
    verdicts = [_verdict(case) for case in cases]
    for verdict in verdicts:
        if verdict.action == "nvcc":
            # NVCC needs the missing flags too: for example both need -rdc=true for a device-side
            # launch.
            return replace(verdict, flags=_flags(verdicts))
    if not verdicts:
        return _MISTAKE
    if verdicts[0].action == "add-flags":
        return replace(verdicts[0], flags=_flags(verdicts))
    return verdicts[0]


def decide_nvcc(log: str) -> Decision:
    """Decide what to do about a source that NVCC refused: add missing flags, or show the error."""
    for pattern, reason, flag in _NVCC_LACKS:
        if pattern.search(log):
            return Decision("add-flags", reason, (flag,))
    return _MISTAKE


# Flags whose absence only NVCC reports, because NVRTC stops at the first header it does not have.
_NVCC_LACKS = (
    (
        re.compile(r"kernel launch from __device__ or __global__ functions requires separate comp"),
        "device code launches a kernel",
        "-rdc=true",
    ),
)


def _flags(verdicts: Iterable[Decision]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(flag for each in verdicts for flag in each.flags))


_MISTAKE = Decision("error", "the source is at fault")


def _verdict(case: _Case) -> Decision:
    for rule in _RULES:
        decision = rule.apply(case)
        if decision is not None:
            return decision
    return _MISTAKE

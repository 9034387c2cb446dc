"""Decides by NVRTC's messages, for `build.miss`: use NVCC, add a flag, or show the error. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rtcompile.diagnostic import Diagnostic
from rtcompile.messages import facts
from rtcompile.messages.diagnostics import line_in_source, parse
from rtcompile.named import NamedTuple
from rtcompile.request import cxx

if TYPE_CHECKING:
    from rtcompile.messages.available import Declared


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a rejected source."""

    action: str  # "nvcc", "add-flags" (compile again with `flags`), "error" (show the errors), or "stop" (show them in any case)
    reason: str  # one line, for the log and `BuildInfo.why`
    flags: tuple[str, ...] = ()  # options to add, for NVCC too


_MOST_SEARCHED = 8 << 20  # characters: the source is searched for each error


class _Case(NamedTuple):
    """An error and its build."""

    error: Diagnostic
    source: str
    name: str
    options: Sequence[str]
    package_of: Callable[[str], object]
    declared: Declared

    @property
    def in_device_code(self) -> bool:
        """Whether the error is in code that NVCC would compile for the device; False in headers."""
        line = line_in_source(self.error, self.source, self.name)
        return line > 0 and is_device_code(self.source, line, self.error.column)


def _by_rule(rule: Mapping[str, str], case: _Case) -> Decision | None:
    """Return the decision of a section of ``fallback.ini`` about an error; None if it does not apply."""
    match = re.search(rule["pattern"].replace("\n", ""), case.error.message)
    name = match[1] if match is not None and match.re.groups else ""
    if match is None or not all(_CONDITIONS[each](name, case) for each in rule["when"].split()):
        return None
    std, header = facts.STD.get(name, ""), facts.GLOBAL.get(name, "")
    reason, *flags = (
        text.format(name, std_header=std, global_header=header)
        for text in (rule["reason"], *rule["flags"].split())
    )
    return Decision("add-flags" if flags else rule["action"], reason, tuple(flags))


def _of_device_runtime(name: str, case: _Case) -> bool:
    """Whether the name is a function of CUDA's runtime for device code.

    A header also has code for the host: there, the name of a host function does not count.
    """
    in_header = line_in_source(case.error, case.source, case.name) <= 0
    fits = not case.declared.host_api(name) if in_header else case.in_device_code
    return fits and case.declared.device_runtime(name)


def _is_held_by_device_code(header: str, source: str) -> bool:
    """Whether a function for the device alone has a variable of the host class for which the header is named.

    NVCC rejects it, since constructing one calls a host function.
    """
    variable = re.compile(rf"\bstd\s*::\s*{re.escape(header)}\s*<[^;&*()]*>\s*\w+\s*[;({{=]")
    heads = _declarations(source, [each.start() for each in variable.finditer(source)])
    return any(
        cxx.has_word(head, ("__global__", "__device__")) and not cxx.has_word(head, ("__host__",))
        for head in heads
    )


def _qualified_by_std(_: str, case: _Case) -> bool:
    """Whether the name at the caret is one of std, or cuda::std, that NVCC knows."""
    line, __, caret = case.error.excerpt.partition("\n")
    at = caret.find("^")
    name = re.match(r"\w+", line[at:])
    return (
        name is not None
        and re.search(r"(?<![\w:])(?:::)?std\s*::\s*(?:\w+\s*::\s*)*$", line[:at]) is not None
        and case.declared.std(name[0])
    )


def _includes(_: str, case: _Case) -> bool:
    """Whether the source or its options include a header."""
    options = ("include=", "pre-include=")
    given = any(option.lstrip("-").startswith(options) for option in case.options)
    return given or any(each.name == "include" for each in cxx.Text(case.source).directives())


def _in_host_library(_: str, case: _Case) -> bool:
    wrong_use = case.error.message.startswith(("static assertion", "#error"))
    return not wrong_use and re.search(r"/(?:thrust|cub/device)/", case.error.file) is not None


def _is_declared_nowhere(case: _Case, was_read: Sequence[str]) -> bool:
    """Whether device code uses a name that nothing declares: neither the source above it nor any header.

    Headers are those that NVRTC read, and those that NVCC would read besides.
    """
    match = re.search(_UNKNOWN, case.error.message)
    if match is None or not case.in_device_code:
        return False
    line = line_in_source(case.error, case.source, case.name)
    above = "\n".join(case.source.split("\n")[: line - 1])
    return not (cxx.has_word(above, (match[1],)) or case.declared.anywhere(match[1], was_read))


_UNKNOWN = r'(?:identifier|the global scope has no) "(\w+)"'
# What a section of ``fallback.ini`` may require of an error, by the name in its message.
_CONDITIONS: dict[str, Callable[[str, _Case], bool]] = {
    "host-code": lambda _, case: not case.in_device_code,
    "includes": _includes,
    "packaged": lambda name, case: case.package_of(name) is not None,
    "unpackaged": lambda name, case: case.package_of(name) is None,
    "host-header": lambda name, case: case.declared.host_header(name),
    "not-in-kernels": lambda name, case: not _is_held_by_device_code(name, case.source),
    "device-runtime": _of_device_runtime,
    "host-api": lambda name, case: case.declared.host_api(name),
    "std": lambda name, case: case.declared.std(name),
    "c-library": lambda name, case: case.declared.c_library(name),
    "brought-along": lambda name, case: case.declared.brought_along(name),
    "std-header": lambda name, _: name in facts.STD,
    "global-header": lambda name, _: name in facts.GLOBAL,
    "behind-std": _qualified_by_std,
    "extended-lambda": lambda _, case: any("extended-lambda" in each for each in case.options),
    "host-library": _in_host_library,
}
_TABLE = facts.read_sections("fallback.ini")
_RULES = [dict(_TABLE[name]) for name in _TABLE.sections()]


def decide(
    log: str,
    *,
    source: str = "",
    name: str = "kernel.cu",
    options: Iterable[str] = (),
    package_of: Callable[[str], object] = lambda _: None,
    declared: Declared,
    was_read: Sequence[str] = (),
) -> Decision:
    """Decide what to do about a source that NVRTC rejected; `was_read` are the headers that NVRTC read."""
    # A single limit of NVRTC is enough to use NVCC, unless another error is one for NVCC too.
    given, source = tuple(options), cxx.readable(source)
    errors = [each for each in parse(log) if each.severity in ("error", "fatal")]
    decisive = errors[: max(1, _MOST_SEARCHED // (len(source) + 1))]
    cases = [_Case(each, source, name, given, package_of, declared) for each in decisive]
    found = (filter(None, (_by_rule(rule, case) for rule in _RULES)) for case in cases)
    verdicts = [next(each, _MISTAKE) for each in found] or [_MISTAKE]
    chosen = min(verdicts, key=lambda each: _FIRST.get(each.action, len(_FIRST)))
    if chosen.action in ("error", "stop"):
        return chosen
    mistakes = (each for each, its in zip(cases, verdicts, strict=False) if its is _MISTAKE)
    if any(_is_declared_nowhere(each, was_read) for each in mistakes):
        return _MISTAKE
    # NVCC needs the missing flags too: for example both need -rdc=true for a device-side launch.
    flags = dict.fromkeys(flag for each in verdicts for flag in each.flags)
    return replace(chosen, flags=tuple(flags))


def decide_nvcc(log: str) -> Decision:
    """Decide what to do about a source that NVCC rejected: add a flag, or show the error."""
    if "calling a constexpr __host__ function" in log:
        flags = ("--expt-relaxed-constexpr",)
        return Decision("add-flags", "device code calls a constexpr function", flags)
    # NVRTC does not get this far: it stops at the first missing header.
    if "kernel launch from __device__ or __global__ functions requires separate comp" in log:
        return Decision("add-flags", "device code launches a kernel", ("-rdc=true",))
    return _MISTAKE


_MISTAKE = Decision("error", "the source is at fault")
_FIRST = {"stop": 0, "nvcc": 1}  # the actions that precede those of other errors


# An unmarked function is device code for NVRTC and host code for NVCC, so a line can be wrong for NVRTC and correct
# for NVCC.
_MARKS = (
    "__device__",
    "__global__",
    "__constant__",
    "__shared__",
    "__managed__",
    "__grid_constant__",
)
_SCOPE = re.compile(r"\b(?:namespace|class|struct|union|extern)\b")


def is_device_code(source: str, line: int, column: int) -> bool:
    """Whether the outermost declaration around a line and column (from 1) is marked for the device."""
    begin = sum(len(text) + 1 for text in source.split("\n")[: line - 1])
    head = next(_declarations(source, [begin + max(0, column - 1)]))
    return cxx.has_word(head, _read(source)[1])


@functools.lru_cache(maxsize=2)  # needed for each error of a source
def _read(source: str) -> tuple[str, list[str]]:
    """Return the code of a source, without literals and directives, and its marks of device code."""
    marks = [*_MARKS]
    for directive in cxx.Text(source).directives():
        body = directive.body
        if directive.name == "define" and cxx.has_word(body, ("__device__", "__global__")):
            marks.append(cxx.word_at(body, 0))
    return cxx.blanked(source, literals=True, directives=True), marks


def _declarations(source: str, offsets: Sequence[int]) -> Iterator[str]:
    """Yield the text before the body of the outermost declaration around each offset, other than namespaces and classes."""
    for heads in cxx.around(_read(source)[0], offsets):
        yield next((head for head in heads if not _SCOPE.search(head) or "(" in head), "")

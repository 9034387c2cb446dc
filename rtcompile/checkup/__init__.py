"""`rtcompile doctor` checks everything that builds need, and `rtcompile explain` explains messages: both as functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from rtcompile import toolkit
from rtcompile.errors import InvalidRequest, RtcompileError, public, shown
from rtcompile.messages import catalogue, diagnostics
from rtcompile.messages.available import device_functions, missing_header
from rtcompile.messages.facts import BuildContext
from rtcompile.request import values
from rtcompile.request.values import Arch
from rtcompile.settings import Settings

if TYPE_CHECKING:
    from rtcompile.checkup.checks import Check
    from rtcompile.diagnostic import Diagnostic


@public
def explain(
    message: str | BaseException, *, arch: str | Arch | None = None
) -> tuple[Diagnostic, ...]:
    """Explain a message of a compiler, a linker, the driver or the dynamic loader.

    Parameters
    ----------
    message : str or exception
        A message, a whole log, a Python traceback, or an exception.
    arch : str or Arch, optional
        The architecture that was compiled for, if the message depends on it.

    Returns
    -------
    tuple of Diagnostic
        The messages that were found, errors first; `hint` has the cause and what to do, and is empty
        if nothing is known.

    Raises
    ------
    InvalidRequest
        `message` is neither a str nor an exception, or `arch` is invalid.

    Examples
    --------
    >>> print(rtcompile.explain("CUDA_ERROR_STUB_LIBRARY")[0].hint)
    CUDA_ERROR_STUB_LIBRARY: libcuda.so of a toolkit's stubs folder was loaded...
    """
    if isinstance(message, BaseException):
        message = f"{type(message).__name__}: {message}"
    if not isinstance(message, str):
        raise InvalidRequest(f"message must be a str or an exception, not {shown(message)}")
    toolchain = toolkit.current()
    context = BuildContext(
        arch=Arch.parse(arch) if isinstance(arch, str) else arch,
        versions=toolchain.versions,
        search=toolchain.search,
        package_of=partial(missing_header, toolchain=toolchain),
        device_names=partial(device_functions, toolchain),
    )
    return catalogue.annotate(diagnostics.parse(message_in(message)), context)


@public
def doctor(*, probes: bool = True) -> tuple[Check, ...]:
    """Check everything that builds need: compilers, headers, versions, the device, the cache.

    Parameters
    ----------
    probes : bool
        Also compile a few kernels, and launch one where there is a device.

    Returns
    -------
    tuple of Check
        Each has a `name`, a `status` ("ok", "note", "warning", "error"), a `detail`, and in `hint` what
        to do.

    Examples
    --------
    >>> {check.status for check in rtcompile.doctor(probes=False)} <= {"ok", "note", "warning", "error"}
    True
    """
    return tuple(examine(probes=values.truth("probes", probes)))


def examine(*, probes: bool = True) -> Iterator[Check]:
    """Yield each check of this environment when it is done; `probes` adds compiling sources and a launch."""
    from rtcompile.checkup import checks, probing

    yield from checks.system()
    try:
        settings = Settings.from_environ()
    except RtcompileError as error:
        step = "Correct the variable, or unset it."
        yield checks.Check("settings", "error", str(error), step)
        settings = Settings.from_environ({})
    toolchain = toolkit.current(settings)
    parts = {
        "toolkit": partial(checks.toolkit_parts, toolchain),
        "device": partial(checks.devices, toolchain),
        "packages": partial(checks.packages, toolchain),
        "cache": partial(checks.cache_checks, settings),
        "shared stores": partial(checks.shared_stores, settings),
    }
    if probes:
        parts["workers"] = partial(probing.workers, settings, toolchain)
        parts["probes"] = partial(probing.probes, settings, toolchain)
    for name, check in parts.items():
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001  # a broken installation can raise anything
            yield checks.Check(name, "error", f"the check itself failed: {error!r}")


def verdict(checks: Iterable[Check]) -> int:
    """Return the exit code: 0 without problems, 1 with warnings, 2 with errors."""
    return max(({"error": 2, "warning": 1}.get(each.status, 0) for each in checks), default=0)


_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# The last part of a traceback of Python or IPython begins with the error's class, dotted or not.
_RAISED = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*"
    r"(?:Error|Exception|Request|NotFound|Arch|Disabled|Crashed|Timeout)(?:: |$)",
    re.MULTILINE,
)
_TRACEBACK = re.compile(
    r"^(?:Traceback \(most recent call last\):|-{40,}$|During handling of the above|"
    r"The above exception was|\s*File \"[^\"]*\", line \d+)",
    re.MULTILINE,
)
# The hint that rtcompile added to the compiler's message; `explain` computes it again.
_OWN_HINT = re.compile(r"^  hint: .*(?:\n {8}\S.*)*\n?", re.MULTILINE)
_ALSO = re.compile(r"^  also: ", re.MULTILINE)


def message_in(text: str) -> str:
    """Return the message in a pasted traceback, coloured or not; any other text unchanged."""
    text = _ESCAPE.sub("", text).replace("\r\n", "\n")
    raised = list(_RAISED.finditer(text))
    if raised and (_TRACEBACK.search(text) or text.lstrip().startswith(raised[0][0])):
        text = text[raised[-1].end() :]
        after = _TRACEBACK.search(text)
        text = text[: after.start()] if after else text
    return _ALSO.sub("", _OWN_HINT.sub("", text))

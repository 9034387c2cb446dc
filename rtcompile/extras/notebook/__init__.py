"""CUDA C++ in notebooks: ``%load_ext rtcompile``, then ``%%cuda``, ``%%cuda_header`` and ``%cuda_options``."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import replace
from itertools import chain
from typing import Any

import rtcompile
from rtcompile import CompileRequest, InvalidRequest, ObjectCode, styling
from rtcompile.errors import public
from rtcompile.extras.notebook.kernels import PROGRAM, CellKernel, CellModule, CellTemplate
from rtcompile.messages import render
from rtcompile.types import Report

try:
    from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "IPython":
        raise
    raise rtcompile.RtcompileError("%%cuda needs IPython: pip install ipython") from None

_REPORT_SPILLS = "-Xptxas=-v"
_QUIET_SECONDS = 0.5
_SECONDS_BETWEEN_CHANGES = 0.25


def read(text: str) -> tuple[dict[str, Any], str]:
    """Return a ``%%cuda`` line as arguments of a `CompileRequest`, and the name for the cell's module or ``""``.

    An option without its value, or a quote without an end, is an error.
    """
    try:
        words = iter(shlex.split(text))
    except ValueError as error:
        raise InvalidRequest(f"%%cuda {text}: {error}") from None
    given: dict[str, list[str]] = {"--arch": [], "--module": [], "-n": []}
    options: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if name not in given:
            options.append(word)
            continue
        value = value if equals else next(words, "")
        if not value:
            raise InvalidRequest(f"%%cuda {text}: {name} needs a value")
        given[name].append(value)
    archs, modules, names = given.values()
    arch = archs[-1] if archs else None  # a later one replaces that of %cuda_options
    arguments = {"arch": arch, "name_expressions": names, "options": options}
    return arguments, modules[-1] if modules else ""


def build(request: CompileRequest) -> ObjectCode:
    """Return the build of `request`; an interrupt of the cell kills its compiler."""
    begin = time.monotonic()
    (future,) = rtcompile.submit_many([request])
    try:
        if wait([future], timeout=_QUIET_SECONDS).not_done:
            with styling.changing_line() as show:
                while wait([future], timeout=_SECONDS_BETWEEN_CHANGES).not_done:
                    show(f"compiling: {time.monotonic() - begin:.0f} s")
    except BaseException:
        future.cancel()
        raise
    with warnings.catch_warnings():
        # Another cell may use a template that nothing in its own cell instantiates.
        warnings.simplefilter("ignore", rtcompile.RtcompileWarning)
        return future.result()


# --- ``%%cuda`` -----------------------------------------------------------------------------------


@magics_class
class CudaMagics(Magics):  # type: ignore[misc]
    """CUDA C++ in cells."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._defaults = ""
        self._headers: dict[str, str] = {}  # of this notebook's header cells

    @cell_magic  # type: ignore[untyped-decorator]
    @public
    def cuda(self, line: str, cell: str) -> CellModule:
        """Compile a cell of CUDA C++ and bind its kernels to their names.

        %%cuda [--arch sm_90a] [--module NAME] [-n 'f<float>'] [options]

        A kernel is called like CuPy's: ``scale((8,), (128,), (x, 2.0, n))``. Choose an instance of a
        template first, by ``scale["float"]`` or here by ``-n``. ``--module`` also binds the cell's
        module to a name. All other options go to the compiler: ``-DN=4 -I include -lineinfo
        --use_fast_math``.
        """
        with _readable():
            arguments, name = read(f"{self._defaults} {line}".strip())
            arguments["options"].append(_REPORT_SPILLS)
            arguments |= {"headers": dict(self._headers), "name": PROGRAM}
            # Editors count the line of the magic too.
            module = CellModule(f"\n{cell}", arguments, build)
        self.shell.push(dict(module))
        if name:
            self.shell.push({name: module})
        return module

    @cell_magic  # type: ignore[untyped-decorator]
    @public
    def cuda_header(self, line: str, cell: str) -> None:
        """Keep a cell as a header that later cells include.

        %%cuda_header shapes.cuh
        """
        with _readable():
            name = line.strip().strip("\"'<>")
            if not name or os.path.isabs(name) or ".." in name.split("/"):
                raise InvalidRequest(
                    f"%%cuda_header {name}: give a name to include it by: shapes.cuh"
                )
            self._headers[name] = cell

    @line_magic  # type: ignore[untyped-decorator]
    @public
    def cuda_options(self, line: str) -> None:
        """Set the options with which every later ``%%cuda`` begins; an empty line removes them.

        %cuda_options --arch sm_90a --use_fast_math
        """
        with _readable():
            read(line)
            self._defaults = line


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Show errors with options spelled as in a cell, and an interrupt as one line."""
    try:
        yield
    except (KeyboardInterrupt, rtcompile.RtcompileError) as error:
        text = "Interrupted: nothing is being compiled any longer."
        if isinstance(error, rtcompile.RtcompileError):
            text = styling.as_traceback(render(error, frontend="cell"))
        # IPython calls this method of an exception instead of formatting a traceback.
        error._render_traceback_ = lambda: text.split("\n")  # type: ignore[method-assign,union-attr]
        raise


# --- How IPython displays them -----------------------------------------------------------------------


def styled(shown: Any) -> styling.Styled:
    """Return a module, a kernel or a template as a few lines of text."""
    title, note = _card(shown)
    table = [styling.table(*report.rows()) for report in _reports(shown)]
    below = [(("", "\n"), *warning) for warning in _warnings(shown)]
    return ("location", title), ("", "\n".join(["", *table, *note])), *chain(*below)


def _reports(shown: Any) -> list[Report]:
    """Return a report on the kernels, by their signatures; none if they are no cubins."""
    kernels = [each for each in _kernels(shown) if each.code.kind == "cubin"]
    found = [replace(each.code.report(each.symbol).kernels[0], name=repr(each)) for each in kernels]
    return [Report(kernels[0].code.arch, tuple(found))] if kernels else []


def _kernels(shown: Any) -> list[CellKernel]:
    if isinstance(shown, CellKernel):
        return [shown]
    return [kernel for each in shown.values() for kernel in _kernels(each)]


def _warnings(shown: Any) -> list[styling.Styled]:
    """Return the compiler's warnings about a cell, without those about headers."""
    if not isinstance(shown, CellModule):
        return []
    found = [d for d in shown.code.build.warnings if d.file == PROGRAM]
    return [render([warning], source=shown.source, name=PROGRAM) for warning in found]


def _card(shown: Any) -> tuple[str, list[str]]:
    """Return a title, and the lines below the table."""
    if isinstance(shown, CellTemplate):
        return f"CUDA {shown!r}", [f"{shown.name}['float'] is a kernel."]
    build = shown.code.build
    how = f"hit ({build.hit})" if build.hit else " ".join(build.compiler.split()[:2])
    ms = build.milliseconds
    took = f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"
    built = f"{shown.code.arch}, {how}, {took}"
    if isinstance(shown, CellKernel):
        return f"CUDA kernel {shown!r} ({built})", []
    if not shown:
        return "CUDA cell", ["This cell defines no kernel (__global__)."]
    templates = (one for one in shown.values() if isinstance(one, CellTemplate))
    notes = [f"{one.name}[…] is a {one!r}" for one in templates]
    return f"CUDA cell: {', '.join(shown)} ({built})", notes


def load_ipython_extension(shell: Any) -> None:
    """Register the magics, and how their results are displayed: IPython calls this for ``%load_ext rtcompile``."""
    shell.register_magics(CudaMagics)
    formatters = shell.display_formatter.formatters
    for kind in (CellModule, CellKernel, CellTemplate):
        formatters["text/html"].for_type(kind, lambda shown: styling.as_html(styled(shown)))
        formatters["text/plain"].for_type(
            kind, lambda shown, printer, _cycle: printer.text(styling.as_text(styled(shown)))
        )

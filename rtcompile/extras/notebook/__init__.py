"""CUDA C++ in notebooks: ``%load_ext rtcompile``, then ``%%cuda``, ``%%cuda_header`` and ``%cuda_options``."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import shlex
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from typing import Any

import rtcompile
from rtcompile import styling
from rtcompile.errors import public
from rtcompile.extras.notebook import kernels
from rtcompile.extras.notebook.kernels import (
    PROGRAM,
    CellBuild,
    CellKernel,
    CellModule,
    CellTemplate,
    KernelText,
)
from rtcompile.messages import render

try:
    from IPython.core.magic import Magics, cell_magic, line_cell_magic, line_magic, magics_class
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "IPython":
        raise
    raise rtcompile.RtcompileError("%%cuda needs IPython: pip install ipython") from None

_REPORT_SPILLS = "-Xptxas=-v"
_OURS = ("--arch", "--backend", "--module")
_QUIET_SECONDS = 0.5
_SECONDS_BETWEEN_CHANGES = 0.25


@dataclass(frozen=True, slots=True)
class Line:
    """The options of a ``%%cuda`` line; ``""`` where the line does not give one."""

    arch: str = ""
    backend: str = ""
    module: str = ""  # the name to bind the cell's module to
    names: tuple[str, ...] = ()  # instances of templates to build together with the cell
    options: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> Line:
        """Read a line; an option without its value, or a quote without an end, is an error."""
        try:
            words = iter(shlex.split(text))
        except ValueError as error:
            raise rtcompile.InvalidRequest(f"%%cuda {text}: {error}") from None
        ours = dict.fromkeys(_OURS, "")
        names: list[str] = []
        options: list[str] = []
        for word in words:
            name, equals, value = word.partition("=")
            if name not in (*_OURS, "-n"):
                options.append(word)
                continue
            value = value if equals else next(words, "")
            if not value:
                raise rtcompile.InvalidRequest(f"%%cuda {text}: {name} needs a value")
            if name == "-n":
                names.append(value)
            else:
                ours[name] = value
        arch, backend, module = ours.values()
        return cls(arch, backend, module, tuple(names), tuple(options))

    def after(self, defaults: Line) -> Line:
        """Return this line with missing values taken from the defaults, and their options first."""
        arch, backend = self.arch or defaults.arch, self.backend or defaults.backend
        options = (*defaults.options, *self.options)
        return replace(self, arch=arch, backend=backend, options=options)


class Compilation:
    """The compilation of one cell. Templates keep it to compile further instances later."""

    def __init__(self, source: str, line: Line, headers: Mapping[str, str]) -> None:
        self._line = line
        self._options = (*line.options, _REPORT_SPILLS)
        self._headers = dict(headers)  # instances built later use the same headers
        self._source, self._texts = source, kernels.find(source)
        self._built: list[CellBuild] = []

    def module(self) -> CellModule:
        """Compile the cell; an error names lines and columns of the cell."""
        texts = {name: self._text_of(name) for name in self._line.names}
        built = self._build(self._line.names)
        self._built.append(built)
        kernels: dict[str, CellKernel | CellTemplate] = {}
        for text in self._texts:
            if text.template is not None:
                template = CellTemplate(text, functools.partial(self._instance, text))
                template.kernels.update(
                    (name, CellKernel(text, built, name, symbol))
                    for name, symbol in built.code.lowered_names.items()
                    if texts[name] == text
                )
                kernels[text.name] = template
        named = set(built.code.lowered_names.values())
        symbols = {
            cpp_name.rpartition("::")[2]: symbol
            for symbol, cpp_name in built.kernels.items()
            if symbol not in named
        }
        known = {text.name: text for text in self._texts if text.template is None}
        for name, symbol in symbols.items():
            # A kernel that the text does not define was made by a macro.
            text = known.get(name) or KernelText(name, name, "…", None)
            kernels[name] = CellKernel(text, built, name, symbol)
        in_order = [text.name for text in self._texts if text.name in kernels]
        return CellModule({name: kernels[name] for name in [*in_order, *kernels]}, built)

    def _build(self, names: Sequence[str]) -> CellBuild:
        backend: Any = self._line.backend or "auto"  # CompileRequest checks it
        request = rtcompile.CompileRequest(
            self._source,
            options=self._options,
            arch=self._line.arch or None,
            name_expressions=tuple(names),
            backend=backend,
            headers=self._headers,
            name=PROGRAM,
        )
        return CellBuild(request, build(request))

    def _text_of(self, expression: str) -> KernelText:
        name = expression.partition("<")[0].strip().rpartition("::")[2]
        for text in self._texts:
            if text.name == name:
                return text
        known = ", ".join(text.qualified for text in self._texts) or "none"
        raise rtcompile.InvalidRequest(f"no kernel {expression!r} in this cell; it has: {known}")

    def _instance(self, text: KernelText, expression: str) -> CellKernel:
        """Build the cell for one more instance; an error if it has variables, which would be copied."""
        built = self._build([expression])
        shared = {name for one in self._built for name in one.variables() & built.variables()}
        if shared:
            raise rtcompile.InvalidRequest(
                f"{expression} would have its own copy of the cell's variables "
                f"({', '.join(sorted(shared))}), since it is built after the cell; build it with "
                f"the cell: %%cuda -n '{expression}'"
            )
        self._built.append(built)
        return CellKernel(text, built, expression, built.code.lowered_names[expression])


def build(request: rtcompile.CompileRequest) -> rtcompile.ObjectCode:
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
        self._defaults = Line()
        self._headers: dict[str, str] = {}  # of this notebook's header cells

    @line_cell_magic  # type: ignore[untyped-decorator]
    @public
    def cuda(self, line: str, cell: str = "") -> CellModule | None:
        """Compile a cell of CUDA C++ and bind its kernels to their names.

        %%cuda [--arch sm_90a] [--backend nvrtc|nvcc] [--module NAME] [-n 'f<float>'] [options]

        A kernel is called like CuPy's: ``scale((8,), (128,), (x, 2.0, n))``. Choose an instance of a
        template first, by ``scale["float"]`` or here by ``-n``. ``--module`` also binds the cell's
        module to a name. All other options go to the compiler: ``-DN=4 -I include -lineinfo
        --use_fast_math``.
        """
        if line.split() == ["--help"]:
            print(inspect.cleandoc(CudaMagics.cuda.__doc__ or ""))  # an empty cell: %cuda --help
            return None
        with _readable():
            given = Line.read(line).after(self._defaults)
            if not cell:
                raise rtcompile.InvalidRequest(
                    "%cuda has no source: write %%cuda, and C++ in the next lines"
                )
            # Editors count the line of the magic too.
            module = Compilation(f"\n{cell}", given, self._headers).module()
        self.shell.push(module.kernels)
        if given.module:
            self.shell.push({given.module: module})
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
                raise rtcompile.InvalidRequest(
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
            self._defaults = Line.read(line)


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


def load_ipython_extension(shell: Any) -> None:
    """Register the magics, and how modules and kernels are displayed: IPython calls this for ``%load_ext rtcompile``."""
    shell.register_magics(CudaMagics)
    formatters = shell.display_formatter.formatters
    own = "rtcompile.extras.notebook.kernels"
    classes = [(own, name) for name in ("CellModule", "CellKernel", "CellTemplate")]
    classes += [("rtcompile", name) for name in ("ObjectCode", "RawModule", "RawKernel")]
    for module, name in classes:
        formatters["text/html"].for_type_by_name(module, name, kernels.as_html)
        formatters["text/plain"].for_type_by_name(
            module, name, lambda shown, printer, _cycle: printer.text(kernels.as_text(shown))
        )

"""Compiles a cell to kernels, and turns the places of errors into places in the cell."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from rtcompile.core import options
from rtcompile.core.request import CompileRequest
from rtcompile.core.symbols import simple_name
from rtcompile.errors import CompileError, CompilerCrashed, InvalidRequest
from rtcompile.messages import rendering
from rtcompile.notebook import building, cells
from rtcompile.notebook.cells import PROGRAM
from rtcompile.notebook.definitions import KernelText
from rtcompile.notebook.kernels import Built, CellKernel, CellModule, CellTemplate
from rtcompile.notebook.line import Line
from rtcompile.watching.report import TELL_SPILLS


class Compilation:
    """The compilation of one cell. Templates keep it to compile further instances later."""

    def __init__(self, source: str, line: Line, headers: str) -> None:
        self._line = line
        self._options = (f"-I{headers}", *line.options, TELL_SPILLS)
        asked = options.parse(CompileRequest("", line.options).options)
        # With line information, lines must stay in place for profilers and debuggers to show the
        # cell.
        self._cell = cells.read(source, keep_lines=asked.lineinfo or asked.debug)
        self._built: list[Built] = []

    def module(self) -> CellModule:
        """Compile the cell; an error names lines and columns of the cell."""
        texts = {name: self._text_of(name) for name in self._line.names}
        built = self._build(self._line.names)
        self._built.append(built)
        kernels: dict[str, CellKernel | CellTemplate] = {}
        for text in self._cell.kernels:
            if text.template is not None:
                template = CellTemplate(text, functools.partial(self._instance, text))
                template.kernels.update(
                    (name, CellKernel(text, built, name, symbol))
                    for name, symbol in built.code.lowered_names.items()
                    if texts[name] == text
                )
                kernels[text.name] = template
        named = set(built.code.lowered_names.values())
        symbols = {simple_name(s): s for s in built.kernel_symbols() if s not in named}
        known = {text.name: text for text in self._cell.kernels if text.template is None}
        for name in sorted(symbols, key=[*known, *symbols].index):
            # A kernel that the text does not define was made by a macro.
            text = known.get(name) or KernelText(name, name, "…", None)
            kernels[name] = CellKernel(text, built, name, symbols[name])
        in_order = [text.name for text in self._cell.kernels if text.name in kernels]
        return CellModule({name: kernels[name] for name in [*in_order, *kernels]}, built)

    def _build(self, names: Sequence[str]) -> Built:
        request = CompileRequest(
            self._cell.source,
            options=self._options,
            arch=self._line.arch or None,
            name_expressions=tuple(names),
            backend=self._line.backend or "auto",
            name=PROGRAM,
        )
        try:
            code = building.build(request)
        except CompileError as error:
            raise self._in_cell(error) from None
        return Built(self._cell, request, code)

    def _text_of(self, expression: str) -> KernelText:
        name = expression.partition("<")[0].strip().rpartition("::")[2]
        for text in self._cell.kernels:
            if text.name == name:
                return text
        known = ", ".join(text.qualified for text in self._cell.kernels) or "none"
        raise InvalidRequest(f"no kernel {expression!r} in this cell; it has: {known}")

    def _instance(self, text: KernelText, expression: str) -> CellKernel:
        """Build the cell for one more instance, refused if it has variables: they would be copied."""
        built = self._build([expression])
        shared = {name for one in self._built for name in one.variables() & built.variables()}
        if shared:
            raise InvalidRequest(
                f"{expression} would have its own copy of the cell's variables "
                f"({', '.join(sorted(shared))}), since it is built after the cell; build it with "
                f"the cell: %%cuda -n '{expression}'"
            )
        self._built.append(built)
        return CellKernel(text, built, expression, built.code.lowered_names[expression])

    def _in_cell(self, error: CompileError) -> CompileError:
        """Return the error with the cell's own lines in it, and options as a cell spells them."""
        found = tuple(map(self._cell.in_cell, error.diagnostics))
        story = rendering.story(found, source=self._cell.text, name=PROGRAM)
        here: CompileError = type(error).told(
            tuple((style, rendering.spelled(text, "cell")) for style, text in story),
            self._cell.text,
            PROGRAM,
            error.options,
            error.backend,
            diagnostics=found,
            log=error.log,
            advice=tuple(rendering.spelled(paragraph, "cell") for paragraph in error.advice),
        )
        if isinstance(error, CompilerCrashed) and isinstance(here, CompilerCrashed):
            here.reproducer = error.reproducer
        here.cached = error.cached
        return here

"""How a cell becomes kernels: in units, each found in the cache or built, their errors in the cell."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rtcompile.core.request import CompileRequest
from rtcompile.errors import CompileError, InvalidRequest
from rtcompile.messages import rendering
from rtcompile.notebook import building, cells
from rtcompile.notebook.cells import PROGRAM, Unit
from rtcompile.notebook.definitions import KernelText
from rtcompile.notebook.kernels import Built, CellKernel, CellModule, CellTemplate
from rtcompile.notebook.line import Line

__all__ = ["CellError", "Compilation", "simple_name"]

# ptxas tells spills nowhere else.
_ALWAYS = ("-Xptxas=-v",)


class CellError(CompileError):
    """A cell that does not compile; its places are the cell's, and its source is the cell."""

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this instead of formatting a traceback: what matters is in the cell.
        text = rendering.render(self.diagnostics, source=self.source, name=self.name, color=True)
        return text.split("\n")


class Compilation:
    """One cell under way. Its templates keep it, to compile more of the cell later.

    Parameters
    ----------
    source : str
        The cell.
    line : Line
        How it is to be compiled.
    headers : str
        The folder of the notebook's own headers.
    """

    def __init__(self, source: str, line: Line, headers: str) -> None:
        self._source = source
        self._cell = cells.read(source)
        self._line = line
        self._options = (f"-I{headers}", *line.options, *_ALWAYS)

    def module(self) -> CellModule:
        """Compile it.

        Raises
        ------
        CellError
            It does not compile.
        RtcompileError
            Whatever else can go wrong.
        """
        units = self._cell.units()
        built = self._build(units)
        if len(units) > 1 and self._share_a_variable(built):
            # Each unit would have a copy of its own.
            self._cell = replace(self._cell, separable=False)
            units = self._cell.units()
            built = self._build(units)
        kernels: dict[str, CellKernel | CellTemplate] = {}
        for unit, one in zip(units, built, strict=True):
            kernels.update(self._kernels(unit, one))
        return CellModule(kernels, built)

    def _build(self, units: Sequence[Unit]) -> list[Built]:
        requests = [self._request(unit, self._names_in(unit)) for unit in units]
        for name in self._line.names:
            self._text_of(name)
        try:
            codes = building.build(requests)
        except CompileError as error:
            raise self._in_cell(error, units) from None
        return [
            Built(self._source, unit, request, code)
            for unit, request, code in zip(units, requests, codes, strict=True)
        ]

    def _request(self, unit: Unit, names: Sequence[str]) -> CompileRequest:
        return CompileRequest(
            unit.source,
            options=self._options,
            arch=self._line.arch or None,  # type: ignore[arg-type]  # CompileRequest reads it
            name_expressions=tuple(names),
            backend=self._line.backend or "auto",
            name=PROGRAM,
        )

    def _names_in(self, unit: Unit) -> list[str]:
        return [name for name in self._line.names if self._text_of(name) in unit.kernels]

    def _text_of(self, expression: str) -> KernelText:
        name = expression.partition("<")[0].strip().rpartition("::")[2]
        for text in self._cell.kernels:
            if text.name == name:
                return text
        known = ", ".join(text.qualified for text in self._cell.kernels) or "none"
        raise InvalidRequest(f"no kernel {expression!r} in this cell; it has: {known}")

    def _kernels(self, unit: Unit, built: Built) -> Iterator[tuple[str, CellKernel | CellTemplate]]:
        named = {symbol: name for name, symbol in built.code.lowered_names.items()}
        for text in unit.kernels:
            if text.template is not None:
                template = CellTemplate(text, functools.partial(self._instance, text))
                for symbol, name in named.items():
                    if self._text_of(name) == text:
                        template.kernels[name] = CellKernel(text, built, name, symbol)
                yield text.name, template
        symbols = {simple_name(s): s for s in built.kernel_symbols() if s not in named}
        texts = {text.name: text for text in unit.kernels if text.template is None}
        for name in [*(n for n in texts if n in symbols), *(s for s in symbols if s not in texts)]:
            # What is in no text was made by a macro.
            text = texts.get(name) or KernelText(name, name, "…", None, ())
            yield name, CellKernel(text, built, name, symbols[name])

    def _instance(self, text: KernelText, expression: str) -> CellKernel:
        """Build one more instance of a template."""
        unit = self._cell.unit(text)
        request = self._request(unit, [expression])
        try:
            (code,) = building.build([request])
        except CompileError as error:
            raise self._in_cell(error, [unit]) from None
        symbol = code.lowered_names[expression]
        built = Built(self._source, unit, request, code)
        return CellKernel(text, built, expression, symbol)

    def _share_a_variable(self, built: Sequence[Built]) -> bool:
        words = self._cell.may_change()
        return any(
            symbol.kind == "object"
            and symbol.section.startswith((".nv.global", ".nv.constant"))
            and simple_name(symbol.name) in words
            for one in (built if words else ())
            for symbol in one.symbols()
        )

    def _in_cell(self, error: CompileError, units: Sequence[Unit]) -> CompileError:
        """Return the error with the cell's own lines in it."""
        unit = next((unit for unit in units if unit.source == error.source), None)
        if unit is None or not error.diagnostics:
            return error
        found = tuple(map(unit.in_cell, error.diagnostics))
        message = rendering.render(found, source=self._source, name=PROGRAM)
        return CellError(
            message,
            self._source,
            PROGRAM,
            error.options,
            error.backend,
            diagnostics=found,
            log=error.log,
        )


def simple_name(symbol: str) -> str:
    """Return the name in a mangled symbol, without namespaces: ``k`` of ``_ZN2ns1kEPf``."""
    if not symbol.startswith("_Z"):
        return symbol
    rest = symbol[2:].removeprefix("N").removeprefix("L")
    name = symbol
    while match := re.match(r"L?(\d+)", rest):
        end = match.end() + int(match[1])
        name, rest = rest[match.end() : end], rest[end:]
        if not symbol.startswith("_ZN"):
            break
    return name

"""CUDA C++ in notebooks: ``%load_ext rtcompile``, then ``%%cuda``, ``%%cuda_header`` and ``%cuda_options``."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import replace
from itertools import chain
from typing import Any

import rtcompile
from rtcompile import CompileRequest, InvalidRequest, ObjectCode, styling
from rtcompile.errors import public
from rtcompile.messages import render
from rtcompile.named import computed_once
from rtcompile.request import cxx
from rtcompile.types import Report

try:
    from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "IPython":
        raise
    raise rtcompile.RtcompileError("%%cuda needs IPython: pip install ipython") from None

# The source's name. The cell's number is not in it, since the position of a cell must not change its key.
PROGRAM = "cell.cu"

_OPENED_NAMESPACE = re.compile(r"\bnamespace\s+([\w:]+)\s*\{")
_CONSTANT_LINE = re.compile(r"^\s*#\s*include\b|\bconst(?:expr)?\b")
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


# --- What a cell binds to names: kernels, which convert their arguments, and kernel templates --------------


class CellModule(dict[str, Any]):
    """One cell: its kernels and templates by name.

    `arguments` are those of a `RawModule` besides the source; instances that are built later have the same.
    """

    def __init__(self, source: str, arguments: Mapping[str, Any]) -> None:
        self.source, self.arguments = source, arguments
        self.code = build(CompileRequest(source, **arguments))
        self._builds = [self.code]  # and those of instances that are built later
        texts: dict[str, cxx.Kernel] = {}
        for text in cxx.kernels(cxx.readable(source)):
            if text.is_defined:
                texts.setdefault(text.name, text)
        templates = {
            name: CellTemplate(self, text) for name, text in texts.items() if text.template
        }
        found: dict[str, Any] = {**templates}
        expressions = {symbol: name for name, symbol in self.code.lowered_names.items()}
        for symbol, cpp_name in self.code.symbols().items():
            name = cpp_name.rpartition("::")[2]
            if name in templates:
                if expression := expressions.get(symbol, ""):
                    templates[name].add(expression, self, symbol)
                continue
            # A kernel that the text does not define was made by a macro.
            text = texts.get(name) or cxx.Kernel(name, name, "…", None, True, 0)
            found[name] = CellKernel(self, text, name, symbol)
        super().__init__({name: found[name] for name in [*texts, *found] if name in found})

    def instance(self, expression: str) -> CellModule:
        """Build the cell for one more instance; an error if it has variables, which would be copied."""
        arguments = {**self.arguments, "name_expressions": [expression]}
        built = CellModule(self.source, arguments)
        there = (name for one in self._builds for name in one.symbols("variable").values())
        twice = {*there} & {*built.code.symbols("variable").values()}
        if shared := own_variables(twice, self.source, built.code.symbols().values()):
            raise InvalidRequest(
                f"{expression} would have its own copy of the cell's variables "
                f"({', '.join(sorted(shared))}), since it is built after the cell; build it with "
                f"the cell: %%cuda -n '{expression}'"
            )
        self._builds.append(built.code)
        return built

    @computed_once
    def raw(self) -> Any:
        """The `RawModule` of the same build. It is loaded when a kernel is first launched."""
        return rtcompile.RawModule(code=self.source, **self.arguments)

    @public
    def get_global(self, name: str) -> Any:
        """Return a ``cupy.cuda.MemoryPointer`` to a variable of the cell."""
        return self.raw.get_global(name)

    def __missing__(self, name: str) -> Any:
        known = ", ".join(self) or "none"
        raise InvalidRequest(f"no kernel {name!r} in this cell; it has: {known}")

    def __repr__(self) -> str:
        return f"<CellModule for {self.code.arch}: {', '.join(self) or 'no kernels'}>"


class CellKernel:
    """A kernel of a cell, called like CuPy's: ``kernel(grid, block, args)``.

    Numbers are converted to the types of the parameters, and an array of another element type is an error.
    """

    def __init__(self, module: CellModule, text: cxx.Kernel, name: str, symbol: str) -> None:
        self.name = name
        self.code = module.code
        self.symbol = symbol
        self._module = module
        library = rtcompile.KernelLibrary(PROGRAM)
        self._declared = library.module(PROGRAM, {name: _substituted(text, name)})[name]

    @public
    def __call__(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], *, shared_mem: int = 0
    ) -> None:
        """Launch on the current device and stream."""
        args = self._converted(args)
        self.raw(tuple(grid), tuple(block), tuple(args), shared_mem=shared_mem)

    @computed_once
    def _converted(self) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """The function that converts arguments; if a parameter has a macro or an attribute, nothing is converted."""
        with contextlib.suppress(InvalidRequest):
            _ = self._declared.parameters
            return self._declared.arguments
        return tuple

    @computed_once
    def raw(self) -> Any:
        """The `RawKernel`, with CuPy's attributes."""
        return self._module.raw.get_function(self.symbol)

    def __repr__(self) -> str:
        return repr(self._declared)


class CellTemplate(dict[str, CellKernel]):
    """A kernel template of a cell: ``scale["float", 4]`` is the kernel ``scale<float, 4>``."""

    def __init__(self, module: CellModule, text: cxx.Kernel) -> None:
        super().__init__()
        self.name = text.name
        self._text = text
        self._module = module

    def add(self, expression: str, module: CellModule, symbol: str) -> None:
        """Add an instance that was built."""
        arguments = expression.partition("<")[2].rpartition(">")[0]
        kernel = CellKernel(module, self._text, expression, symbol)
        self[", ".join(cxx.split(arguments))] = kernel

    @public
    def __getitem__(self, arguments: Any) -> CellKernel:
        given = arguments if isinstance(arguments, tuple) else (arguments,)
        return super().__getitem__(", ".join(map(_cpp, given)))

    def __missing__(self, arguments: str) -> CellKernel:
        expression = f"{self._text.qualified}<{arguments}>"
        (self[arguments],) = self._module.instance(expression)[self.name].values()
        return self[arguments]

    def __call__(self, *_args: Any, **_options: Any) -> None:
        """Raise an error: an instance must be chosen first."""
        raise InvalidRequest(f"{self!r}: choose its arguments first: {self.name}['float']")

    def __repr__(self) -> str:
        of_types = ", ".join(self._text.template or ())
        return f"template <{of_types}> {self.name}({self._text.parameters})"


def own_variables(
    variables: Iterable[str], source: str, kernels: Collection[str]
) -> frozenset[str]:
    """Return which of `variables`, C++ names, the source defines, and kernels share and can change."""
    text, words = cxx.blanked(source), set[str]()
    for line in text.split("\n"):
        if not _CONSTANT_LINE.search(line):
            words.update(re.findall(r"[A-Za-z_]\w*", line))
    spaces = {part for name in _OPENED_NAMESPACE.findall(text) for part in name.split("::")}
    found = set()
    for name in variables:
        function, _, variable = name.rpartition("()::")
        *outer, own = (function or variable).split("::")
        defined = {own, variable} if function else {own}
        if defined <= words and spaces.issuperset(outer) and function not in kernels:
            found.add(name)
    return frozenset(found)


def _cpp(argument: Any) -> str:
    """Return a template's argument in C++: ``np.float32`` becomes ``float``."""
    if isinstance(argument, str):
        return argument
    if isinstance(argument, int):
        return str(argument).lower()  # Python's True is C++'s true
    import numpy as np

    with contextlib.suppress(TypeError):
        wanted = np.dtype(argument)
        for name, dtype in cxx.NUMBERS.items():
            if wanted == dtype and wanted.kind != "c":
                return name
    text = f"{argument!r} is not a template argument; give its C++ name, such as 'float'"
    raise InvalidRequest(text)


def _substituted(text: cxx.Kernel, name: str) -> str:
    """Return the parameters with the names of template parameters replaced by the arguments."""
    if text.template is None or not name.endswith(">"):
        return text.parameters
    arguments = cxx.split(name.partition("<")[2][:-1])
    values = dict(zip(text.template, arguments, strict=False))  # the missing ones have defaults
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda m: values.get(m[0], m[0]), text.parameters)


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
            module = CellModule(f"\n{cell}", arguments)
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
    """Return one report with a row for each kernel, named by its signature; none for code that is no cubin."""
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

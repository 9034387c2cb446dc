"""What a cell binds to names: its kernels, which convert their arguments, and its kernel templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import rtcompile
from rtcompile import CompileRequest, InvalidRequest, ObjectCode
from rtcompile.errors import public
from rtcompile.named import computed_once
from rtcompile.request import cxx

# The source's name. The cell's number is not in it, since the position of a cell must not change its key.
PROGRAM = "cell.cu"

_OPENED_NAMESPACE = re.compile(r"\bnamespace\s+([\w:]+)\s*\{")
_CONSTANT_LINE = re.compile(r"^\s*#\s*include\b|\bconst(?:expr)?\b")


class CellModule(dict[str, Any]):
    """One cell, compiled by `build`: its kernels and templates by name.

    `arguments` are those of a `RawModule` besides the source; instances that are built later have the same.
    """

    def __init__(
        self,
        source: str,
        arguments: Mapping[str, Any],
        build: Callable[[CompileRequest], ObjectCode],
    ) -> None:
        self.source, self.arguments = source, arguments
        self.code = build(CompileRequest(source, **arguments))
        self._build = build
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
        built = CellModule(self.source, arguments, self._build)
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
        """What converts arguments; parameters with a macro or an attribute cannot be read, and nothing is converted."""
        with suppress(InvalidRequest):
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
    """Return those of a code's variables that its source defines and that kernels share and can change, by C++ name."""
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
        return str(argument).lower()  # of a bool
    import numpy as np

    try:
        return _CPP_TYPES[np.dtype(argument).name]
    except (TypeError, KeyError):
        text = f"{argument!r} is not a template argument; give its C++ name, such as 'float'"
        raise InvalidRequest(text) from None


_CPP_TYPES = {
    "bool": "bool",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
    "float16": "__half",
    "float32": "float",
    "float64": "double",
}


def _substituted(text: cxx.Kernel, name: str) -> str:
    """Return the parameters with the names of template parameters replaced by the arguments."""
    if text.template is None or not name.endswith(">"):
        return text.parameters
    arguments = cxx.split(name.partition("<")[2][:-1])
    values = dict(zip(text.template, arguments, strict=False))  # the missing ones have defaults
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda m: values.get(m[0], m[0]), text.parameters)

"""A cell's kernels: as its text defines them, and as the objects that it binds to names."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import rtcompile
from rtcompile import CompileRequest, InvalidRequest, ObjectCode
from rtcompile.errors import public
from rtcompile.named import computed_once
from rtcompile.request import cxx

# The source's name. The cell's number is not in it, since the position of a cell must not change its key.
PROGRAM = "cell.cu"

_STRUCTURE = re.compile(
    r"^[ \t\v\f]*(?:#|%:)[ \t\v\f]*(?P<directive>\w*)(?:\\\r?\n|[^\n])*|[{};]|\b__global__\b",
    re.MULTILINE,
)
_DIRECTIVE = re.compile(r"^[ \t\v\f]*(?:#|%:)(?:\\\r?\n|[^\n])*", re.MULTILINE)
# Before an opening brace; the "C" of extern was replaced by blanks.
_SCOPE = re.compile(r"\b(?:namespace\s*([\w:]*)|extern)\s*\Z")
_CALLED = re.compile(r"([A-Za-z_]\w*)\s*(?:<[^(){};]*>\s*)?\(")
_TEMPLATE = re.compile(r"\btemplate\s*<(.*)>", re.DOTALL)
_OPENED_NAMESPACE = re.compile(r"\bnamespace\s+([\w:]+)\s*\{")
_CONSTANT_LINE = re.compile(r"^\s*#\s*include\b|\bconst(?:expr)?\b")

# --- What a cell's text has and machine code lacks: the kernels' signatures, and the templates ---------


@dataclass(frozen=True, slots=True)
class KernelText:
    """The definition of a kernel in a text."""

    name: str
    qualified: str  # with its namespaces
    parameters: str  # the text between its parentheses
    template: tuple[str, ...] | None  # the names of its template parameters


def find(source: str) -> tuple[KernelText, ...]:
    """Return the kernels of a source, the first of each name; none if it takes too long to read."""
    source = cxx.readable(source)
    text, code = cxx.blanked(source), cxx.blanked(source, literals=True)
    found: dict[str, KernelText] = {}
    scopes: list[str | None] = []  # open braces: a namespace's name, None for others
    branches: list[list[str | None]] = []  # the scopes in which each open #if began
    begin = 0  # where the current declaration begins
    for match in _STRUCTURE.finditer(code):
        if match["directive"] is not None:
            _enter_branch(match["directive"], scopes, branches)
            begin = begin if code[begin : match.start()].strip() else match.end()
            continue
        if match[0] == "__global__":
            kernel = _definition(text, code, begin, match.end(), scopes)
            if kernel is not None:
                found.setdefault(kernel.name, kernel)
            continue
        if match[0] == "{":
            scope = _SCOPE.search(_DIRECTIVE.sub("", code[begin : match.start()]))
            scopes.append((scope[1] or "") if scope else None)
        elif match[0] == "}" and scopes:
            scopes.pop()
        begin = match.end()
    return tuple(found.values())


def _enter_branch(
    directive: str, scopes: list[str | None], branches: list[list[str | None]]
) -> None:
    """Start each branch of the preprocessor with the scopes that were open at its ``#if``."""
    if directive in ("if", "ifdef", "ifndef"):
        branches.append(scopes.copy())
    elif directive in ("else", "elif") and branches:
        scopes[:] = branches[-1]
    elif directive == "endif" and branches:
        branches.pop()


def _definition(
    text: str, code: str, begin: int, at: int, scopes: list[str | None]
) -> KernelText | None:
    """Return the kernel whose ``__global__`` ends at `at`; None for a declaration or a friend."""
    if None in scopes:
        return None
    called = _CALLED.search(code, at)
    while called is not None and called[1].startswith("__"):  # __launch_bounds__(…) and its like
        called = _CALLED.search(code, called.end() + len(cxx.enclosed(code, called.end() - 1)))
    if called is None or re.search(r"[{};]", code[at : called.start()]):
        return None
    closing = called.end() + len(cxx.enclosed(code, called.end() - 1))
    if code[closing + 1 :].lstrip()[:1] != "{":
        return None
    qualified = "::".join([*filter(None, scopes), called[1]])
    parameters = " ".join(text[called.end() : closing].split())
    return KernelText(called[1], qualified, parameters, _template_parameters(code[begin:at]))


def _template_parameters(declaration: str) -> tuple[str, ...] | None:
    match = _TEMPLATE.search(_DIRECTIVE.sub("", declaration))
    if match is None or not match[1].strip():
        return None  # it is not a template, or it is a specialisation
    words = (re.findall(r"\w+", piece.partition("=")[0]) for piece in cxx.split(match[1]))
    return tuple(found[-1] if found else "" for found in words)


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


# --- What a cell binds to names ------------------------------------------------------------------------


class CellBuild:
    """One build of a cell. It is loaded when one of its kernels is first launched."""

    def __init__(self, request: CompileRequest, code: ObjectCode) -> None:
        self.request = request
        self.code = code
        self.kernels = code.symbols()  # each kernel's symbol and C++ name

    def variables(self) -> frozenset[str]:
        """Return the cell's own variables that kernels share and can change."""
        found = self.code.symbols("variable").values()
        return own_variables(found, self.request.source, self.kernels.values())

    @computed_once
    def module(self) -> Any:
        """The `RawModule` of the same build."""
        request = self.request
        return rtcompile.RawModule(
            code=request.source,
            options=request.options,
            name_expressions=request.name_expressions,
            arch=self.code.arch.virtual if request.target == "ptx" else request.arch,
            headers=dict(request.headers) or None,
            fallback="always" if request.backend == "nvcc" else None,
            name=request.name,
        )


class CellKernel:
    """A kernel of a cell, called like CuPy's: ``kernel(grid, block, args)``.

    Numbers are converted to the types of the parameters, and an array of another element type is an error.
    """

    def __init__(self, text: KernelText, built: CellBuild, name: str, symbol: str) -> None:
        self.name = name
        self.built = built
        self.code = built.code
        self.symbol = symbol
        parameters = _substituted(text, name)
        self.signature = f"{name}({parameters})"
        self._declared = rtcompile.KernelLibrary(PROGRAM).module(PROGRAM, {name: parameters})[name]

    @public
    def __call__(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], *, shared_mem: int = 0
    ) -> None:
        """Launch on the current device and stream."""
        if self._is_declared:
            args = self._declared.arguments(args)
        self.raw(tuple(grid), tuple(block), tuple(args), shared_mem=shared_mem)

    @computed_once
    def _is_declared(self) -> bool:
        """Whether the parameters can be read; otherwise, as with a macro or an attribute, arguments are not converted."""
        with suppress(InvalidRequest):
            return self._declared.parameters is not None
        return False

    @computed_once
    def raw(self) -> Any:
        """The `RawKernel`, with CuPy's attributes."""
        return self.built.module.get_function(self.symbol)

    def __repr__(self) -> str:
        return self.signature


class CellTemplate:
    """A kernel template of a cell: ``scale["float", 4]`` is the kernel ``scale<float, 4>``."""

    def __init__(self, text: KernelText, module: CellModule) -> None:
        self.name = text.name
        of_types = ", ".join(text.template or ())
        self.signature = f"template <{of_types}> {text.name}({text.parameters})"
        self.kernels: dict[str, CellKernel] = {}
        self._text = text
        self._module = module

    @public
    def __getitem__(self, arguments: Any) -> CellKernel:
        given = arguments if isinstance(arguments, tuple) else (arguments,)
        expression = f"{self._text.qualified}<{', '.join(map(_cpp, given))}>"
        if expression not in self.kernels:
            self.kernels[expression] = self._module.instance(self._text, expression)
        return self.kernels[expression]

    def __call__(self, *_args: Any, **_options: Any) -> None:
        """Raise an error: an instance must be chosen first."""
        raise InvalidRequest(f"{self.signature}: choose its arguments first: {self.name}['float']")

    def _ipython_key_completions_(self) -> list[str]:
        inside = (name[len(self._text.qualified) + 1 : -1] for name in self.kernels)
        return [*inside, *(key for key in ("float", "double", "int") if key not in self.kernels)]

    def __repr__(self) -> str:
        return self.signature


class CellModule:
    """One cell, compiled by `build`: its kernels by name."""

    def __init__(
        self,
        request: CompileRequest,
        build: Callable[[CompileRequest], ObjectCode],
    ) -> None:
        self._build = build
        self._request = request  # instances built later use the same options and headers
        self._texts = find(request.source)
        texts = {name: self._text_of(name) for name in request.name_expressions}
        self.built = CellBuild(request, build(request))
        self.code = self.built.code
        self._instances: list[CellBuild] = []
        named = self.code.lowered_names
        found: dict[str, CellKernel | CellTemplate] = {}
        for text in self._texts:
            if text.template is not None:
                template = found[text.name] = CellTemplate(text, self)
                template.kernels.update(
                    (name, CellKernel(text, self.built, name, symbol))
                    for name, symbol in named.items()
                    if texts[name] == text
                )
        known = {text.name: text for text in self._texts if text.template is None}
        for symbol, cpp_name in self.built.kernels.items():
            if symbol not in named.values():
                name = cpp_name.rpartition("::")[2]
                # A kernel that the text does not define was made by a macro.
                text = known.get(name) or KernelText(name, name, "…", None)
                found[name] = CellKernel(text, self.built, name, symbol)
        in_order = [text.name for text in self._texts if text.name in found]
        self.kernels = {name: found[name] for name in [*in_order, *found]}

    def _text_of(self, expression: str) -> KernelText:
        name = expression.partition("<")[0].strip().rpartition("::")[2]
        for text in self._texts:
            if text.name == name:
                return text
        known = ", ".join(text.qualified for text in self._texts) or "none"
        raise InvalidRequest(f"no kernel {expression!r} in this cell; it has: {known}")

    def instance(self, text: KernelText, expression: str) -> CellKernel:
        """Build the cell for one more instance; an error if it has variables, which would be copied."""
        request = self._request.replace(name_expressions=(expression,))
        built = CellBuild(request, self._build(request))
        others = (self.built, *self._instances)
        shared = {name for one in others for name in one.variables() & built.variables()}
        if shared:
            raise InvalidRequest(
                f"{expression} would have its own copy of the cell's variables "
                f"({', '.join(sorted(shared))}), since it is built after the cell; build it with "
                f"the cell: %%cuda -n '{expression}'"
            )
        self._instances.append(built)
        return CellKernel(text, built, expression, built.code.lowered_names[expression])

    @public
    def __getitem__(self, name: str) -> CellKernel | CellTemplate:
        try:
            return self.kernels[name]
        except KeyError:
            known = ", ".join(self.kernels) or "none"
            problem = f"no kernel {name!r} in this cell; it has: {known}"
            raise InvalidRequest(problem) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.kernels)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.kernels)

    def __repr__(self) -> str:
        return f"<CellModule for {self.code.arch}: {', '.join(self.kernels) or 'no kernels'}>"

    def get_global(self, name: str) -> Any:
        """Return a ``cupy.cuda.MemoryPointer`` to a variable of the cell."""
        if name in self.code.symbols("variable"):
            return self.built.module.get_global(name)
        raise InvalidRequest(f"this cell has no variable {name!r}")


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


def _substituted(text: KernelText, name: str) -> str:
    """Return the parameters with the names of template parameters replaced by the arguments."""
    if text.template is None or not name.endswith(">"):
        return text.parameters
    arguments = cxx.split(name.partition("<")[2][:-1])
    values = dict(zip(text.template, arguments, strict=False))  # the missing ones have defaults
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda m: values.get(m[0], m[0]), text.parameters)

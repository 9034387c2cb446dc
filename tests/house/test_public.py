"""What the package exports is whole: what it returns is exported too, and its examples run."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rtcompile

PACKAGE = Path(rtcompile.__file__).parent
CLASSES = {
    node.name
    for file in PACKAGE.rglob("*.py")
    for node in ast.parse(file.read_text()).body
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
}
EXPORTED = [name for name in dir(rtcompile) if name != "__version__"]


def returned_by(value: Any) -> Iterator[str]:
    """Yield the annotations of what a function returns, or of what a class's members are."""
    if inspect.isclass(value):
        documented = set(re.findall(r"\w+", value.__doc__ or ""))
        annotations = vars(value).get("__annotations__", {})
        yield from (str(text) for key, text in annotations.items() if key in documented)
        for key, member in vars(value).items():
            if key[0] != "_" or key in ("__call__", "__getitem__"):
                yield from returned_by(
                    getattr(member, "fget", None)
                    or getattr(member, "func", None)
                    or getattr(member, "__func__", member)
                )
    elif callable(value):
        yield str(getattr(inspect.unwrap(value), "__annotations__", {}).get("return", ""))


@pytest.mark.parametrize("name", EXPORTED)
def test_every_type_that_it_returns_is_exported(name: str):
    words = {
        word for text in returned_by(getattr(rtcompile, name)) for word in re.findall(r"\w+", text)
    }
    assert words & CLASSES <= set(EXPORTED)


@pytest.mark.parametrize("name", EXPORTED)
def test_it_has_a_docstring_of_its_own(name: str):
    value = getattr(rtcompile, name)
    assert (vars(value)["__doc__"] if inspect.isclass(value) else value.__doc__) or ""


# The errors and the types that a caller only gets: the examples of what gives them show them.
RESULTS = {
    "Advice",
    "BuildFuture",
    "BuildInfo",
    "Header",
    "HeaderCost",
    "Installation",
    "Kernel",
    "KernelModule",
    "KernelReport",
    "Occupancy",
    "Parameter",
    "Profile",
    "Report",
    "Spills",
    "TemplateCost",
}
WITH_EXAMPLES = [
    name
    for name in EXPORTED
    if name not in RESULTS and not name.endswith(("Error", "Warning"))
    if not (inspect.isclass(found := getattr(rtcompile, name)) and issubclass(found, BaseException))
]


@pytest.mark.needs_compiler
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_its_example_runs(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Lines that need a GPU are marked ``# doctest: +SKIP``."""
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(getattr(rtcompile, name)) or ""
    example = doctest.DocTestParser().get_doctest(text, {"rtcompile": rtcompile}, name, None, None)
    assert example.examples
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append)
    assert not result.failed, "".join(said)

"""Imports go one way, and importing the package loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rtcompile

PACKAGE = Path(rtcompile.__file__).parent

# A room may import those in the lines above its own, and modules of its own room.
ROOMS = (
    "_version diagnostic errors forks styling",
    "files",
    "request",
    "settings logs tracing",
    "inspect",
    "store",
    "lookup",
    "bundles",
    "workers",
    "toolkit",
    "messages",
    "compilers",
    "build",
    "api frontends",
    "extras",
    "cluster",
    "doctor",
    "cli __main__",
)
FLOORS = {room: level for level, rooms in enumerate(ROOMS) for room in rooms.split()}

# The imports that lead upwards. None may be added; each is to become a port or a move.
UPWARD = {}


def floor(module: str) -> int:
    return FLOORS[module.split(".")[1]]


def imported_by(file: Path) -> set[str]:
    """Return the modules of ours that a file imports when it runs, wherever the statement is."""
    tree = ast.parse(file.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                path = PACKAGE.parent / node.module.replace(".", "/") / alias.name
                is_module = path.is_dir() or path.with_suffix(".py").exists()
                found.add(f"{node.module}.{alias.name}" if is_module else node.module)
    return {name for name in found if name.startswith("rtcompile.")}


MODULES = sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py")


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_go_one_way(file: Path):
    own = floor("rtcompile." + str(file.relative_to(PACKAGE).with_suffix("")).replace("/", "."))
    upward = {name for name in imported_by(file) if floor(name) > own}
    short = module_of(file).partition(".")[2]
    allowed = {f"rtcompile.{name}" for module, name in UPWARD if module == short}
    assert upward == allowed


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("rtcompile", *parts)).removesuffix(".__init__")


def test_no_module_leads_back_to_itself():
    """Also inside a floor, also by an import in a function."""
    modules = {module_of(file): file for file in MODULES}
    imports = {name: imported_by(file) & set(modules) for name, file in modules.items()}
    while True:  # what imports nothing that is left is in no circle
        ends = [name for name, others in imports.items() if not others & set(imports) - {name}]
        if not ends:
            break
        for name in ends:
            del imports[name]

    assert not {name: sorted(others & set(imports)) for name, others in imports.items()}


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        pytest.param(
            "import rtcompile",
            {"cupy", "numpy", "cuda", "diskcache", "sqlite3", "ctypes", "subprocess", "rich"},
            id="package",
        ),
        pytest.param(
            "from rtcompile import compile",
            {"cupy", "numpy", "cuda", "diskcache", "sqlite3", "ctypes", "subprocess", "rich"},
            id="compile",
        ),
        pytest.param("from rtcompile import CompileError", {"cupy", "numpy"}, id="errors"),
        pytest.param(
            "import rtcompile.build.pipeline",
            {"json", "hashlib", "_hashlib", "fcntl", "logging", "platform", "tempfile"}
            | {"rtcompile.build.miss", "rtcompile.compilers", "rtcompile.workers"}
            | {"rtcompile.request.units", "rtcompile.store.locks", "rtcompile.toolkit.search"},
            id="before a hit",
        ),
    ],
)
def test_an_import_loads_nothing_heavy(statement: str, forbidden: set[str]):
    assert not loaded_by(statement) & forbidden


@pytest.mark.parametrize("spelling", ["'-DN=1'", "['-DN=1']", "'--options-file=options.txt'"])
def test_a_hit_loads_no_more_for_any_spelling(
    spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    Path("options.txt").write_text("-DN=1 -DM=1\n")
    ask = f"import rtcompile; rtcompile.compile('', options={spelling}, arch='sm_80')"
    loaded_by(ask)

    assert not loaded_by(ask) & {"re", "shlex", "json", "typing", "inspect", "dataclasses"}


@pytest.mark.parametrize("name", rtcompile.__all__)
def test_every_public_name_is_there(name: str):
    if name in ("RawKernel", "RawModule"):
        pytest.importorskip("cupy")
    assert getattr(rtcompile, name) is not None
    assert name in dir(rtcompile)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'RawModul'"):
        rtcompile.RawModul  # noqa: B018


def test_type_checkers_see_the_names_that_there_are():
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    names = {
        alias.asname
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert names == {*rtcompile.__all__, "load_ipython_extension"}


WITHOUT_CUPY = """
import sys
class NoCupy:
    def find_spec(self, name, path=None, target=None):
        if name == "cupy":
            raise ModuleNotFoundError("No module named 'cupy'", name="cupy")
sys.meta_path.insert(0, NoCupy())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "cupy" else found(name, *rest)
"""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import rtcompile; assert not hasattr(rtcompile, 'RawModule')", id="hasattr"),
        pytest.param("from rtcompile import *; assert compile.__module__ == 'rtcompile.api'", id="*"),
        pytest.param("import pydoc, rtcompile; assert 'KernelLibrary' in pydoc.render_doc(rtcompile)", id="pydoc"),
        pytest.param("import rtcompile; assert 'RawModule' not in dir(rtcompile)", id="dir"),
    ],
)  # fmt: skip
def test_without_cupy_everything_else_is_there(code: str):
    subprocess.run([sys.executable, "-c", WITHOUT_CUPY + code], check=True)


def test_importing_a_kernel_class_without_cupy_says_how_to_install_it():
    code = WITHOUT_CUPY + "from rtcompile import RawModule"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.count("Traceback") == 1
    last = done.stderr.strip().split("\n")[-1]
    assert "RawModule needs CuPy, which is not installed: pip install 'rtcompile[cuda12]'" in last

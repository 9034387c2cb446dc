"""Imports go one way, and importing the package loads nothing heavy."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rtcompile

PACKAGE = Path(rtcompile.__file__).parent

# A room may import those in the lines above its own, and modules of its own room.
ROOMS = (
    "_version diagnostic errors styling",
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
    "checkup",
    "cache tools",
    "cli __main__",
)
FLOORS = {room: level for level, rooms in enumerate(ROOMS) for room in rooms.split()}

# What the extras import from the core besides what `rtcompile` exports and the two ports. None may be
# added; an entry goes when its import does.
FROM_CORE = {
    "cluster": "files.sealed store.folder store.manifests store.remote",
    "devtools": "files.sealed request.options",
    "notebook": (
        "build.many build.progress errors frontends.arguments inspect.cubin inspect.report "
        "inspect.signature inspect.symbols messages.diagnostics messages.rendering request.cxx "
        "request.options styling"
    ),
    "packaging": "build.to_bundle errors request.values settings",
    "record": "build.pipeline build.portable files.sealed frontends.cupy_hook",
}
# The ports: `SharedStore` and what stores of ours share; what a build tells its listeners.
PORTS = {"store.shared": None, "lookup.find": {"listeners", "Listener"}}


def floor(module: str) -> int:
    return FLOORS[module.split(".")[1]]


def imports_of(file: Path, *, running: bool = False) -> set[tuple[str, str]]:
    """Return our modules that a file names, each with the name that is taken from it, or "".

    A statement counts wherever it is, in functions and for type checkers too, and so does a string that
    names a module, as for `sys.modules`. Only statements that run count if they are `running`.
    """
    tree = ast.parse(file.read_text())
    left_out = {
        id(inner)
        for node in ast.walk(tree)
        if running and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found: set[tuple[str, str]] = set()
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            found.update((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add((whole, "") if is_module(whole) else (node.module, alias.name))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not running:
            name = node.value.partition(":")[0]
            if re.fullmatch(r"rtcompile(\.\w+)+", name) and is_module(name):
                found.add((name, ""))
    return {(module, name) for module, name in found if module.startswith("rtcompile.")}


def is_module(name: str) -> bool:
    path = name.replace(".", "/")
    return any((PACKAGE.parent / f"{path}{end}.py").exists() for end in ("", "/__init__"))


def imported_by(file: Path) -> set[str]:
    """Return the modules of ours that a file imports when it runs, wherever the statement is."""
    return {module for module, _ in imports_of(file, running=True)}


MODULES = sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py")


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_go_one_way(file: Path):
    own = floor("rtcompile." + str(file.relative_to(PACKAGE).with_suffix("")).replace("/", "."))
    assert not [name for name, _ in imports_of(file) if floor(name) > own]


@pytest.mark.parametrize("extra", sorted(FROM_CORE))
def test_extras_stand_on_the_public_names_and_two_ports(extra: str):
    """What is left of the core's own in an extra is listed, and may only become less."""
    used = set()
    for file in (PACKAGE / "extras" / extra).rglob("*.py"):
        for module, name in imports_of(file):
            module = module.partition(".")[2]
            ports = PORTS.get(module, set())
            public = rtcompile._HOME.get(name) == module or name == "__version__"
            if not (public or ports is None or name in ports or module.startswith("extras.")):
                used.add(module)
    assert used == set(FROM_CORE[extra].split())


def test_no_extra_imports_another():
    for file in (PACKAGE / "extras").rglob("*.py"):
        own = file.relative_to(PACKAGE / "extras").parts[0]
        named = {
            module.split(".")[2]
            for module, _ in imports_of(file)
            if module.startswith("rtcompile.extras.")
        }
        assert named <= {own}, file


def test_every_extra_is_held():
    folders = (PACKAGE / "extras").iterdir()
    assert {folder.name for folder in folders if (folder / "__init__.py").exists()} == set(
        FROM_CORE
    )


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


@pytest.mark.needs_compiler
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
    assert names == {*dir(rtcompile), "load_ipython_extension"}


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


@pytest.mark.takes_seconds
@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import rtcompile; assert not hasattr(rtcompile, 'RawModule')", id="hasattr"),
        pytest.param("from rtcompile import *; assert explain.__module__ == 'rtcompile.tools'", id="*"),
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

"""Imports go one way, and importing the package loads nothing heavy."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import rtcompile
from tests.processes import python

PACKAGE = Path(rtcompile.__file__).parent

# A room may import those in the lines above its own, and modules of its own room.
ROOMS = (
    "diagnostic errors forks named styling",
    "files",
    "request",
    "settings",
    "cubin",
    "store",
    "lookup",
    "workers",
    "toolkit",
    "messages",
    "compilers",
    "build",
    "api frontends",
    "extras",
    "checkup",
    "cache",
    "cli __main__",
)
FLOORS = {room: level for level, rooms in enumerate(ROOMS) for room in rooms.split()}

# An extra may import the public names of `rtcompile`, and only these ports of the core: the interface of a cluster's
# store, this process's environment, the listeners of builds, what records and executors need to repeat builds, a measured compile, the number of
# the current device, the errors of launches, and the reader of machine code.
PORTS = {
    "files.fileset": {"DIGESTS"},
    "request.key": {"KeyInputs", "digest", "field", "is_portable", "may_travel"},
    "request.object_code": {"MOST_LISTED", "Found", "Record", "decode_records", "encode_records"},
    "settings": {"Settings", "cache_dir", "flag", "note", "seconds"},
    "store.folder": {"Folder", "at_end", "count"},
    "store.locks": {"Busy"},
    "store.store": {"Store", "object_file"},
    "lookup.environment": {"current"},
    "lookup.find": {"listeners", "Listener"},
    "build.pipeline": {"build"},
    "build.plan": {"linker_input"},
    "build.planned": {"plan", "add_to_index"},
    "request.options": None,
    "request.units": {"LinkInput"},
    "build.measured": None,
    "frontends.lazy_code": {"ordinal"},
    "messages.loading": {"of_launch"},
    "cubin": None,
}
# It may also import helpers that do not depend on requests and builds, since a copy in each extra would be
# worse: the base of all errors, what a forked child forgets, named tuples, styled text, files that are written by rename, the
# scanner of C++ text, and the checks of arguments. A test checks that these helpers import only each other, so extras reach nothing else of the core by them.
FOUNDATION = {
    *("errors", "diagnostic", "forks", "named", "styling"),
    *("files.sealed", "request.cxx", "request.values"),
}
EXTRAS = [
    folder for folder in sorted((PACKAGE / "extras").iterdir()) if (folder / "__init__.py").exists()
]


def floor(module: str) -> int:
    """Return the floor of a module of rtcompile; 0 for the public names, which are loaded on use."""
    room = module.partition(".")[2].partition(".")[0]
    return FLOORS[room] if room not in ("", "types") else 0


@functools.cache
def imports_of(file: Path, *, running: bool = False) -> set[tuple[str, str]]:
    """Return the modules of rtcompile that a file names, each with the imported name, or "".

    All statements count, also in functions and for type checkers. These count too: ``rtcompile.a.b`` in an
    expression; a string with a module's name, as for `sys.modules`, or the beginning of one; and the package
    as an argument of `getattr` or the like. With `running`, only statements that run count.
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
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: a relative import"
            found.update(taken(str(node.module), alias.name) for alias in node.names)
        elif not running:
            found.update(named_in(node))
    return {(module, name) for module, name in found if module.partition(".")[0] == "rtcompile"}


def taken(module: str, name: str) -> tuple[str, str]:
    whole = f"{module}.{name}"
    return (whole, "") if is_module(whole) else (module, name)


def named_in(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the modules and names that an expression uses; "*" stands for a computed name."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        name = node.value.partition(":")[0]
        if re.fullmatch(r"rtcompile(\.\w+)*\.", name):
            yield name, "*"
        if re.fullmatch(r"rtcompile(\.\w+)+", name) and is_module(name):
            yield name, ""
    elif isinstance(node, ast.Attribute):
        whole = node.attr
        while isinstance(node := node.value, ast.Attribute):
            whole = f"{node.attr}.{whole}"
        module, _, name = whole.rpartition(".")
        module = f"rtcompile.{module}".rstrip(".")
        if is_the_package(node) and is_module(module):
            yield taken(module, name)
    elif isinstance(node, (ast.Call, ast.Subscript)):
        is_call = isinstance(node, ast.Call)
        used, given = (node.func, node.args) if is_call else (node.value, [node.slice])
        reaches_in = re.compile(r"getattr|vars|import_module|__import__|modules")
        if any(map(is_the_package, given)) and reaches_in.search(ast.unparse(used)):
            yield "rtcompile", "*"


def is_the_package(node: ast.AST) -> bool:
    return "rtcompile" in (getattr(node, "id", None), getattr(node, "value", None))


@functools.cache
def is_module(name: str) -> bool:
    path = name.replace(".", "/")
    return any((PACKAGE.parent / f"{path}{end}.py").exists() for end in ("", "/__init__"))


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("rtcompile", *parts)).removesuffix(".__init__")


def imported_by(file: Path) -> set[str]:
    """Return the modules of rtcompile that a file imports at run time, also in functions."""
    return {module for module, _ in imports_of(file, running=True)} - {"rtcompile"}


MODULES = sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py")


def test_imports_go_one_way():
    assert not [
        f"{module_of(file)} imports {name}"
        for file in MODULES
        for name, _ in sorted(imports_of(file))
        if floor(name) > floor(module_of(file))
    ]


def is_allowed(module: str, name: str, extra: str) -> bool:
    """Return whether this extra may import a name ("" for the module itself) from a module of rtcompile."""
    if module == "rtcompile":
        return name in {"", "__version__", *rtcompile._HOME, *rtcompile._MODULES}
    own = module.partition(".")[2]
    port = PORTS.get(own, ())
    is_public = name == "__version__" or (name in rtcompile._HOME and rtcompile._HOME[name] == own)
    is_own = own.split(".")[:2] == ["extras", extra]
    is_port = own in PORTS and (port is None or name in {"", *port})
    is_public = is_public or own == "types" or (own, name) == ("messages", "render")
    return is_public or is_own or own in FOUNDATION or is_port


PYINSTALLER = {("pyinstaller", "hook-rtcompile.py"), ("rthooks", "worker_entry.py")}


def test_an_extra_uses_only_public_names_the_ports_and_itself():
    assert not {
        (module_of(file), module.partition(".")[2] or name)
        for extra in EXTRAS
        for file in extra.rglob("*.py")
        for module, name in imports_of(file)
        if not is_allowed(module, name, extra.name)
        # PyInstaller runs its hooks outside of the package, and they have to name it.
        and (file.parent.name, file.name) not in PYINSTALLER
    }


def test_helpers_shared_with_extras_import_no_other_module():
    assert not {
        (module, name)
        for module in FOUNDATION
        for name, _ in imports_of(PACKAGE / f"{module.replace('.', '/')}.py")
        if name.partition(".")[2] not in FOUNDATION
    }


def test_there_are_no_import_cycles():
    """Imports within a floor, and in functions, count too."""
    modules = {module_of(file): file for file in MODULES}
    imports = {name: imported_by(file) & set(modules) for name, file in modules.items()}
    while True:  # a module that imports none of the remaining ones is in no cycle
        ends = [name for name, others in imports.items() if not others & set(imports) - {name}]
        if not ends:
            break
        for name in ends:
            del imports[name]

    assert not {name: sorted(others & set(imports)) for name, others in imports.items()}


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    done = python(code, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        pytest.param(
            "import rtcompile; from rtcompile import compile, CompileError",
            {"cupy", "numpy", "cuda", "sqlite3", "ctypes", "subprocess"},
            id="compile",
        ),
        pytest.param(
            "import rtcompile.build.pipeline",
            {"json", "hashlib", "_hashlib", "fcntl", "logging", "platform", "tempfile"}
            | {"rtcompile.build.miss", "rtcompile.compilers", "rtcompile.workers"}
            | {"rtcompile.request.units", "rtcompile.store.locks", "rtcompile.toolkit.search"},
            id="before a hit",
        ),
    ],
)
def test_an_import_loads_nothing_heavy(statement, forbidden):
    assert not loaded_by(statement) & forbidden


def test_every_public_name_exists():
    pytest.importorskip("cupy")
    assert set(rtcompile.__all__) <= set(dir(rtcompile))
    assert not [name for name in rtcompile.__all__ if getattr(rtcompile, name) is None]
    with pytest.raises(AttributeError, match="no attribute 'RawModul'"):
        rtcompile.RawModul  # noqa: B018


def test_type_checkers_see_the_existing_names():
    def names(stub: str) -> set[str]:
        body = ast.parse((PACKAGE / stub).read_text()).body
        found = [node.names for node in body if isinstance(node, ast.ImportFrom)]
        stated = [ast.unparse(node.target) for node in body if isinstance(node, ast.AnnAssign)]
        stated = [name for name in stated if name.startswith("__") or name[0] != "_"]
        return {*stated, *(str(alias.asname) for names in found for alias in names)}

    assert names("__init__.pyi") == {*dir(rtcompile), "load_ipython_extension"}
    assert names("types.pyi") == {*dir(rtcompile.types)}


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


WITHOUT_KERNELS = """
import pydoc, rtcompile
assert 'KernelLibrary' in pydoc.render_doc(rtcompile)
assert 'RawModule' not in dir(rtcompile)
from rtcompile import *
assert explain.__module__ == 'rtcompile.checkup'
print('reached')
from rtcompile import RawModule
"""


@pytest.mark.takes_seconds
def test_without_cupy_all_works_but_a_kernel_class_whose_import_names_the_package():
    done = python(WITHOUT_CUPY + WITHOUT_KERNELS)
    assert done.stdout == "reached\n", done.stderr
    assert done.stderr.count("Traceback") == 1
    last = done.stderr.strip().split("\n")[-1]
    assert "RawModule needs CuPy, which is not installed: pip install cupy-cuda13x" in last

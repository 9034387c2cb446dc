"""Tests of kernel libraries: cheap declarations, one build, checked arguments, pickling."""

import pickle
import time
from types import SimpleNamespace

import numpy as np
import pytest

from rtcompile.errors import CompileError, InvalidRequest
from rtcompile.extras.packaging.library import KernelLibrary, parse
from tests.jobs import at_once
from tests.packages import DECLARATION, HEADER, SOURCE, Package
from tests.processes import python
from tests.tables import from_table


@pytest.fixture
def package(tmp_path, monkeypatch):
    return Package(tmp_path / "site-packages", "library_kernels", monkeypatch)


# --- signatures ----------------------------------------------------------------------------------


@from_table
def test_a_parameter_is_read_as_cpp_reads_it(declaration, name, dtype, pointer, const, size):
    (parameter,) = parse(declaration, "k")
    assert (parameter.name, parameter.dtype) == (name, dtype)
    assert (parameter.pointer, parameter.const, parameter.size) == (pointer, const, size)
    assert str(parameter) == declaration


@pytest.mark.parametrize(("text", "count"), [("", 0), ("void", 0), ("Map<int, int> m, int n", 2)])
def test_parameters_are_split_where_cpp_splits_them(text, count):
    assert len(parse(text, "k")) == count


INVALID = "float* x,|float& x|int n = 3|void (*f)(int)|float* 3|float x y z w, )( int|float x y|Pair<int p|float x[4"


@pytest.mark.parametrize("text", INVALID.split("|"))
def test_an_invalid_parameter_is_reported(text):
    with pytest.raises(InvalidRequest, match=r"a\.cu: k: .* is not a parameter of a kernel"):
        parse(text, "a.cu: k")


# --- arguments -----------------------------------------------------------------------------------


def convert(text, *args):
    pytest.importorskip("cupy")
    from rtcompile.extras.packaging.arguments import convert

    return convert(parse(text, "k"), args, "k")


def device_array(typestr="<f4", *, read_only=False):
    """Return a fake device array of another library; no device is needed."""
    return SimpleNamespace(__cuda_array_interface__={"typestr": typestr, "data": (64, read_only)})


@from_table
def test_arguments_are_converted_to_the_parameters_type(text, value, expected):
    (converted,) = convert(text, value)
    assert (converted.dtype.name, converted) == expected


def test_null_pointers_and_structs_are_passed_on_and_host_memory_is_rejected():
    struct = np.zeros(1, "V128")
    assert convert("float* x, Params p", None, struct) == (None, struct)
    with pytest.raises(InvalidRequest, match=r"NumPy array, in host memory; pass cupy\.asarray"):
        convert("float* x", np.zeros(3, "f4"))


@from_table
def test_an_argument_that_does_not_fit_is_reported(text, args, message):
    with pytest.raises(InvalidRequest, match=message):
        convert(text, *args)


# --- libraries -----------------------------------------------------------------------------------


def test_importing_a_package_of_kernels_loads_neither_cupy_nor_a_compiler(package):
    code = (
        f"import sys; sys.path.insert(0, {str(package.folder.parent)!r}); import {package.name}\n"
        "print(*sys.modules)"
    )
    done = python(code, check=True)
    heavy = {"cupy", "numpy", "cuda.bindings", "subprocess", "importlib.resources"}
    heavy |= {"rtcompile.build.pipeline", "rtcompile.toolkit", "rtcompile.workers"}
    assert not heavy & set(done.stdout.split())


@pytest.mark.needs_compiler
def test_sources_and_headers_come_from_the_package(package):
    module = package.load().module
    code = module.compile("sm_80")
    assert set(code.lowered_names) == {"scale<float>", "fill"}
    assert [(h.label, h.relative) for h in code.build.headers] == [("user0", "common.cuh")]
    for name in module:  # the signatures fit their kernels
        module[name].check(code)
    with pytest.raises(
        InvalidRequest, match="no kernel 'fil' declared; declared are: scale<float>"
    ):
        module["fil"]
    assert list(module) == ["scale<float>", "fill"]


@pytest.mark.needs_compiler
def test_sources_and_headers_may_have_their_own_folders(package):
    before = 'library = KernelLibrary(__name__, bundle="kernels.rtcb")'
    declaration = 'library = KernelLibrary(__name__, folder="src/cuda", include_dirs=["include"])'
    package.write("__init__.py", DECLARATION.replace(before, declaration))
    package.write("src/cuda/scale.cu", SOURCE)
    package.write("include/common.cuh", HEADER)
    (package.folder / "common.cuh").unlink()
    assert package.load().module.compile("sm_80").code


@pytest.mark.needs_compiler
def test_an_error_in_a_source_names_the_packages_file(package):
    package.write("scale.cu", SOURCE.replace("value", "valeu", 1))
    with pytest.raises(CompileError, match=r"^scale\.cu:7:"):
        package.load().module.compile("sm_80")
    (package.folder / "scale.cu").unlink()
    with pytest.raises(InvalidRequest, match=r"/library_kernels/scale\.cu: No such file"):
        package.load().module.compile("sm_80")


@pytest.mark.needs_compiler
@from_table
def test_a_signature_that_is_not_the_kernels_is_reported(package, declared, message):
    package.write("__init__.py", DECLARATION.replace("float* x, float value", declared))
    module = package.load().module
    with pytest.raises(InvalidRequest, match=message):
        module["fill"].check(module.compile("sm_80"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KernelLibrary(None), "package must be a str, not None"),
        (lambda: KernelLibrary("no_such", folder=3), "folder must be a str, not int 3"),
        (lambda: KernelLibrary("no_such", options=None), "options must be a list of str"),
        (lambda: KernelLibrary("no_such").module("a.cu", ["k"]), "must map names to signatures"),
        (lambda: KernelLibrary("no_such").module("a.cu", {"k": None}), r"kernels\['k'\] must be"),
        (lambda: KernelLibrary("no_such").module("a.cu", {}).request, "no package 'no_such'"),
        (lambda: KernelLibrary("").module("a.cu", {}).request, "no package ''"),
    ],
    ids=["package", "folder", "options", "kernels", "signature", "absent", "empty"],
)
def test_an_argument_of_a_wrong_type_is_reported(make, message):
    with pytest.raises(InvalidRequest, match=message):
        make()


@pytest.mark.parametrize("error", ["ValueError()", "ImportError(name=__name__)"])
def test_an_error_in_a_package_is_its_own(tmp_path, monkeypatch, error):
    (tmp_path / "package_with_an_error.py").write_text(f"raise {error}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises((ValueError, ImportError)) as raised:
        _ = KernelLibrary("package_with_an_error").module("a.cu", {}).request
    assert type(raised.value).__name__ == error.partition("(")[0]


@pytest.mark.needs_compiler
def test_libraries_modules_and_kernels_pickle(package):
    loaded = package.load()
    kernel = pickle.loads(pickle.dumps(loaded.module["scale<float>"]))
    assert repr(kernel) == "scale<float>(float* x, float by, int n)"
    assert kernel.module.compile("sm_80").build.hit is None
    assert pickle.loads(pickle.dumps(loaded.module)).request == loaded.module.request
    assert pickle.loads(pickle.dumps(loaded.library)).package == package.name


@pytest.mark.needs_compiler
@pytest.mark.usefixtures("absent_device")
def test_threads_share_one_module(package, monkeypatch):
    pytest.importorskip("cupy")
    from rtcompile.frontends import lazy_code, raw_kernel

    loaded: dict[bytes, SimpleNamespace] = {}

    def load(code, names):  # like CuPy's memo, which has no lock
        if code not in loaded:
            time.sleep(0.05)
            module = SimpleNamespace(mapping=dict(names), functions={})
            module.get_function = lambda name: module.functions.setdefault(name, object())
            assert loaded.setdefault(code, module) is module
        return loaded[code]

    for module in (raw_kernel, lazy_code):
        monkeypatch.setattr(module, "current_device", lambda: 0)
    monkeypatch.setattr(lazy_code, "_load", load)
    kernel = package.load().module["fill"]
    found = at_once(*[lambda: kernel.raw.kernel] * 8)
    assert len(loaded) == 1
    assert len(found) == 8
    assert len({id(one) for one in found}) == 1


def test_options_of_the_library_come_before_the_modules(tmp_path, monkeypatch):
    package = Package(tmp_path, "optional_kernels", monkeypatch)
    package.load()
    lib = KernelLibrary(package.name, options="-DN=1")
    module = lib.module("scale.cu", {"fill": "float* x, float value"}, options=["-DN=2"])
    assert module.request.options == (f"-I{package.folder}", "-DN=1", "-DN=2")

"""Typical mistakes raise one error without chained exceptions, whose first line names the mistake."""

import os
import pickle
import re
import traceback
from typing import Any
from unittest import mock

import pytest

cupy = pytest.importorskip("cupy")

import rtcompile  # noqa: E402
from rtcompile.messages.loading import of_launch  # noqa: E402
from tests import doors  # noqa: E402
from tests.mistakes import MISTAKES, pretended_device  # noqa: E402
from tests.processes import build_of, functions_of  # noqa: E402

PACKAGE = os.path.dirname(rtcompile.__file__)


@pytest.fixture
def device():
    with pretended_device():
        yield


@pytest.fixture
def shell() -> Any:
    pytest.importorskip("IPython")
    return doors.ipython()


def assert_unchained(error: BaseException) -> None:
    assert isinstance(error, rtcompile.RtcompileError)
    assert error.__context__ is None
    assert error.__cause__ is None
    ours = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(PACKAGE)]
    assert len(ours) <= 2, ours
    assert str(error).partition("\n")[0].strip()


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    "mistake",
    [
        # Its headers take seconds to read, and test_hints.py tests its message.
        pytest.param(one, marks=[pytest.mark.slow] * (one.name == "all of CUB"), id=one.name)
        for one in MISTAKES
    ],
)
def test_a_mistake_is_the_first_line_of_one_error(mistake, device):
    with pytest.raises(rtcompile.RtcompileError) as caught:
        mistake.module().get_function(mistake.kernel)
    assert_unchained(caught.value)
    first, _, rest = str(caught.value).partition("\n")
    assert mistake.message in first
    assert mistake.hint in " ".join(rest.split())
    assert (
        not mistake.compiles or "named symbol not found" in rest
    )  # the message must contain CuPy's text


BAD = "this is no C++"
GOOD = 'extern "C" __global__ void k(float* x) { *x = 1; }'


def library() -> rtcompile.KernelLibrary:
    return rtcompile.KernelLibrary("tests")


def calls() -> dict[str, Any]:
    """Return failing calls of every public function, with all kinds of reasons."""
    kernel = rtcompile.RawKernel(BAD, "k", arch="sm_80")
    bad = rtcompile.RawModule(code=BAD, arch="sm_80")
    good = rtcompile.RawModule(code=GOOD, arch="sm_80")
    wrong = rtcompile.CompileRequest(source=BAD, arch="sm_80")
    return {
        "compile": lambda: rtcompile.compile(BAD, arch="sm_80"),
        "compile: options": lambda: rtcompile.compile(GOOD, arch="sm_80", options=3),
        "compile: arch": lambda: rtcompile.compile(GOOD, arch="sm_9x"),
        "compile: old arch": lambda: rtcompile.compile(GOOD, arch="sm_42"),
        "compile: no device": lambda: rtcompile.compile(GOOD),
        "compile: link": lambda: rtcompile.compile(GOOD, arch="sm_80", link=["gone.o"]),
        "compile: size": lambda: rtcompile.compile(GOOD, arch="sm_80", memory_limit="much"),
        "compile: bytes": lambda: rtcompile.compile(b"x", arch="sm_80"),
        "compile: \\xff option": lambda: rtcompile.compile(GOOD, arch="sm_80", options=["-I\0"]),
        "compile_many": lambda: rtcompile.compile_many([wrong, wrong], progress=False),
        "compile_many: item": lambda: rtcompile.compile_many([3]),
        "submit_many": lambda: rtcompile.submit_many([wrong])[0].result(),
        "request": lambda: rtcompile.CompileRequest(source=GOOD, backend="gcc"),
        "request: replace": lambda: wrong.replace(target="exe"),
        "Arch": lambda: rtcompile.Arch.parse("sm_9x"),
        "use_bundle": lambda: rtcompile.use_bundle(3),
        "RawKernel: argument": lambda: rtcompile.RawKernel(GOOD, "k", backend="gcc"),
        "RawKernel: call": lambda: kernel((1,), (1,), ()),
        "RawKernel: kernel": lambda: kernel.kernel,
        "RawKernel: attribute": lambda: kernel.num_regs,
        "RawKernel: compile": lambda: kernel.compile(),
        "RawKernel: report": lambda: kernel.report(),
        "RawKernel: build": lambda: kernel.build,
        "RawModule: argument": lambda: rtcompile.RawModule(),
        "RawModule: module": lambda: bad.module,
        "RawModule: compile": lambda: bad.compile(),
        "RawModule: object_code": lambda: bad.object_code,
        "RawModule: get_function": lambda: bad.get_function("k"),
        "RawModule: no function": lambda: good.get_function("q"),
        "RawModule: file": lambda: rtcompile.RawModule(path="gone.cubin").report(),
        "RawModule: gone": lambda: rtcompile.RawModule(path="gone.cubin").module,
        "library: no source": lambda: library().module("gone.cu", {"k": ""}).raw,
        "library: not declared": lambda: library().module("gone.cu", {"k": ""})["q"],
        "library: signature": lambda: library().module("gone.cu", {"k": "("})["k"].parameters,
        "library: call": lambda: library().module("gone.cu", {"k": "int n"})["k"]((1,), (1,), (1,)),
    }


@pytest.mark.needs_compiler
@pytest.mark.parametrize("call", calls())
def test_no_internal_exception_is_chained_to_an_error(call, device):
    with pytest.raises(rtcompile.RtcompileError) as caught:
        calls()[call]()
    assert_unchained(caught.value)


def test_no_internal_exception_is_chained_without_a_device():
    with pytest.raises(rtcompile.DriverError, match="no CUDA device") as caught:
        rtcompile.RawKernel(GOOD, "k")((1,), (1,), ())
    assert_unchained(caught.value)


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    "use",
    [
        lambda kernel, _: kernel((1,), (1,), ()),
        lambda kernel, _: kernel.launch(1, 1, ()),
        lambda kernel, _: kernel.compile(),
        lambda _, module: module.get_function("k"),
        lambda _, module: module.get_global("k"),
        lambda _, module: module.compile(),
    ],
)
def test_loading_code_for_an_arch_gives_no_advice_to_pass_one(use):
    kernel = rtcompile.RawKernel(GOOD, "k", arch="sm_80")
    module = rtcompile.RawModule(code=GOOD, arch="sm_80")
    with pytest.raises(rtcompile.DriverError, match="no CUDA device to load and run") as caught:
        use(kernel, module)
    assert caught.value.status == 100
    assert "arch=" not in str(caught.value)
    assert "hint:" not in str(caught.value)
    assert kernel.object_code.kind == module.object_code.kind == "cubin"


@pytest.mark.needs_compiler
def test_the_callers_own_exception_stays_chained(device):
    own = KeyError("the caller's")
    with pytest.raises(rtcompile.CompileError) as caught:  # noqa: PT012
        try:
            raise own
        except KeyError:
            rtcompile.compile(BAD, arch="sm_80")
    assert caught.value.__context__ is own


@pytest.mark.needs_compiler
def test_errors_of_a_batch_have_no_chained_exception():
    wrong = rtcompile.CompileRequest(source=BAD, arch="sm_80")
    for error in rtcompile.compile_many([wrong], errors="return", progress=False):
        assert error.__context__ is None
        assert error.__traceback__ is None


@pytest.mark.needs_compiler
def test_code_for_another_device_is_reported_with_both(device):
    text = '__device__ const char mark[] = "for sm_90a only";\n' + GOOD.replace(
        "1;", "mark[(int)*x];"
    )
    module = rtcompile.RawModule(code=text, arch="sm_90a")
    with (
        mock.patch("rtcompile.lookup.find.compute_capability", return_value=(8, 0)),
        pytest.raises(rtcompile.DriverError) as caught,
    ):
        module.get_function("k")
    assert_unchained(caught.value)
    assert caught.value.status == 209
    first, _, hint = str(caught.value).partition("\n")
    assert first.startswith("kernel.cu (compiled for sm_90a) was not loaded: CUDA_ERROR_NO_BINARY")
    assert "no part that the device (compute capability 8.0) can run" in " ".join(hint.split())


@pytest.mark.needs_compiler
def test_a_missing_variable_is_distinguished_from_a_mangled_one(device):
    code = "namespace n { __device__ int count; }\n" + GOOD.replace("1;", "n::count++;")
    module = rtcompile.RawModule(code=code, arch="sm_80")
    error = cupy.cuda.driver.CUDADriverError.__new__(cupy.cuda.driver.CUDADriverError)
    error.args, error.status = ("CUDA_ERROR_NOT_FOUND: named symbol not found",), 500
    with pytest.raises(rtcompile.DriverError, match="its n::count is C") as caught:
        build_of(module).named("variable", mock.Mock(side_effect=error), "count")
    assert "name_expressions=['&n::count']" in str(caught.value)


def test_errors_of_the_driver_are_cupys_and_pickle():
    error = rtcompile.DriverError("words", 500)
    assert isinstance(error, cupy.cuda.driver.CUDADriverError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.status) == ("words", 500)


@pytest.mark.parametrize(
    ("block", "shared", "message"),
    [
        ((128,), 60000, "set kernel.max_dynamic_shared_size_bytes = 60000 first"),
        ((64, 8), 0, "512 threads in a block are more than the 256"),
        ((1,), 0, "max_dynamic_shared_size_bytes"),
    ],
)
def test_a_rejected_launch_names_the_exceeded_limit(block, shared, message):
    kernel = mock.Mock(
        max_threads_per_block=256, shared_size_bytes=1024, max_dynamic_shared_size_bytes=49152
    )
    kernel.name = "k"
    error = of_launch(kernel, "CUDA_ERROR_INVALID_VALUE: invalid argument", 1, block, shared)
    assert str(error).startswith("the launch of k was rejected: CUDA_ERROR_INVALID_VALUE")
    assert message in str(error)


def test_a_launch_that_is_rejected_is_one_error(device):
    kernel = rtcompile.RawKernel(GOOD, "k", arch="sm_80")
    error = cupy.cuda.driver.CUDADriverError.__new__(cupy.cuda.driver.CUDADriverError)
    error.args, error.status = ("CUDA_ERROR_INVALID_VALUE: invalid argument",), 1
    functions_of(kernel)[0] = mock.Mock(side_effect=error)
    with pytest.raises(rtcompile.DriverError, match="the launch of k was rejected") as caught:
        kernel((1,), (1,), (), shared_mem=100_000)
    assert_unchained(caught.value)


@pytest.mark.needs_compiler
def test_ipython_shows_only_the_message_and_the_callers_line(capsys, device, shell):
    shell.run_cell("import rtcompile")
    shell.run_cell(
        "kernel = rtcompile.RawKernel('int x = y;', 'k', arch='sm_80')\n\nkernel((1,), (1,), ())"
    )
    shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).strip().split("\n")
    assert shown == [
        'kernel.cu:1:9: error: identifier "y" is undefined',
        "    1 | int x = y;",
        "      |         ^",
        "  hint: No declaration of y is visible in this line. A variable is declared above its use, and a",
        "        macro of the options by -Dy=VALUE; a function and a type come with their header.",
        "  from line 3: kernel((1,), (1,), ())",
    ]


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    "cell",
    [
        "%%cuda --arch sm_80\nint x = y;",
        "%%cuda --arch sm_9x\nint x;",
        "%%cuda --arch\nint x;",
        "%%cuda --arch sm_42\nint x;",
        "%%cuda --arch sm_80 -n 'f<Real>'\ntemplate <class T> __global__ void f(T* x) {}",
        "%%cuda --arch sm_80 --backend gcc\nint x;",
        "cells['q']",
        "cells['f']['Real']",
        "cells['f']()",
        "cells['k']((1,), (1,), (1, 2, 3))",
        "%%cuda_header\nint x;",
    ],
)
def test_no_internal_exception_is_chained_in_a_notebook(cell, device, shell):
    shell.run_line_magic("load_ext", "rtcompile")
    source = "template <class T> __global__ void f(T* x) {}\n__global__ void k(int n) {}"
    assert shell.run_cell(f"%%cuda --arch sm_80 --module cells\n{source}").success
    assert_unchained(shell.run_cell(cell).error_in_exec)


@pytest.mark.takes_seconds
def test_ipython_hides_rtcompiles_frames_of_another_librarys_error(capsys, device, shell):
    kernel = rtcompile.RawKernel(GOOD, "k", arch="sm_80")
    functions_of(kernel)[0] = mock.Mock(side_effect=TypeError("unsupported type"))
    shell.user_ns["kernel"] = kernel
    shell.run_cell("kernel((1,), (1,), (object(),))")
    shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert "TypeError: unsupported type" in shown
    assert PACKAGE not in shown
    assert "kernels.py" not in shown

"""Tests of ``%%cuda`` in IPython: kernels are bound, displayed, and rebuilt only if needed."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("IPython", reason="IPython is not installed: it is in the extra `test`")

import rtcompile
from rtcompile import CompileError, InvalidRequest
from rtcompile.cubin import cpp_name, simple_name
from rtcompile.extras.notebook import own_variables, read
from tests import doors
from tests.jobs import ENDLESS
from tests.processes import python
from tests.programs import TWO
from tests.tables import from_table

pytestmark = pytest.mark.needs_compiler

TEMPLATE = """
template <class T, int N> __global__ void scale(T* x, T by) { x[threadIdx.x] *= by * N; }
"""


@pytest.fixture(scope="module")
def ipython() -> Iterator[Any]:
    """An IPython shell with the extension loaded."""
    main = sys.modules["__main__"]  # the shell puts its namespace there
    shell = doors.ipython()
    shell.run_line_magic("load_ext", "rtcompile")
    yield shell
    sys.modules["__main__"] = main


@pytest.fixture
def shell(ipython: Any) -> Iterator[Any]:
    """The shell with a new notebook."""
    ipython.run_line_magic("cuda_options", "--arch sm_80")
    yield ipython
    ipython.reset(new_session=False)


def cuda(shell: Any, cell: str, line: str = "") -> Any:
    """Run a cell; return its module."""
    result = shell.run_cell(f"%%cuda {line}\n{cell}", store_history=False)
    result.raise_error()
    return result.result


def hits(module: Any) -> dict[str, str | None]:
    return {name: kernel.code.build.hit for name, kernel in module.items()}


# --- cells ---------------------------------------------------------------------------------------


def test_kernels_are_bound_to_their_names_and_found_in_the_cache(shell):
    assert hits(cuda(shell, TWO)) == {"double_it": None, "halve_it": None}
    assert repr(shell.user_ns["double_it"]) == "double_it(float* x, int n)"
    assert shell.user_ns["halve_it"].code.kind == "cubin"
    assert hits(cuda(shell, TWO)) == {"double_it": "memory", "halve_it": "memory"}
    assert set(hits(cuda(shell, TWO.replace("*= 2", "*= 3"))).values()) == {None}


COUNTING = """
__device__ int next() { static int calls; return calls++; }
__global__ void a(int* x) { *x = next(); }
__global__ void b(int* x) { *x = next(); }
"""


def test_an_instance_with_its_own_static_variable_is_rejected(shell):
    template = "template <class T> __global__ void c(T* x) { *x = next(); }\n"
    cuda(shell, COUNTING + template)
    with pytest.raises(InvalidRequest, match=r"\(next\(\)::calls\).* %%cuda -n 'c<int>'"):
        shell.user_ns["c"]["int"]
    cuda(shell, COUNTING + template, "-n c<int>")
    assert shell.user_ns["c"]["int"].code is shell.user_ns["a"].code


def test_variables_of_kernels_and_headers_do_not_prevent_instances(shell):
    shell.run_cell("%%cuda_header own.cuh\n__device__ int unseen;\n").raise_error()
    static = "__global__ void a(int* x) { static int calls; *x = calls++; }\n"
    cuda(shell, f'#include "own.cuh"\n{static}{TEMPLATE}')
    assert shell.user_ns["scale"]["int", 1]


def test_kernels_made_by_a_macro_are_bound_and_those_in_an_inactive_branch_are_not(shell):
    module = cuda(shell, "#define K(n) __global__ void n(int* x) { *x = 1; }\nK(one) K(two)\n")
    assert set(module) == {"one", "two"}
    assert list(cuda(shell, f"#if 0\n{TWO}\n#endif\n__global__ void k() {{}}")) == ["k"]


# --- headers, options ----------------------------------------------------------------------------


def test_a_header_cell_can_be_included_and_rebuilds_its_includers(shell):
    use = '#include "own/shape.cuh"\n' + TWO.replace("*= 2", "*= SIDES")
    use = use.replace("/= 2", "/= SIDES")
    shell.run_cell("%%cuda_header own/shape.cuh\n#define SIDES 3\n").raise_error()
    cuda(shell, use)
    shell.run_cell("%%cuda_header own/shape.cuh\n#define SIDES 3\n").raise_error()
    assert set(hits(cuda(shell, use)).values()) == {"memory"}
    shell.run_cell("%%cuda_header own/shape.cuh\n#define SIDES 4\n").raise_error()
    assert set(hits(cuda(shell, use)).values()) == {None}


@pytest.mark.parametrize("line", ["-DSIDES=5 -lineinfo", "--arch compute_80"])
def test_a_launch_uses_the_code_that_the_cell_built(shell, line):
    """A launch gets the code from a `RawModule` with the same request, including headers and options."""
    shell.run_cell("%%cuda_header own/shape.cuh\n#define CORNERS 3\n").raise_error()
    use = '#include "own/shape.cuh"\n' + TWO.replace("*= 2", "*= CORNERS")
    module = cuda(shell, use, line)
    launched = module.raw.object_code
    assert launched.code == module.code.code
    assert launched.build.hit == "memory"


def test_options_apply_to_all_later_cells_and_variables_may_be_used(shell):
    shell.user_ns["width"] = 7
    shell.run_line_magic("cuda_options", "--arch sm_86 -DWIDTH=1")
    module = cuda(shell, "__global__ void k(int* x) { *x = WIDTH; }", "-DWIDTH={width}")
    assert str(module["k"].code.arch) == "sm_86"
    assert tuple(module.arguments["options"][:2]) == ("-DWIDTH=1", "-DWIDTH=7")


@from_table
def test_a_line_is_read(text, arguments, module):
    expected = {"arch": None, "name_expressions": [], "options": [], **arguments}
    assert read(text) == (expected, module)


# --- templates -----------------------------------------------------------------------------------


def test_instances_of_a_template_are_chosen_by_index(shell):
    np = pytest.importorskip("numpy")
    cuda(shell, TEMPLATE)
    scale = shell.user_ns["scale"]
    assert repr(scale["float", 4]) == "scale<float, 4>(float* x, float by)"
    assert scale[np.float32, 4] is scale["float", 4]
    cuda(shell, f"namespace a::b {{ {TEMPLATE} }}")
    inside = shell.user_ns["scale"]["double", True]
    assert repr(inside).startswith("a::b::scale<double, true>(double* x")


def test_instances_can_be_built_with_the_cell(shell):
    module = cuda(shell, TEMPLATE + TWO, "-n 'scale<float,2>' -n double_it")
    assert module["scale"]["float", 2].code is module["double_it"].code


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda scale: scale["nothing", 1], 'identifier "nothing" is undefined'),
        (lambda scale: scale[1.5], "1.5 is not a template argument"),
        (lambda scale: scale((1,), (1,), ()), r"choose its arguments first: scale\['float'\]"),
    ],
)
def test_an_invalid_instance_is_reported(shell, choose, message):
    cuda(shell, TEMPLATE)
    with pytest.raises((InvalidRequest, CompileError), match=message):
        choose(shell.user_ns["scale"])


# --- mistakes ------------------------------------------------------------------------------------


@from_table
def test_a_mistake_is_one_readable_message(shell, capsys, line, cell, message):
    result = shell.run_cell(f"%%cuda {line}\n{cell}")
    assert isinstance(result.error_in_exec, rtcompile.RtcompileError)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert re.search(message, shown), shown
    assert "Traceback" not in shown


def test_a_cells_error_names_the_attribute_with_the_whole_log(shell, capsys):
    calls = "".join(f"nope{i}(); " for i in range(9))
    shell.run_cell(f"%%cuda\n__global__ void k() {{ {calls}}}")
    assert "`sys.last_value.log` has the compiler's whole text" in capsys.readouterr().out
    assert '"nope8" is undefined' in sys.last_value.log  # type: ignore[attr-defined]


def test_a_killed_compiler_leaves_its_reproducer_in_the_cell(shell, capsys, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_TIMEOUT", "0.3")
    result = shell.run_cell(f"%%cuda\n{ENDLESS}")
    assert isinstance(result.error_in_exec, rtcompile.CompileTimeout)
    printed = capsys.readouterr().out
    assert "Raise RTCOMPILE_TIMEOUT" in printed
    folder = re.sub(r"\x1b\[[\d;]*m", "", printed).partition("Reproducer: ")[2].strip()
    assert folder == result.error_in_exec.reproducer
    assert (Path(folder) / "run.sh").exists()


@pytest.mark.parametrize("name", ["", "/etc/x.h", "../x.h", "a/../../x.h"])
def test_a_header_needs_a_name_of_its_own(shell, capsys, name):
    assert shell.run_cell(f"%%cuda_header {name}\nint x;").error_in_exec
    assert "give a name to include it by" in capsys.readouterr().out


def test_one_mistake_in_shared_code_is_reported_once(shell, capsys):
    shell.run_cell(f"%%cuda\nint broken = ;\n{TWO}")
    assert capsys.readouterr().out.count("expected an expression") == 1


# --- displays ---------------------------------------------------------------------------------------


def shown(shell: Any, value: Any) -> tuple[str, str]:
    data, _ = shell.display_formatter.format(value)
    return data["text/plain"], data["text/html"]


def test_a_module_shows_what_was_built_and_what_it_takes(shell):
    text, html = shown(shell, cuda(shell, TWO))
    for look in (text, html):
        assert "double_it(float* x, int n)" in look
        assert "nvrtc 1" in look
        assert "registers" in look
        assert look.count("1024") == look.count("100%") == 2
    assert "hit (memory)" in shown(shell, cuda(shell, TWO))[0]


def test_a_warning_about_the_cell_is_shown_once_at_its_line(shell):
    text, html = shown(shell, cuda(shell, "__device__ void f() { int unused; }\n" + TWO))
    assert text.count("cell.cu:2:27: warning: variable ") == 1
    assert "unused" in html


def test_kernels_and_templates_have_displays(shell):
    module = cuda(shell, TEMPLATE + TWO, "-n 'scale<float, 2>'")
    _, html = shown(shell, module)
    assert "scale&lt;float, 2&gt;" in html
    assert "<float" not in html
    assert "halve_it(float* x, int n)" in shown(shell, module["halve_it"])[0]
    assert "scale['float'] is a kernel" in shown(shell, module["scale"])[0]
    assert "no kernel (__global__)" in shown(shell, cuda(shell, "__device__ int f();"))[0]
    ptx, _ = shown(shell, cuda(shell, TWO, "--arch compute_80"))
    assert ptx.startswith("CUDA cell: double_it, halve_it (sm_80, ")
    assert "registers" not in ptx


def test_a_report_is_a_table(shell):
    text, html = shown(shell, rtcompile.compile(TWO, arch="sm_80").report())
    for look in (text, html):
        assert "sm_80, 2 kernels" in look
        assert "_Z9double_itPfi" in look
        assert "100%" in look


def completions(shell: Any, text: str) -> set[str]:
    from IPython.core.completer import provisionalcompleter

    with provisionalcompleter():
        return {found.text for found in shell.Completer.completions(text, len(text))}


def test_kernels_are_completed_and_described(shell):
    cuda(shell, TEMPLATE + TWO, "-n 'scale<int, 3>' --module cell_module")
    assert shell.user_ns["cell_module"]["double_it"] is shell.user_ns["double_it"]
    assert "double_it" in completions(shell, "doub")
    assert "'int, 3'" in completions(shell, "scale[")
    assert "'halve_it'" in completions(shell, "cell_module[")
    described = shell.object_inspect_text("double_it")
    assert "double_it(float* x, int n)" in described
    assert "called like CuPy's" in described


@from_table
def test_a_cells_own_variables_are_known(symbol, text, own):
    assert own_variables([cpp_name(symbol)], text, ["k"]) == ({own} if own else set())


@from_table
def test_a_symbols_name_is_read(symbol, name):
    assert simple_name(symbol) == name


def test_without_ipython_the_error_names_the_package():
    code = (
        "import sys; sys.modules['IPython'] = None\n"
        "import rtcompile; rtcompile.load_ipython_extension(None)"
    )
    done = python(code)
    assert "RtcompileError: %%cuda needs IPython: pip install ipython" in done.stderr

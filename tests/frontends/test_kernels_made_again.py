"""Tests of kernels that a program constructs again: what equal kernels share, and for how long."""

import pytest

from rtcompile.build import pipeline
from rtcompile.errors import InvalidRequest
from rtcompile.frontends import lazy_code
from tests.lookups import CODE, WITH_HEADER
from tests.processes import build_of
from tests.tables import from_table

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("absent_device")]


@pytest.fixture
def kernel(monkeypatch):
    """RawKernel on a fake device, where loading returns the code."""
    cupy = pytest.importorskip("cupy")
    from rtcompile.frontends import raw_kernel

    class Module:
        def __init__(self, code):
            self.code, self.mapping = code, {}

        def get_function(self, name):
            return (name, self.code)

    for module in (raw_kernel, lazy_code):
        monkeypatch.setattr(module, "current_device", lambda: 0)
    monkeypatch.setattr(lazy_code, "_load", lambda code, names: Module(code))
    cupy.clear_memo()
    yield raw_kernel.RawKernel
    cupy.clear_memo()


def test_an_equal_kernel_is_the_kernel_constructed_before(kernel):
    first = kernel(CODE % 1, "k").kernel

    assert kernel(CODE % 1, "k").kernel is first
    assert kernel(CODE % 2, "k").kernel is not first
    assert kernel(CODE % 1, "k", ("-DX",)).kernel is not first


def test_kernels_of_a_header_that_is_rewritten_for_each_differ(kernel, value_header):
    options = (f"-I{value_header.parent}",)
    kernels = set()
    for value in (1, 2, 3):
        value_header.write_text(f"#define VALUE {value}\n")
        kernels.add(kernel(WITH_HEADER, "k", options).kernel)
        assert kernel(WITH_HEADER, "k", options).kernel in kernels

    assert len(kernels) == 3


def test_a_tested_file_that_appears_is_noticed_though_no_header_was_read(kernel, value_header):
    code = f"#if __has_include(<new.h>)\n{CODE % 2}\n#else\n{CODE % 1}\n#endif"
    options = (f"-I{value_header.parent}",)
    before = kernel(code, "k", options).kernel
    assert kernel(code, "k", options).kernel == before

    (value_header.parent / "new.h").touch()

    assert kernel(code, "k", options).kernel != before


def test_a_kernel_with_a_header_is_shared_while_the_header_is_unchanged(
    kernel, value_header, monkeypatch
):
    options = (f"-I{value_header.parent}",)
    found = kernel(WITH_HEADER, "k", options).kernel
    monkeypatch.setattr(pipeline, "find", lambda *_: pytest.fail("it was looked up"))

    assert kernel(WITH_HEADER, "k", options).kernel is found


@pytest.mark.parametrize("name", ["CUPY_CUDA_COMPILE_WITH_DEBUG", "RTCOMPILE_FALLBACK"])
def test_a_kernel_constructed_in_another_environment_is_distinct(kernel, monkeypatch, name):
    one = kernel(CODE % 1, "k")
    assert one.kernel
    before = build_of(one)
    assert build_of(kernel(CODE % 1, "k")) is before

    monkeypatch.setenv(name, "never")

    assert build_of(kernel(CODE % 1, "k")) is not before


def test_compile_notices_a_header_edit_at_once(kernel, value_header):
    options = (f"-I{value_header.parent}",)
    one = kernel(WITH_HEADER, "k", options)
    before = one.kernel
    value_header.write_text("#define VALUE 2\n")

    one.compile()

    assert one.kernel != before


@from_table
def test_equal_arguments_share_their_code_in_any_spelling(kernel, given, again):
    first = kernel(CODE % 1, "k", **given)

    assert build_of(kernel(CODE % 1, "k", **again)) is build_of(first)
    assert build_of(kernel(CODE % 1, "k", **{**again, "memory_limit": "9G"})) is not build_of(first)


@pytest.mark.parametrize("options", [("-D\0",), (1,), None, ({},)])
def test_invalid_arguments_are_errors_each_time(kernel, options):
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            kernel(CODE % 1, "k", options)


@pytest.mark.parametrize("name", ["timeout", "memory_limit"])
def test_an_invalid_argument_that_equals_a_valid_one_is_an_error(kernel, name):
    kernel(CODE % 1, "k", **{name: 1})

    with pytest.raises(InvalidRequest, match="True"):
        kernel(CODE % 1, "k", **{name: True})


def test_a_kernel_used_first_in_another_folder_is_built_there(kernel, value_header, monkeypatch):
    other_folder = value_header.parents[1] / "first"
    (other_folder / "value.h").write_text("#define VALUE 2\n")
    monkeypatch.chdir(value_header.parent)
    one = kernel(WITH_HEADER, "k", ("-I.",))
    monkeypatch.chdir(other_folder)
    there = one.kernel

    monkeypatch.chdir(value_header.parent)

    assert kernel(WITH_HEADER, "k", ("-I.",)).kernel != there


def test_inspecting_a_kernel_in_another_environment_does_not_share_it(kernel, monkeypatch):
    one = kernel(CODE % 1, "k")
    before = one.kernel
    monkeypatch.setenv("CUPY_CUDA_COMPILE_WITH_DEBUG", "1")
    one.profile()

    assert kernel(CODE % 1, "k").kernel != before


@from_table
def test_kernels_of_two_working_directories_share_code_unless_an_option_may_name_a_path(
    kernel, options, is_same, tmp_path, monkeypatch
):
    one = kernel(CODE % 1, "k", options)._build

    monkeypatch.chdir(tmp_path)

    assert (kernel(CODE % 1, "k", options)._build is one) is is_same

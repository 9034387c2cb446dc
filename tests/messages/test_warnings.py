"""What the compiler warns of reaches people once, and an error's number is explained by its name."""

import re
import warnings

import pytest

import rtcompile

_OVERFLOW = """extern "C" __global__ void k(int* p) {
  int unused;
  p[0] = 1000000 * 1000000;
  p[1] = 2000000 * 1000000;
  p[2] = 3000000 * 1000000;
  p[3] = 4000000 * 1000000;
}
"""


def _warned(source: str) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        code = rtcompile.RawModule(code=source, arch="sm_80").object_code
    assert code.kind == "cubin"
    return [str(each.message) for each in caught]


@pytest.mark.needs_compiler
def test_a_raw_module_warns_once_with_the_first_three_warnings_of_its_own_lines():
    texts = _warned(_OVERFLOW)

    assert [text.partition(": ")[0] for text in texts] == [
        "kernel.cu:3:18",
        "kernel.cu:4:18",
        "kernel.cu:5:18",
    ]
    assert "integer operation result is out of range" in texts[0]
    assert _warned(_OVERFLOW) == []


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    ("source", "line", "text"),
    [
        ("", 1, "the source is empty"),
        (
            "// a & b\ntemplate <class T> __device__ void f(T& x);\n"
            'extern "C" __global__ void __launch_bounds__(128)\nk(const int* a, float (*b)[3], int& n) { n = *a; }',
            4,
            "the parameter n of k is a reference, and a launch takes the value given for it as the address of the "
            "object",
        ),
        (
            'extern "C" __global__ void k(int&) {}',
            1,
            "the parameter int& of k is a reference, and a launch takes the value given for it as the address of the "
            "object",
        ),
    ],
)
def test_what_compilers_accept_silently_is_warned_of(source, line, text):
    first = _warned(source) if source else None
    (warning,) = rtcompile.compile(source, arch="sm_80").build.warnings
    assert (warning.line, warning.message) == (line, text)
    assert first in (None, [str(warning)])


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    ("signature", "said"),
    [
        pytest.param("k(int* a, unsigned n)", [], id="values and pointers"),
        pytest.param("__launch_bounds__(4096) k(int* a, unsigned n)", ["for entry k is out of range"], id="no device"),
    ],
)  # fmt: skip
def test_only_launch_bounds_that_no_device_has_are_warned_of(signature, said):
    source = f'extern "C" __global__ void {signature} {{ a[0] = n & 3; int& b = a[1]; b = n; }}'
    assert all(part in text for text, part in zip(_warned(source), said, strict=True))


@pytest.mark.needs_compiler
def test_the_warnings_of_a_build_are_diagnostics_and_those_of_headers_reach_nobody():
    built = rtcompile.compile(_OVERFLOW, arch="sm_80")
    assert {each.line for each in built.build.warnings} >= {3, 4, 5, 6}
    assert {each.severity for each in built.build.warnings} == {"warning"}
    assert (
        _warned(
            '#warning mine\n#include <cub/block/block_scan.cuh>\nextern "C" __global__ void k(int* p) { *p = 1; }'
        )[1:]
        == []
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CUDA error 700", "cudaErrorIllegalAddress"),
        ("700", "cudaErrorIllegalAddress"),
        ("error 700", "cudaErrorIllegalAddress"),
        ("(700)", "cudaErrorIllegalAddress"),
        ("CUDA driver error: 719", "cudaErrorLaunchFailure"),
        ("[218] Call to cuLinkAddData results in UNKNOWN_CUDA_ERROR", "cudaErrorInvalidPtx"),
        ("error code 209", "cudaErrorNoKernelImageForDevice"),
        # Numbers that may be anything.
        *((text, "") for text in ("3 of 700 errors", "make: error code 700 of 3", "status 1", "CUDA 12 error")),
    ],
)  # fmt: skip
def test_the_number_of_an_error_is_explained_by_the_name_in_the_runtimes_header(text, name):
    (found,) = rtcompile.explain(text)

    number = re.search(r"\d+", text)
    assert number
    assert found.hint.startswith(f"Error {number[0]} is {name}. ") if name else not found.hint


def test_both_sentences_of_an_error_that_names_a_command_are_whole():
    (found,) = rtcompile.explain("CUDA_ERROR_UNKNOWN")

    assert "`sudo dmesg | grep -i nvrm`" in found.hint

"""Tests of parsing compilers' logs, produced live, into diagnostics; other text is shown unchanged."""

import pickle
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

import rtcompile
from rtcompile.diagnostic import Diagnostic
from rtcompile.errors import CompileError
from rtcompile.messages.diagnostics import line_in_source, parse
from rtcompile.messages.rendering import render as pieces_of
from rtcompile.styling import as_ansi, as_html, as_text
from tests.processes import ran
from tests.tables import from_table


def render(found: Sequence[Diagnostic], **given: Any) -> str:
    return as_text(pieces_of(found, **given))


def fields(diagnostic: Diagnostic) -> tuple[object, ...]:
    return diagnostic.severity, diagnostic.file, diagnostic.line, diagnostic.column


@from_table
def test_each_format_is_read(log, severity, file, line, message):
    (found,) = parse(log)
    assert (found.severity, found.file, found.line, found.message) == (
        severity,
        file,
        line,
        message,
    )


def nvrtc_log(nvrtc: Any, source: str, *options: str) -> str:
    outcome = nvrtc.compile(source, "-arch=sm_80", "-std=c++17", "-default-device", *options)
    log: str = outcome.log
    return log


@pytest.mark.needs_compiler
def test_nvrtc_errors_come_before_its_warnings_with_their_lines(nvrtc):
    source = "__global__ void k(float* x) {\n\tint unused;\n\tx[0] = yy\n}\n"
    found = parse(nvrtc_log(nvrtc, source))
    assert [fields(d) for d in found] == [
        ("error", "kernel.cu", 3, 9),
        ("error", "kernel.cu", 4, 1),
        ("warning", "kernel.cu", 2, 6),
    ]
    assert found[0].excerpt == "\tx[0] = yy\n\t       ^"
    assert found[2].code == "177-D"


@pytest.mark.needs_compiler
def test_columns_count_characters_not_bytes(nvrtc):
    source = '__global__ void k(int* x) { x[0] = "größe"[0] + nope; }\n'
    (found,) = parse(nvrtc_log(nvrtc, source))
    assert found.column == source.index("nope") + 1


@pytest.mark.needs_compiler
def test_candidates_and_argument_types_are_notes_of_their_error(nvrtc):
    source = "__device__ void f(int, double);\n__device__ void f(double, int);\n"
    first = parse(nvrtc_log(nvrtc, source + "__global__ void k() { f(1, 1); }\n"))[0]
    assert [note.message for note in first.notes] == [
        'function "f(int, double)" (declared at line 1)',
        'function "f(double, int)" (declared at line 2)',
        "argument types are: (int, int)",
    ]


@pytest.mark.needs_compiler
def test_the_cause_goes_before_its_consequences(nvrtc):
    found = parse(nvrtc_log(nvrtc, "__global__ void k(uint32_t* x) {}\n"))
    assert found[0].message == 'identifier "uint32_t" is undefined'
    assert any("does not apply here" in other.message for other in found[1:])


@pytest.mark.needs_compiler
def test_the_aftermath_is_left_out(nvrtc):
    found = parse(nvrtc_log(nvrtc, '__global__ void k() { asm volatile("foo.bar;"); }\n'))
    assert found
    assert not any("aborted due to errors" in d.message for d in found)


@pytest.mark.needs_compiler
def test_an_error_in_a_template_is_traced_to_the_users_line(nvrtc):
    source = (
        "template<class T> struct A { typename T::foo x; };\n"
        "template<class T> __device__ void f(T t) { A<T> a; }\n"
        "__global__ void k() {\n  f(3);\n}\n"
    )
    first = parse(nvrtc_log(nvrtc, source))[0]
    frames = [(n.message, n.file, n.line) for n in first.notes]
    assert frames == [
        ('instantiation of class "A<T> [with T=int]"', "kernel.cu", 2),
        ('instantiation of "void f(T) [with T=int]"', "kernel.cu", 4),
    ]


HEADER_LOG = """\
/site-packages/lib/include/cute/copy.hpp(53): error: static assertion failed with "no"
    static_assert(sizeof(TS) == 4, "no");
    ^
          detected during:
            instantiation of "void copy(T) [with T=short]" at line 545 of /site-packages/lib/include/cute/algorithm.hpp
            [ 190 instantiation contexts not shown ]
            instantiation of "void f(T) [with T=short]" at line 2 of kernel.cu

1 error detected in the compilation of "kernel.cu".
"""


@pytest.mark.parametrize(
    ("directive", "line", "file"),
    [("", 2, "kernel.cu"), ('#define N 3\n#line 70 "user.cu"\n', 71, "user.cu")],
)
def test_an_error_in_a_header_is_shown_from_the_including_line(directive, line, file):
    log = HEADER_LOG.replace("at line 2 of kernel.cu", f"at line {line} of {file}")
    source = f"{directive}__global__ void k() {{\n  f(x);\n}}\n"
    text = render(parse(log), source=source, name="kernel.cu")
    assert text.split("\n") == [
        f'{file}:{line}: in this call: error: static assertion failed with "no"',
        f"{line:5} |   f(x);",
        '  at cute/copy.hpp:53:3: instantiation of "void f(T) [with T=short]"',
        '   53 |   static_assert(sizeof(TS) == 4, "no");',
        "      |   ^~~~~~~~~~~~~",
    ]


def test_the_message_shows_the_line_the_hint_and_the_other_errors():
    first = Diagnostic(
        "error", 'identifier "yy" is undefined', "kernel.cu", 3, 9, hint="Declare it."
    )
    others = [Diagnostic("error", f"error {i}", "kernel.cu", i) for i in range(10, 16)]
    source = "__global__ void k(float* x) {\n\tint unused;\n\tx[0] = yy + 1;\n}\n"
    text = render((first, *others), source=source, name="kernel.cu")
    assert text.split("\n") == [
        'kernel.cu:3:9: error: identifier "yy" is undefined',
        "    3 |     x[0] = yy + 1;",
        "      |            ^~",
        "  hint: Declare it.",
        "  also: kernel.cu:10: error: error 10",
        "  also: kernel.cu:11: error: error 11",
        "  also: kernel.cu:12: error: error 12",
        "  also: kernel.cu:13: error: error 13",
        "  … 2 more errors; `.log` has the compiler's whole text",
    ]


def test_a_wrong_name_expression_is_shown_as_the_user_wrote_it():
    log = """\
__nv_name_map(3): error: identifier "nosuch" is undefined
  #pragma nv_mangled_name k<nosuch>
                            ^

__nv_name_map(3): error: Error in parsing name expression for lowered name lookup. Input name expression was: " k < nosuch >"
  #pragma nv_mangled_name k<nosuch>
                          ^

2 errors detected in the compilation of "kernel.cu".
"""
    text = render(parse(log), source="template<class T> __global__ void k();", name="kernel.cu")
    first, declared, *_ = text.split("\n")
    assert first == "name_expressions=['k<nosuch>']: error: identifier \"nosuch\" is undefined"
    assert declared == "  declared at kernel.cu:1:"
    assert "Error in parsing name expression" not in text


def test_a_long_line_is_shown_around_its_caret():
    source = "x" * 500 + " here " + "y" * 500
    text = render(
        (Diagnostic("error", "wrong", "kernel.cu", 1, 502),),
        source=source,
        name="kernel.cu",
        width=80,
    )
    line, marks = text.split("\n")[1:]
    assert len(line) <= 80
    assert line[marks.index("^") :].startswith("here ")


@pytest.mark.needs_compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc on PATH")
def test_nvcc_shows_global_expanded_and_the_caret_still_fits(tmp_path):
    source = "__global__ void k(int* x) { *x = nope; }\n"
    (tmp_path / "kernel.cu").write_text(source)
    done = ran("nvcc", "-arch=sm_80", "-cubin", "kernel.cu", cwd=tmp_path)
    found = parse(done.stderr)
    assert "__attribute__((global))" in found[0].excerpt
    _, line, marks = render(found, source=source, name="kernel.cu").split("\n")[:3]
    assert line[marks.index("^") :].startswith("nope;")


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
def test_gccs_context_before_an_error_is_read(tmp_path):
    (tmp_path / "x.h").write_text("template<class T> int f(T t) { return t.foo(); }\n")
    (tmp_path / "x.cpp").write_text('#include "x.h"\nint g() { return f(3); }\n')
    done = ran("g++", "-c", "x.cpp", cwd=tmp_path, environ={"LC_ALL": "C.UTF-8"})
    (found,) = parse(done.stderr)
    assert (found.file, found.line, found.message.split(" for ")[0]) == ("x.h", 1, "request")
    assert ("x.cpp", 1) in [(n.file, n.line) for n in found.notes]
    assert ("x.cpp", 2) in [(n.file, n.line) for n in found.notes]


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("", ""),
        ("something went wrong\nin a way nobody foresaw",) * 2,
        ("gcc: no such file\nnvcc fatal   : Failed.\n", "nvcc: fatal error: Failed.\n  gcc: no such file"),
        # Escape sequences do not reach the terminal.
        ("kernel.cu(1): error: \033[2Jgone\a\n", "kernel.cu:1: error: \N{REPLACEMENT CHARACTER}[2Jgone\N{REPLACEMENT CHARACTER}"),
    ],
)  # fmt: skip
def test_what_is_in_no_known_format_is_shown_unchanged_but_for_control_characters(log, shown):
    assert render(parse(log)) == shown


def test_binary_garbage_is_read_without_an_error():
    garbage = bytes(range(256)) * 4000
    for encoding in ("latin-1", "utf-8"):
        log = garbage.decode(encoding, "replace")
        assert len(render(parse(log))) < 100_000
        assert as_html(pieces_of(parse(log)))


@pytest.mark.takes_seconds
def test_both_ends_of_a_huge_log_are_read():
    noise = "kernel.cu(2): warning #177-D: something\n" * 5_000_000
    log = f"kernel.cu(1): error: first\n\n{noise}\nkernel.cu(3): error: last\n"
    assert [d.message for d in parse(log) if d.is_error] == ["first", "last"]


def test_a_repeated_message_is_kept_once():
    assert len(parse("kernel.cu(1): error: same\n\n" * 3)) == 1


def test_colours_and_html_contain_the_same_text():
    found = parse('kernel.cu(1): error: expected <a> & "b"\n  a<b>\n  ^\n')
    plain = render(found)
    coloured = as_ansi(pieces_of(found))
    assert "\033[" in coloured
    assert "expected <a> &" in plain
    page = as_html(pieces_of(found))
    assert "expected &lt;a&gt; &amp; &quot;b&quot;" in page
    assert "<a>" not in page


@pytest.mark.needs_compiler
def test_an_error_shows_itself_in_jupyter():
    with pytest.raises(CompileError) as caught:
        rtcompile.compile("__global__ void k() { a<b>(); }", arch="sm_80", fallback="never")
    assert "identifier &quot;a&quot; is undefined" in caught.value._repr_html_()
    assert pickle.loads(pickle.dumps(caught.value))._repr_html_() == caught.value._repr_html_()
    assert CompileError("no more than text")._repr_html_() is None


@pytest.mark.needs_compiler
@pytest.mark.parametrize("backend", ["nvrtc", "nvcc"])
@pytest.mark.parametrize(
    ("directive", "location"),
    [
        pytest.param('#line 1 "user.cu"', "user.cu:2:", id="file"),
        pytest.param("#line 1", "kernel.cu:2:", id="as Kernel Tuner writes it"),
        pytest.param("# 40", "kernel.cu:41:", id="as a preprocessor writes it"),
    ],
)
def test_a_line_directive_is_honoured(backend, directive, location):
    if backend == "nvcc" and not shutil.which("nvcc"):
        pytest.skip("no nvcc on PATH")
    source = f"#define N 3\n{directive}\n__global__ void k(int* x) {{\n  x[0] = yy;\n}}\n"
    with pytest.raises(CompileError) as caught:
        rtcompile.compile(source, arch="sm_80", backend=backend)
    headline, line, caret = str(caught.value).split("\n")[:3]
    assert headline.startswith(location)
    assert line.endswith("|   x[0] = yy;")
    assert caret.index("^") == line.index("yy")


def test_the_printed_one_of_two_lines_with_one_number_is_shown():
    source = "int a;\n#line 1\nint b = y;\n"
    error = Diagnostic("error", "wrong", "kernel.cu", 1, 9, excerpt="int b = y;\n        ^")
    assert line_in_source(error, source, "kernel.cu") == 3
    assert line_in_source(replace(error, excerpt="int a;\n    ^"), source, "kernel.cu") == 1
    assert line_in_source(replace(error, file="other.h"), source, "kernel.cu") == 0
    assert line_in_source(replace(error, line=9), source, "kernel.cu") == 0


@pytest.mark.takes_seconds
def test_long_types_in_instantiations_are_not_searched_letter_by_letter():
    frame = f'            instantiation of "{"T" * 5000}" at line 7 of v.h\n'
    log = "k.cu(1): error: no\n  f(x);\n  ^\n          detected during:\n" + 90 * frame
    assert parse(log)[0].notes[-1].line == 7
    by_letter = re.compile(".*? at line")

    def seconds(repeated: Callable[[], object]) -> float:
        begin = time.thread_time()
        for _ in range(10):
            repeated()
        return time.thread_time() - begin

    slow = min(seconds(lambda: [by_letter.match(x) for x in log.split("\n")]) for _ in range(3))
    assert min(seconds(lambda: parse(log)) for _ in range(3)) < 0.8 * slow


@pytest.mark.parametrize(
    ("severity", "first", "number"), [("error", "m0", 1000), ("warning", "wrong", 1001)]
)
def test_a_thousand_messages_are_read_and_an_error_after_any_number_of_warnings(
    severity, first, number
):
    log = "".join(f"kernel.cu({i}): {severity} #1-D: m{i}\n" for i in range(40_000))
    found = parse(f"{log}kernel.cu(7): error: wrong\n")
    assert (found[0].message, len(found)) == (first, number)

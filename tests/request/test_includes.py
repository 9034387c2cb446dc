"""Tests of includes: the compilers' traces, macros in texts, and the prefix that can be precompiled."""

from __future__ import annotations

import pytest

from rtcompile.files.headers import SearchDir, parse_trace, relative_to
from rtcompile.request.cxx import scan, split_prefix

# A trace as NVRTC 12.9.86 and 13.0.88 write it.
TRACE = b"""\
__nv_nvrtc_builtin_header.h
/i1/a.h
 /i1/sub/b.h
  /i1/sub/c.h
  /i1/sub/../sub/./e.h
  /i1/only i1.h
 /i1/a.h
/i1/sub/c.h
/i1/sub//c.h
__nv_name_map
"""


def test_a_trace_lists_each_header_once_in_order_of_first_inclusion() -> None:
    assert parse_trace(TRACE) == (
        "/i1/a.h",
        "/i1/sub/b.h",
        "/i1/sub/c.h",
        "/i1/sub/../sub/./e.h",
        "/i1/only i1.h",
        "/i1/sub//c.h",
    )


def test_a_trace_keeps_the_bytes_of_a_path_that_is_not_utf8() -> None:
    (path,) = parse_trace(b"/i/\xff.h\n")
    assert path.encode("utf-8", "surrogateescape") == b"/i/\xff.h"


def test_no_trace_is_no_headers() -> None:
    assert parse_trace(b"") == ()


SEARCH = (
    SearchDir("user0", "/p"),
    SearchDir("cudart", "/t/include"),
    SearchDir("cccl", "/t/include/cccl/"),
)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("/p/a/b.h", (0, "a/b.h"), id="below a directory"),
        pytest.param("/t/include/cccl/cub/x.h", (2, "cub/x.h"), id="innermost of two"),
        pytest.param("/t/include/x.h", (1, "x.h"), id="outermost of two"),
        pytest.param("/t/includes/x.h", (-1, "/t/includes/x.h"), id="a name's beginning only"),
        pytest.param("/p/../q/x.h", (0, "../q/x.h"), id="as spelled, not as resolved"),
    ],
)
def test_a_path_is_relative_to_the_innermost_search_directory(
    path: str, expected: tuple[int, str]
) -> None:
    assert relative_to(SEARCH)(path) == expected


@pytest.mark.parametrize(
    ("text", "clock"),
    [
        pytest.param("const char* t = __TIME__;", "__TIME__", id="time"),
        pytest.param("const char* t = __DATE__;", "__DATE__", id="date"),
        pytest.param("const char* t = __TIMESTAMP__;", "__TIMESTAMP__", id="timestamp"),
        pytest.param("#define BUILT __DATE__", "__DATE__", id="in a macro that may be expanded"),
        pytest.param("__DA\\\nTE__", "__DATE__", id="continued line"),
        pytest.param('"a // no comment" __TIME__', "__TIME__", id="after a string with slashes"),
        pytest.param("// __DATE__\n/* __TIME__ \n*/", "", id="in comments"),
        pytest.param('const char* t = "__DATE__";', "", id="in a string"),
        pytest.param('R"x( " __DATE__ )x"', "", id="in a raw string"),
        pytest.param("int timed;", "", id="nowhere"),
    ],
)
def test_a_clock_macro_is_found(text: str, clock: str) -> None:
    assert scan(text).clock == clock


@pytest.mark.parametrize(
    ("text", "own_path"),
    [
        pytest.param("const char* f = __FILE__;", True, id="__FILE__"),
        pytest.param("const char* f = __builtin_FILE();", True, id="builtin"),
        pytest.param("cuda::std::source_location::current()", True, id="source_location"),
        pytest.param("int x = __LINE__;", False, id="line only"),
    ],
)
def test_a_macro_of_the_own_path_is_found(text: str, own_path: bool) -> None:
    assert scan(text).own_path is own_path


@pytest.mark.parametrize(
    ("source", "prefix"),
    [
        pytest.param("#include <a.h>\nint x;", "#include <a.h>\n", id="one include"),
        pytest.param(
            '// c\n\n#include <a.h>  // why\n/* d\n*/ #include "b.h"\nint x;\n#include <c.h>',
            '#include <a.h>  // why\n#include "b.h"\n',
            id="comments and blanks are left out",
        ),
        pytest.param(
            "#define N 4\n#include <a.h>\n#define M 5\nint x;",
            "#define N 4\n#include <a.h>\n",
            id="up to the last include",
        ),
        pytest.param(
            "#if N\n#include <a.h>\n#else\n#include <b.h>\n#endif\nint x;",
            "#if N\n#include <a.h>\n#else\n#include <b.h>\n#endif\n",
            id="whole conditionals",
        ),
        pytest.param("#if N\n#include <a.h>\nint x;\n#endif", "", id="no half conditional"),
        pytest.param(
            "#include <a.h>\n#pragma nv_no_pch\n#include <b.h>",
            "#include <a.h>\n",
            id="ends where the user forbids it",
        ),
        pytest.param('#include <a.h>\n#line 3 "x"\n#include <b.h>', "#include <a.h>\n", id="#line"),
        pytest.param("#inc\\\nlude <a.h>", "", id="a split directive is not understood"),
        pytest.param(
            "#define A \\\n 1\n#include <a.h>",
            "#define A  1\n#include <a.h>\n",
            id="continued line",
        ),
        pytest.param("#define N 4\nint x;", "", id="nothing included"),
        pytest.param("int x;\n#include <a.h>", "", id="code first"),
        pytest.param("/* never closed #include <a.h>", "", id="open comment"),
        pytest.param("", "", id="empty"),
    ],
)
def test_the_prefix_ends_after_the_last_leading_include(source: str, prefix: str) -> None:
    assert split_prefix(source)[0] == prefix


def test_what_follows_the_prefix_begins_after_its_last_line() -> None:
    source = "// first\n#include <a.h>\n#include <b.h>  // second\n#define N 4\nint x;\n"
    assert split_prefix(source) == (
        "#include <a.h>\n#include <b.h>  // second\n",
        "\n#define N 4\nint x;\n",
    )

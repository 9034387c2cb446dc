"""Tests of the compilers' traces of includes, and of the folders in which headers lie."""

from rtcompile.files.headers import SearchDir, parse_trace, relative_to
from tests.tables import from_table

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


def test_a_trace_lists_each_header_once_in_order_of_first_inclusion():
    assert parse_trace(TRACE) == (
        "/i1/a.h",
        "/i1/sub/b.h",
        "/i1/sub/c.h",
        "/i1/sub/../sub/./e.h",
        "/i1/only i1.h",
        "/i1/sub//c.h",
    )
    assert parse_trace(b"") == ()
    (path,) = parse_trace(b"/i/\xff.h\n")
    assert path.encode("utf-8", "surrogateescape") == b"/i/\xff.h"


SEARCH = (
    SearchDir("user0", "/p"),
    SearchDir("cudart", "/t/include"),
    SearchDir("cccl", "/t/include/cccl/"),
)


@from_table
def test_a_path_is_relative_to_the_innermost_search_directory(path, expected):
    assert relative_to(SEARCH)(path) == expected

"""Tests of the C++ scanner: unusual spellings, and texts that could make it slow."""

import re
import time
from collections.abc import Iterator
from random import Random

import pytest

from rtcompile.request import cxx
from rtcompile.request.cxx import Text, split_prefix
from tests.tables import from_table


def pieces(source: str) -> list[tuple[str, str]]:
    text = Text(source)
    return [(kind, text.text[start:end]) for kind, start, end in text.pieces()]


def included(text: Text) -> list[str]:
    """Return the operands of ``#include``: ``<a.h>``, ``"a.h"`` or a macro."""
    bodies = [d.body for d in text.directives() if d.name in ("include", "include_next", "import")]
    return [re.match(r"""<[^>]*>|"[^"]*"|[\s\S]*""", body)[0] for body in bodies]  # type: ignore[index]


LONGEST = 262_144  # characters that are scanned


@from_table
def test_an_include_is_read_whatever_its_spelling(source):
    assert included(Text(source)) == ['"v.h"']
    text, at = Text(source), 0  # the pieces follow each other without gaps
    for kind, start, end in text.pieces():
        assert start == at
        assert (end > start) == (kind != "end")
        at = end
    assert at == len(text.text)


@from_table
def test_an_included_name_is_returned_as_written(source, name):
    assert included(Text(source)) == [name]


def test_each_character_belongs_to_a_piece():
    source = '/* a */ int b = \'c\'; // d\n# if /* e */ 1 "f"\nR"(g)" %: #h'
    assert pieces(source) == [
        *[("comment", "/* a */"), ("code", " int b = "), ("literal", "'c'"), ("code", "; ")],
        *[("comment", "// d"), ("code", "\n"), ("hash", "#"), ("code", " if ")],
        *[("comment", "/* e */"), ("code", " 1 "), ("literal", '"f"'), ("end", "")],
        *[("code", "\nR"), ("literal", '"(g)"'), ("code", " %: #h")],
    ]
    name = '"a\\" '  # a name with a backslash is no string
    assert pieces(f'#include {name}// "') == [
        *[("hash", "#"), ("code", f"include {name}"), ("comment", '// "'), ("end", "")]
    ]


def test_adjacent_comments_have_no_code_between_them():
    assert {kind for kind, _ in pieces("/**/" * 100)} == {"comment"}


def test_a_directive_continues_behind_its_strings():
    (directive,) = Text('# define A /* b */ "c" "d" e\nf').directives()
    assert (directive.name, directive.body) == ("define", 'A   "c" "d" e')


def test_offsets_refer_to_the_text_as_written():
    source = 'a\\\nb\\\r\n\\\nc R"x(\\\n)x" /\\\n/ d'
    text = Text(source)
    assert text.text == 'abc R"x()x" // d'
    assert [source[text.origin(at)] for at, c in enumerate(text.text)] == list(text.text)
    assert text.origin(len(text.text)) == len(source)
    assert [kind for kind, _, _ in text.pieces()] == ["code", "literal", "code", "comment"]


def test_blanks_replace_comments():
    source = 'a /* b\nc */ "//d" // \\\ne\n#if 1 /* f */\nR"(\n)" g'
    assert cxx.blanked(source) == 'a     \n     "//d"     \n \n#if 1        \nR"(\n)" g'
    bare = cxx.blanked(source, literals=True, directives=True)
    assert bare == f"a     \n{' ' * 15}\n \n{' ' * 13}\nR  \n   g"
    assert cxx.blanked('#define A "b" c\nd', directives=True) == f"{' ' * 15}\nd"


@pytest.mark.parametrize("end", ["\\\n", "\\\r\n", "\\ \t\n", "??/\n", "??/ \r\n"])
def test_lines_are_joined_as_any_compiler_joins_them(end):
    assert cxx.joined(f"a{end}b") == "ab"
    assert cxx.joined("a\\b\n??/c") == "a\\b\n??/c"


# --- decisions from a scan ------------------------------------------------------------------------


@from_table
def test_the_clock_is_read_where_any_compiler_or_standard_reads_it(source, clock):
    assert cxx.scan(source).clock == clock


@from_table
def test_a_macro_of_the_own_path_is_found(text, own_path):
    assert cxx.scan(text).own_path is own_path


@from_table
def test_a_source_without_includes_reads_no_file(source, options, expected):
    assert cxx.reads_no_file(source, options) is expected


def test_a_generated_text_is_not_searched_for_causes():
    assert cxx.readable("x") == "x"
    assert cxx.readable("x" * LONGEST) == "x" * LONGEST
    assert cxx.readable("x" * (LONGEST + 1)) == ""
    source = "#include <a.h>\n".ljust(LONGEST)
    assert split_prefix(source)[0] == "#include <a.h>\n"
    assert split_prefix(source + " ") == ("", source + " ")


@from_table
def test_a_prefix_is_found_whatever_its_spelling(source, prefix):
    assert split_prefix(source)[0] == prefix


def test_what_follows_the_prefix_begins_after_its_last_line():
    source = "// first\n#include <a.h>\n#include <b.h>  // second\n#define N 4\nint x;\n"
    prefix = "#include <a.h>\n#include <b.h>  // second\n"
    assert split_prefix(source) == (prefix, "\n#define N 4\nint x;\n")


# Pieces that combine in unusual ways, and pieces that a directive may contain.
PIECES = [
    *("#", "%:", "include", " ", "\f", "\r", "\\\n", "\\ \n", "\\\r\n", "\n", "\n"),
    *('"v.h"', "<v.h>", "/*", "*/", "//", '"', "'", 'R"(', ')"', 'R"x(', ')x"', 'u8R"('),
    *("1'000", "0x1'", ".5", "1e+", "??/\n", "??=", "??'", "#define A ", "#if 0\n", "#if 1\n"),
    *("#endif\n", "int a;", "don't", "/*\n*/", "\\", '\\"', "'\"'", '"//"', "x"),
    *("#include <", ">", "#define B(x) #x\n", "B("),
]
GAPS = ["", "", "", " ", "/**/", "/*\n*/", "\\\n", "\f", "\v\t", "\r", '/* " */', "/*'*/"]
WORDS = ["include", "inc\\\nlude", "inc\\ \nlude", "inc??/\nlude"]


def odd_text(random: Random) -> str:
    def some(most: int) -> str:
        return "".join(random.choice(PIECES) for _ in range(random.randrange(most)))

    def directive() -> str:
        parts = (["#", "#", "%:", "??=", "%\\\n:"], WORDS, ['"v.h"', "<v.h>", '"v\\\n.h"'], [""])
        return "".join(random.choice(GAPS) + random.choice(part) for part in parts)

    end = ["\n", "\n", ""]
    begin = some(6) + random.choice(end) + directive() + some(4)
    return begin + random.choice(end) + random.choice(["", directive()]) + some(3)


@pytest.mark.needs_compiler
@pytest.mark.some
@pytest.mark.parametrize("seed", range(3))
def test_nvrtc_reads_no_file_that_the_scanner_excluded(nvrtc, tmp_path, seed):
    (tmp_path / "v.h").write_text("#error SEEN\n")
    random = Random(seed)
    seen = 0
    for _ in range(40):
        source, std = odd_text(random), random.choice(["03", "11", "14", "17", "20"])

        def reads(source: str, std: str = std) -> bool:
            options = (f"-std=c++{std}", f"-I{tmp_path}", "-arch=sm_80", "--minimal")
            return "SEEN" in nvrtc.compile(source, *options).log

        prefix, rest = split_prefix(source)
        if prefix:
            assert reads(prefix + rest) == reads(source), source
        if reads(source):
            seen += 1
            assert not cxx.reads_no_file(source, ()), source
            text = Text(source)
            read = included(text)
            if std in ("17", "20") and not text.differs:  # older ones know trigraphs
                assert any("v.h" in name for name in read), source
    assert seen > 8


# --- texts that could make it slow -----------------------------------------------------------------------


@pytest.mark.takes_seconds
@from_table
def test_scanning_time_is_proportional_to_length(before, repeated, behind):
    def seconds(size: int) -> float:
        source = before + repeated * (size // len(repeated)) + behind
        start = time.thread_time()
        split_prefix(source)
        cxx.scan(source)
        list(cxx.kernels(source))
        return time.thread_time() - start

    # Quadratic time would be 64 times as long.
    small_text = min(seconds(10_000) for _ in range(3))
    assert seconds(80_000) < max(24 * small_text, 0.25)
    if before == "//#include":  # 25 of these took the regular expression 15 s
        assert seconds(400_000) < 10


def test_the_beginning_of_a_text_is_read_without_the_rest():
    source = '#include "a.h"\nint x;\n' + "/**/" * 100_000
    seen: Iterator[object] = Text(source).directives(opening=True)
    start = time.thread_time()
    assert len(list(seen)) == 1
    assert time.thread_time() - start < 0.05


def test_line_directives_are_read_with_and_without_a_file():
    source = '#line 7 "a.cu"\n\n# 9 "b c.cu" 2\n#line 5\n#line\n#line x\n#define L 3\n'
    assert cxx.renumbered(source) == {1: (7, "a.cu"), 3: (9, "b c.cu"), 4: (5, "")}
    others = '\n#pragma 7 "a"\n#line 999999999 !a"\n#line 1234567890\n#12345678901\n#line 8 x"y"'
    assert cxx.renumbered(others) == {3: (999999999, ""), 6: (8, "")}


@from_table
def test_the_text_in_brackets_ends_at_the_closing_one(text, opening, expected):
    assert cxx.enclosed(text, opening) == expected


def test_a_list_is_split_at_its_own_commas():
    text = "a<b, c>, (d, e) , f[g, h],i"
    assert [*cxx.split(text)] == ["a<b, c>", "(d, e)", "f[g, h]", "i"]
    assert [*cxx.split("a>, b")] == ["a>, b"]
    assert [*cxx.split("")] == [""]
    assert [*cxx.split(",a+b")] == ["", "a+b"]


# --- kernels --------------------------------------------------------------------------------------


@from_table
def test_a_kernel_is_found(text, qualified, parameters, template):
    (kernel,) = cxx.kernels(text)
    assert kernel[1:4] == (qualified, parameters, template)
    assert (kernel.name, kernel.is_defined) == (qualified.rpartition("::")[2], True)


@from_table
def test_unusual_text_hides_no_following_kernel(before):
    text = before + "__global__ void b(int* x) {}\n"
    assert [kernel.name for kernel in cxx.kernels(text)][-1] == "b"


@pytest.mark.parametrize(
    "text", ["__global__ void k(int);", "struct S { friend __global__ void k(S); };"]
)
def test_a_declaration_defines_no_kernel(text):
    assert [kernel.is_defined for kernel in cxx.kernels(text)] == [False]


def test_the_integers_of_fixed_width_have_numpys_codes():
    names = [f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    assert " ".join(map(cxx.NUMBERS.get, names)) == "i1 i2 i4 i8 u1 u2 u4 u8"


def test_what_stands_around_an_offset_ends_with_its_brace():
    code = "a { b } c; d { e; f { g } h"
    around = [" / ".join(map(str.strip, each)) for each in cxx.around(code, range(len(code)))]
    found = [around[code.index(letter)] for letter in "abcdefgh"]
    assert found == ["a", "a / b", "c", "d", "d / e", "d / f", "d / f / g", "d / h"]

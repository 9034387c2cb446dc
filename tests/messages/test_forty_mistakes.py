"""Tests of forty whole messages: each shows the user's line first, and below it the cause and the fix."""

import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

import rtcompile
from rtcompile.messages import catalogue
from rtcompile.messages.diagnostics import parse, simplified
from rtcompile.messages.facts import BuildContext
from rtcompile.messages.rendering import render
from rtcompile.styling import as_text
from tests.mistakes import FORTY, body
from tests.processes import python


def rendered(*given: Any, **more: Any) -> str:
    return as_text(render(*given, **more))


@pytest.mark.needs_compiler
@pytest.mark.parametrize("mistake", FORTY, ids=lambda mistake: mistake.name)
def test_the_users_line_is_above_the_hint(mistake, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_PCH", "0")  # an idle core would make each source's header
    with pytest.raises(rtcompile.CompileError) as caught:
        rtcompile.compile(
            mistake.source,
            arch=mistake.arch,
            options=mistake.options,
            name_expressions=mistake.names,
        )
    text = re.sub(r"\s+", " ", str(caught.value))
    first, _, rest = text.partition(" hint: ")
    assert mistake.message in first or mistake.message == "error: "
    assert mistake.hint in rest, text
    if mistake.options:  # the mistake is in the options, not in a line of the source
        return
    shown = re.findall(r"^ *\d+ \| (.+)", str(caught.value).partition("  hint: ")[0], re.MULTILINE)
    lines = [line for line in mistake.source.split("\n") if line.strip()]
    own = [line.strip().replace("\u00a0", "\ufffd") for line in lines]
    assert any(line.startswith(each.strip()[:60]) for line in own for each in shown), text


OVERLOADS = """\
/site/include/lib/mm.h(8): error: no instance of overloaded function "mm" matches the argument list
            argument types are: (float, int)
    mm(a, b);
    ^
/site/include/lib/mm.h(3): note #3322-D: number of parameters of function "mm(float)" does not match the call
  void mm(float);
       ^
/site/include/lib/mm.h(5): note #3326-D: function "mm(int, int)" does not match because argument #1 does not match parameter
  void mm(int, int);
       ^
/site/include/lib/mm.h(6): note #3326-D: function "mm(float, char *)" does not match because argument #2 does not match parameter
  void mm(float, char *);
       ^
          detected during instantiation of "void run(T) [with T=float]" at line 2 of kernel.cu

"""


def test_frames_after_the_last_note_belong_to_the_error():
    text = rendered(parse(OVERLOADS), source="void k() {\n  run(1.f);\n}\n", name="kernel.cu")
    lines = text.split("\n")
    assert lines[:3] == [
        'kernel.cu:2: in this call: error: no instance of overloaded function "mm" matches the argument list',
        "    2 |   run(1.f);",
        '  at lib/mm.h:8:3: instantiation of "void run(T) [with T=float]"',
    ]
    assert [re.search(r'"(mm\(.*\))"', line)[1] for line in lines if "does not match" in line] == [  # type: ignore[index]
        "mm(float, char *)",
        "mm(int, int)",
    ]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (
            "scale<4, float>",
            "T must be a type and was given 4; N must be a value and was given float",
        ),
        ("scale<float, int>", "N must be a value and was given int"),
        ("scale<K, K>", "Compare the kinds of its arguments"),
        ("scale<double>", "Write 'scale<double, 4>'"),
    ],
)
def test_wrong_arguments_of_a_name_expression_are_named(expression, message):
    log = "__nv_name_map(2): error: cannot determine which instance is intended\n"
    log += f"  #pragma nv_mangled_name {expression}\n{'':26}^\n"
    source = "template <class T, int N> __global__ void scale(T* x) {}"
    assert message in catalogue.annotate(parse(log), BuildContext(source=source))[0].hint


def test_an_error_of_the_same_zero_is_counted_with_the_first():
    log = "".join(
        f"/site/include/lib/a.h({line}): error: {text}\n  x\n  ^\n"
        f'          detected during instantiation of class "A<T, N> [with T=int, N={n}]" at line {line} of kernel.cu\n\n'
        for line, text, n in (
            (1, "division by zero", 0),
            (2, "excessive recursion at instantiation", 0),
            (3, "excessive recursion at instantiation of B", 2),
        )
    )
    text = rendered(
        catalogue.annotate(parse(log), BuildContext()), source="a\nb\nc\n", name="kernel.cu"
    )
    assert "also: lib/a.h:3" in text
    assert "also: lib/a.h:2" not in text


def test_each_hint_is_below_its_error():
    log = 'k.cu(1): error: identifier "float32" is undefined\n  float32 y;\n  ^\n\n'
    log += 'k.cu(2): error: identifier "True" is undefined\n  y = True;\n      ^\n\n'
    text = rendered(catalogue.annotate(parse(log), BuildContext()))
    assert text.index("Write `float`") < text.index('"True"') < text.index("Write `true`")


@pytest.mark.parametrize(
    ("long", "short"),
    [
        (
            "(cute::Tensor<cute::ArrayEngine<float, 4UL>, cute::Layout<cute::tuple<cute::_4, cute::C<2>>, "
            "cute::tuple<cute::C<1>, int>>>)",
            "(Tensor<float, (_4,_2):(_1,int)>)",
        ),
        ('"std::vector<float, ::std::allocator<float> > ::at"', '"std::vector<float>::at"'),
        ("cub::CUB_200802_SM_800::BlockReduce<int, 0>", "cub::BlockReduce<int, 0>"),
        ('no operator "<" matches', 'no operator "<" matches'),
        ("a<b(c>d)", "a<b(c>d)"),
        *((text,) * 2 for text in ("<" * 10_000, "a<" * 5_000 + ">" * 5_000, "(," * 9_000)),
    ],
)
def test_types_are_shown_as_their_users_write_them(long, short):
    assert simplified(long) == short


def test_an_archive_is_rejected_by_name(tmp_path):
    package = Path(rtcompile.__file__).parent
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for file in package.rglob("*.py"):
            archive.write(file, Path("rtcompile") / file.relative_to(package))
    archive = {"PYTHONPATH": tmp_path / "all.zip"}
    done = python("import rtcompile", environ=archive, cwd=tmp_path)
    assert "ImportError: rtcompile can't run from an archive" in done.stderr


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    ("source", "options", "names", "message"),
    [
        ("template <class T> __device__ void put(T* p) { static_assert(sizeof(T) <= 4); }\n" + body("put(x);", "double* x"), (), (), "`sizeof(T) <= 4` is false: T is double. Line 3 (`put(x);`) gives it"),
        ("template <int W> __global__ void go(float* p) {\n  static_assert(W > 0 &&\n  W <= 32, \"a warp\");\n}\n", (), ("go<64>",), "`W > 0 && W <= 32` is false: W is 64; so that the condition holds"),
        ('static_assert(BLOCK % 32 == 0, "whole warps");\n' + body(""), ("-DBLOCK=48",), (), "BLOCK is 48. The option -DBLOCK= gives it: change it there"),
        ("constexpr int kTile = 12;\nstatic_assert((kTile & (kTile - 1)) == 0);\n" + body(""), (), (), "`(kTile & (kTile - 1)) == 0` is false"),
        ("__device__ void in(float*);\n__device__ void f(float* p) { in(p); }\n" + body("f(x + 1);", "const float* x"), (), (), "If f only reads, write `const float* p` in line 2; if it writes, write `float* x` in line 3"),
        ("template <class T, int N> struct Vec { T v[N]; };\n" + body("Vec<4, float> v;"), (), (), "error: T must be a type and was given 4; Write `Vec<float, 4>`"),
        ("template <class T, int N> struct Vec { T v[N]; };\n" + body("Vec<float> v;"), (), (), "error: N is missing; `Vec<float, 4>`"),
        (body("__shared__ float s[TILE];\n  s[0] = 0;"), ("-DTILE=-1",), (), "in a macro of the options (-D)"),
        ("#inclde <cuda_fp16.h>\n" + body(""), (), (), "`#inclde` is not one. Is `#include` meant?"),
        ("#include <cuda_fp16.h>\n" + body("x[0] = 2 * x[0];", "__half* x"), (), (), "Convert the other operand: `__half(2)`"),
        (body("int i = 0;\n  while i < 3:\n    i += 1;"), (), (), "is Python's, and no C++"),
        ("#include <torch/extension.h>\n" + body(""), (), (), "kernel.cu:1:11: fatal error; is in none of the "),
    ],
)  # fmt: skip
def test_other_mistakes_of_these_kinds_are_explained_with_their_own_numbers(
    source, options, names, message
):
    with pytest.raises(rtcompile.CompileError) as caught:
        rtcompile.compile(source, arch="sm_80", options=options, name_expressions=names)
    text = " ".join(str(caught.value).split())
    assert [part for part in message.split("; ") if part not in text] == [], text

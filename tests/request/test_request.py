"""Requests are validated at construction."""

from __future__ import annotations

import enum
import pickle
from pathlib import Path

import numpy
import pytest

from rtcompile.errors import InvalidRequest
from rtcompile.request.object_code import BuildInfo, ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.request.values import Arch


def test_sequences_become_tuples_and_an_arch_is_parsed():
    request = CompileRequest(
        "x", options=["-G"], arch="sm_90a", name_expressions={"a": "f<int>"}.values()
    )
    assert request.options == ("-G",)
    assert request.arch == Arch(9, 0, "a")
    assert request.name_expressions == ("f<int>",)
    assert CompileRequest("x", options="-I /x").options == ("-I /x",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"source": b"x"}, "decode the bytes", id="bytes"),
        pytest.param({"source": "a\nb\0c"}, r"source contains a NUL byte \(line 2\)", id="NUL"),
        pytest.param({"source": "\n\udc80"}, r"not valid UTF-8 \(line 2\)", id="surrogate"),
        pytest.param({"options": (1,)}, r"options\[0\] must be a str, not int 1", id="option type"),
        pytest.param({"options": ("-D\0",)}, r"options\[0\] contains a NUL", id="NUL in an option"),
        pytest.param(
            {"name_expressions": (b"f",)},
            r"name_expressions\[0\] must be a str, not bytes b'f'; decode",
            id="names",
        ),
        pytest.param({"arch": "sm_9"}, "'sm_9' is not an architecture", id="arch"),
        pytest.param({"backend": "clang"}, "backend must be one of", id="backend"),
        pytest.param({"target": "exe"}, "target must be one of", id="target"),
        pytest.param({"link": "lib.a"}, r"link must be a list .* write link=\[…\]", id="link"),
        pytest.param({"link": None}, "link must be a list .* leave it out", id="no link"),
        pytest.param({"source": Path("k.cu")}, r"path.read_text\(\)", id="source as a path"),
        pytest.param({"options": None}, "options must be a list .* leave it out", id="no options"),
        pytest.param({"options": 3}, "options must be a list of str, not int 3", id="options"),
        pytest.param(
            {"name_expressions": "k<float>"},
            r"not one str, which CuPy splits .* name_expressions=\['k<float>'\]",
            id="one name",
        ),
        pytest.param(
            {"name_expressions": ["z", "k<int,\n  float>"]},
            r"name_expressions\[1\] must be on one line.*write 'k<int, float>'",
            id="name on two lines",
        ),
        pytest.param({"arch": 90}, "arch: .* not int 90; write 'sm_90a'", id="arch as int"),
        pytest.param({"arch": 12.0}, "write 'sm_90a'", id="arch as float"),
        pytest.param({"arch": (9, 0)}, "write 'sm_90a'", id="arch as pair"),
        pytest.param({"arch": b"sm_90a"}, "write 'sm_90a'", id="arch as bytes"),
        pytest.param({"arch": 10**5000}, "write 'sm_90a'", id="arch as a long number"),
        pytest.param({"arch": "sm_٩٠"}, "is not an architecture", id="arch in other digits"),
        pytest.param({"name": None}, "name must be a str, not None; leave it out", id="no name"),
        pytest.param({"name": ""}, "name must be a file's", id="empty name"),
        pytest.param({"name": "a\nb"}, "name must be a file's", id="two names"),
        pytest.param({"name": "n" * 300}, "200 bytes", id="long name"),
        pytest.param({"backend": numpy.zeros(2)}, "backend must be one of", id="array"),
        pytest.param({"target": None}, "target must be one of .* not None", id="no target"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        CompileRequest(**{"source": "x", **arguments})
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


def test_subclasses_of_str_and_any_iterables_are_converted():
    class Flag(str, enum.Enum):
        DEBUG = "-G"

    request = CompileRequest(
        numpy.str_("x"), options=[Flag.DEBUG], name_expressions=(f"f<{i}>" for i in range(2))
    )
    assert type(request.source) is str
    assert [type(option) for option in request.options] == [str]
    assert request.options == ("-G",)
    assert request.name_expressions == ("f<0>", "f<1>")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: Arch("9", 0), "major must be an int", id="major"),
        pytest.param(lambda: Arch(9, 70), "minor must be an int from 0 to 9", id="minor"),
        pytest.param(lambda: Arch(9, 0, "b"), "suffix must be", id="suffix"),
        pytest.param(lambda: ObjectCode("x", "cubin", Arch(9, 0)), "code must be bytes", id="code"),
        pytest.param(lambda: ObjectCode(b"", "cubin", "sm_90"), "arch must be an Arch", id="arch"),
        pytest.param(lambda: ObjectCode(b"", "exe", Arch(9, 0)), "kind must be one of", id="kind"),
    ],
)
def test_values_are_checked_at_construction(make, message):
    with pytest.raises(InvalidRequest, match=message):
        make()


def test_the_repr_of_code_omits_its_bytes():
    names = {f"f<{i}>": f"_Zf{i}" for i in range(9)}
    code = ObjectCode(b"\x7f" * 538735, "cubin", Arch(9, 0, "a"), names)
    shown = "<ObjectCode: cubin for sm_90a, 538,735 bytes: f<0>, f<1>, f<2>, …>"
    assert repr(code) == shown
    assert repr(ObjectCode(b"x", "ptx", Arch(9, 0))) == "<ObjectCode: ptx for sm_90, 1 bytes>"


def test_object_code_pickles():
    code = ObjectCode(b"\x7fELF", "cubin", Arch(9, 0), {"f<int>": "_Z1f"}, BuildInfo("nvrtc"))
    again = pickle.loads(pickle.dumps(code))
    assert (again.code, dict(again.lowered_names)) == (code.code, {"f<int>": "_Z1f"})


def test_the_contents_of_options_files_are_in_the_request(tmp_path) -> None:
    inner, outer = tmp_path / "inner.txt", tmp_path / "outer.txt"
    inner.write_text('-DY="a b"\n')
    outer.write_text(f"-DX=1 -I '/a b'\n-optf {inner}\n")
    before = CompileRequest("", options=("-w", f"--options-file={outer}", "-G"))
    assert before.options == ("-w", "-DX=1", "-I", "/a b", "-DY=a b", "-G")
    outer.write_text("-DX=2")
    after = CompileRequest("", options=("-w", "-optf", str(outer), "-G"))
    assert after.options == ("-w", "-DX=2", "-G")


@pytest.mark.parametrize("text", [None, "-optf self.txt", "-DX='"], ids=["none", "itself", "quote"])
def test_an_options_file_that_cannot_be_read_is_an_error_that_names_it(
    text, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "self.txt").write_text(text)
    with pytest.raises(InvalidRequest, match=r"self\.txt"):
        CompileRequest("", options=("-optf", "self.txt"))


def test_options_files_may_be_nested_eight_deep(tmp_path) -> None:
    (tmp_path / "0").write_text("-DX=1")
    for number in range(1, 9):
        (tmp_path / str(number)).write_text(f"-optf {tmp_path}/{number - 1}")
    assert CompileRequest("", options=(f"-optf {tmp_path}/7",)).options == ("-DX=1",)
    with pytest.raises(InvalidRequest, match="8 deep"):
        CompileRequest("", options=(f"-optf {tmp_path}/8",))


def test_a_build_may_take_no_time():
    assert BuildInfo("nvrtc").milliseconds == 0.0

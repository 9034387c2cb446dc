"""Requests are validated where they are made."""

from __future__ import annotations

import pickle

import pytest

from rtcompile.core.arch import Arch
from rtcompile.core.request import BuildInfo, CompileRequest, ObjectCode
from rtcompile.errors import InvalidRequest


def test_sequences_become_tuples_and_an_arch_is_parsed():
    request = CompileRequest(
        "x", options=["-G"], arch="sm_90a", name_expressions={"a": "f<int>"}.values()
    )
    assert request.options == ("-G",)
    assert request.arch == Arch(9, 0, "a")
    assert request.name_expressions == ("f<int>",)
    assert CompileRequest("x", options="-I /x").options == ("-I /x",)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param({"source": b"x"}, "decode the bytes", id="bytes"),
        pytest.param({"source": "a\nb\0c"}, r"source holds a NUL byte \(line 2\)", id="NUL"),
        pytest.param({"source": "\n\udc80"}, r"not valid UTF-8 \(line 2\)", id="surrogate"),
        pytest.param({"options": (1,)}, "options must hold str, not int", id="option type"),
        pytest.param({"options": ("-D\0",)}, "options holds a NUL", id="NUL in an option"),
        pytest.param({"name_expressions": (b"f",)}, "name_expressions must hold str", id="names"),
        pytest.param({"arch": "sm_9"}, "'sm_9' is not an architecture", id="arch"),
        pytest.param({"backend": "clang"}, "backend must be one of", id="backend"),
        pytest.param({"target": "exe"}, "target must be one of", id="target"),
        pytest.param({"link": "lib.a"}, "link must be a list", id="link"),
    ],
)
def test_what_cannot_describe_a_build_is_refused(arguments, says):
    with pytest.raises(InvalidRequest, match=says) as caught:
        CompileRequest(**{"source": "x", **arguments})
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


def test_object_code_pickles():
    code = ObjectCode(b"\x7fELF", "cubin", Arch(9, 0), {"f<int>": "_Z1f"}, BuildInfo("nvrtc"))
    again = pickle.loads(pickle.dumps(code))
    assert (again.code, dict(again.lowered_names)) == (code.code, {"f<int>": "_Z1f"})

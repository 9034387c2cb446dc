"""`link=` takes the code of other libraries: `cuda.core.ObjectCode`, and what has its public attributes."""

import pickle
from typing import Any

import pytest

import rtcompile
from rtcompile import CompileRequest, InvalidRequest, LinkError
from rtcompile.request.units import LinkInput
from tests.build.test_link import kernels
from tests.processes import forget_caches
from tests.programs import CALLER, LIBRARY
from tests.tables import from_table

KINDS = ["object", "ltoir", "ptx", "cubin"]


class Code:
    """Like `cuda.core.ObjectCode`, it queries a device to be compared, hashed or shown."""

    def __init__(self, code: object, kind: object, named: str = "code_type") -> None:
        self.code = code
        setattr(self, named, kind)

    def _query_device(self, *_: object) -> Any:
        raise AssertionError("a device was queried")

    __hash__ = __eq__ = __repr__ = __reduce__ = _query_device  # type: ignore[assignment]


def library(kind: str) -> bytes:
    """A function's code as `kind`; relocatable machine code is a cubin for NVIDIA's libraries."""
    target: Any = "object" if kind == "cubin" else kind
    return rtcompile.compile(LIBRARY, arch="sm_90", target=target, options=["-rdc=true"]).code


def linked(*link: object) -> rtcompile.ObjectCode:
    return rtcompile.compile(CALLER, arch="sm_90", link=link)


@pytest.mark.needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_code_of_another_library_is_linked_and_found_again(kind):
    builds = []
    for _ in range(2):
        builds.append(linked(Code(library(kind), kind)))
        forget_caches()

    assert [kernels(code) for code in builds] == [["k"], ["k"]]
    assert [code.build.hit for code in builds] == [None, "disk"]


@pytest.mark.needs_compiler
@pytest.mark.parametrize("kind", ["object", "ltoir"])
def test_the_result_is_that_of_our_own_object(kind):
    own = rtcompile.compile(LIBRARY, arch="sm_90", target=kind, options=["-rdc=true"])

    assert linked(Code(own.code, kind, "kind")).code == linked(own).code


@pytest.mark.needs_compiler
def test_all_kinds_of_inputs_are_linked_together(tmp_path):
    names = ("helper", "of_path", "of_ours", "of_text")
    calls = " + ".join(f"{name}(*p)" for name in names)
    declared = "".join(f"__device__ float {name}(float);\n" for name in names)
    of_path, of_ours, of_text = (LIBRARY.replace("helper", name) for name in names[1:])
    part = rtcompile.compile(of_path, arch="sm_90", target="ltoir", options=["-rdc=true"])
    part.save(tmp_path / "part.ltoir")
    ours = rtcompile.compile(of_ours, arch="sm_90", target="ltoir", options=["-rdc=true"])

    code = rtcompile.compile(
        f'{declared}extern "C" __global__ void k(float* p) {{ *p = {calls}; }}',
        arch="sm_90",
        link=[Code(library("ltoir"), "ltoir"), tmp_path / "part.ltoir", ours, of_text],
    )

    assert kernels(code) == ["k"]


@pytest.mark.needs_compiler
def test_code_in_a_file_is_read_when_it_is_passed(tmp_path):
    path = tmp_path / "part"
    path.write_bytes(library("ltoir"))
    request = CompileRequest(CALLER, arch="sm_90", link=[Code(str(path), "ltoir")])
    path.unlink()

    assert kernels(rtcompile.compile_many([request])[0]) == ["k"]


@pytest.mark.parametrize("given", [b"code", bytearray(b"code"), memoryview(b"code")])
def test_a_request_with_such_code_compares_hashes_and_pickles(given):
    request, other = (CompileRequest("", link=[Code(given, "library")]) for _ in range(2))

    assert request.link == (LinkInput("archive", "link[0]", b"code"),)
    assert (request, hash(request)) == (other, hash(other))
    assert pickle.loads(pickle.dumps(request)) == request
    assert "link[0]" in repr(request)


@from_table
def test_an_input_that_cannot_be_linked_is_rejected_at_once(code, kind, message):
    with pytest.raises(InvalidRequest, match=message):
        CompileRequest("", link=[Code(code, kind)])


@pytest.mark.needs_compiler
def test_code_whose_kind_is_wrong_is_rejected_before_linking():
    with pytest.raises(LinkError, match=r"'link\[0\]' was given as LTO-IR, but it is PTX"):
        linked(Code(library("ptx"), "ltoir"))


@pytest.mark.needs_compiler
@pytest.mark.parametrize("kind", ["cubin", "ltoir"])
def test_code_compiled_by_cuda_core_is_linked(kind):
    core = pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    options = core.ProgramOptions(
        arch="sm_90", relocatable_device_code=True, link_time_optimization=kind == "ltoir" or None
    )
    code = core.Program(LIBRARY, "c++", options).compile(kind)

    assert kernels(linked(code)) == ["k"]

"""Tests of nvJitLink in a worker: every kind of input, the device runtime, and its pitfalls."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rtcompile import cubin, toolkit
from rtcompile.compilers import nvcc, nvjitlink, nvrtc
from rtcompile.errors import ToolkitNotFound
from rtcompile.extras.resources import kernels_of
from rtcompile.request.options import Options
from rtcompile.request.units import Compiled, CompileFailure, Limits, LinkInput, TranslationUnit
from rtcompile.request.values import Arch
from rtcompile.toolkit.model import Toolchain
from rtcompile.toolkit.search import find
from tests.programs import CALLER, LIBRARY
from tests.tables import from_table

pytestmark = pytest.mark.needs_compiler

PARENT = """__global__ void child(float* p) { p[threadIdx.x] = 1.0f; }
extern "C" __global__ void k(float* p) { child<<<1, 32>>>(p); }"""

FLAGS = {"object": "-rdc=true", "ptx": "-rdc=true", "ltoir": "-dlto"}
SUFFIXES = {"object": "cubin"}

Make = Callable[..., LinkInput]


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return toolkit.current()


@pytest.fixture(scope="module")
def toolchain13(cuda13_prefix: Path) -> Toolchain:
    return find({}, [str(cuda13_prefix)], usual_roots=())


@pytest.fixture(scope="module")
def make(toolchain: Toolchain) -> Make:
    """Compile a linker's input with NVRTC, once for each set of arguments."""
    made: dict[tuple[object, ...], LinkInput] = {}

    def make(source: str, kind: str, arch: str = "sm_90", by: Toolchain = toolchain) -> LinkInput:
        key = (source, kind, arch, id(by))
        if key not in made:
            made[key] = compiled(source, kind, Arch.parse(arch), by)
        return made[key]

    return make


def compiled(source: str, kind: str, arch: Arch, toolchain: Toolchain) -> LinkInput:
    target = "cubin" if kind in ("object", "finished") else kind
    flags = (f"-arch={arch if target == 'cubin' else arch.virtual}", "-default-device")
    relocatable = (FLAGS[kind],) if kind in FLAGS else ()
    unit = TranslationUnit(source, "kernel.cu", (*flags, *relocatable), (), target, arch)
    outcome = nvrtc.compile(unit, toolchain.require_nvrtc(), limits=Limits())
    assert isinstance(outcome, Compiled), outcome
    kind = "cubin" if kind == "finished" else kind
    name = "library" if source is LIBRARY else "caller"
    return LinkInput(kind, f"{name}.{SUFFIXES.get(kind, kind)}", outcome.code)


def link(
    inputs: list[LinkInput],
    toolchain: Toolchain,
    arch: str = "sm_90",
    target: str = "cubin",
) -> Compiled | CompileFailure:
    given = Arch.parse(arch), Options(), toolchain
    return nvjitlink.link(inputs, *given, limits=Limits(timeout=120), target=target)


def linked(inputs: list[LinkInput], toolchain: Toolchain) -> bytes:
    outcome = link(inputs, toolchain)
    assert isinstance(outcome, Compiled), outcome
    return outcome.code


def functions(code: bytes) -> set[str]:
    return {each.name for each in cubin.read_symbols(code) if each.section == f".text.{each.name}"}


def failed(inputs, toolchain, **more):
    outcome = link(inputs, toolchain, **more)
    assert isinstance(outcome, CompileFailure), outcome
    return outcome


def kernels(code):
    return {*cubin.kernel_symbols(code)}


@pytest.mark.parametrize("caller", ["object", "ptx", "ltoir"])
@pytest.mark.parametrize("library", ["object", "ptx", "ltoir"])
def test_every_pair_of_kinds_links_and_only_linking_lto_ir_inlines(
    caller, library, make, toolchain
):
    program = linked([make(CALLER, caller), make(LIBRARY, library)], toolchain)
    _, (kernel,) = kernels_of(program)
    assert kernel.name == "k"
    if (caller, library) == ("ltoir", "ltoir"):  # without a stack frame for a call, and a call
        assert (functions(program), kernel.stack_bytes) == ({"k"}, 0)
    if (caller, library) == ("object", "object"):
        assert "_Z6helperf" in functions(program)


def test_ptx_can_be_linked_only_from_lto_ir(make, toolchain):
    lto = link([make(CALLER, "ltoir"), make(LIBRARY, "ltoir")], toolchain, target="ptx")
    assert isinstance(lto, Compiled)
    assert b".entry k(" in lto.code
    objects = [make(CALLER, "object"), make(LIBRARY, "object")]
    assert "-dlto" in failed(objects, toolchain, target="ptx").log


@pytest.mark.parametrize("kind", ["object", "ltoir"])
def test_the_device_runtime_is_added_only_if_called(kind, make, toolchain):
    parent = linked([make(PARENT, kind)], toolchain)
    other = linked([make(CALLER, kind), make(LIBRARY, kind)], toolchain)
    assert kernels(parent) >= {"k", "_Z5childPf"}
    assert len(other) < 20_000 < len(parent)


@pytest.mark.parametrize(
    ("source", "without"),
    [
        pytest.param(PARENT, {"cudadevrt": None}, id="the device runtime"),
        pytest.param(LIBRARY, {"nvjitlink": None}, id="the linker"),
    ],
)
def test_without_what_a_link_needs_the_error_names_its_package(source, without, make, toolchain):
    lacking = toolchain._replace(**without, missing=dict.fromkeys(without, "pip install it"))
    with pytest.raises(ToolkitNotFound, match="pip install it"):
        link([make(source, "object")], lacking)


@from_table
def test_an_unlinkable_input_is_named(kinds, arch, texts, make, toolchain):
    inputs = []
    for word in kinds:
        kind, _, suffix = word.partition(" ")
        source = {"library": LIBRARY, "finished": "__global__ void k() {}"}.get(kind, CALLER)
        inputs.append(make(source, "object" if kind == "library" else kind, f"sm_90{suffix}"))
    failure = failed(inputs, toolchain, arch=arch)
    assert failure.kind == "link"
    for text in texts:
        assert text in failure.log


def test_an_inputs_name_stays_valid_during_the_link(make, toolchain, tmp_path):
    # In another process, since it loads the library and reuses the caller's memory.
    script = """
import sys
from rtcompile.workers import libraries
path, code = sys.argv[1:]
libraries.load(path)
call = libraries._call
others = []
def reusing_memory(name, *arguments):
    if name == "nvJitLinkComplete":
        others.extend([b"%012d" % number for number in range(1000)])  # as long as the name
    call(name, *arguments)
libraries._call = reusing_memory
inputs = [("cubin", "caller.cubin", open(code, "rb").read())]
print(libraries.link({"options": ["-arch=sm_90"], "inputs": inputs, "target": "cubin"})["log"])
"""
    code = tmp_path / "code"
    code.write_bytes(make(CALLER, "object").data)
    command = [sys.executable, "-c", script, toolchain.nvjitlink.path, str(code)]
    with (tmp_path / "output").open("w+") as output:
        subprocess.run(command, stderr=output, check=True)  # a link's stdout is its stderr
    assert "'caller.cubin'" in (tmp_path / "output").read_text()


@from_table
def test_invalid_input_bytes_are_named(kind, data, text, toolchain):
    failure = failed([LinkInput(kind, "broken.bin", data)], toolchain)
    assert "broken.bin" in failure.log
    assert text in failure.log


@pytest.mark.parametrize("kind", ["object", "ltoir", "ptx"])
@pytest.mark.parametrize("part", [0.3, 0.9])
def test_a_truncated_input_is_an_error(kind, part, make, toolchain):
    whole = make(CALLER, kind)
    cut = whole._replace(data=whole.data[: int(len(whole.data) * part)])
    assert failed([cut], toolchain).kind in ("link", "crash")


def test_an_input_of_the_wrong_kind_is_reported_by_its_bytes_and_an_unknown_option(
    make, toolchain, monkeypatch
):
    failure = failed([make(CALLER, "object")._replace(kind="ptx")], toolchain)
    assert "'caller.cubin' was given as PTX, but it is a cubin" in failure.log
    unknown = ("-arch=sm_90", "-no-such-option")
    monkeypatch.setattr(nvjitlink, "for_nvjitlink", lambda *_, **__: unknown)
    failure = failed([make(LIBRARY, "object")], toolchain)
    assert "UNRECOGNIZED_OPTION" in failure.log


def test_a_link_is_killed_at_its_time_limit(make, toolchain):
    # The link takes several seconds, far longer than this process waits for a processor.
    steps = "".join(f"x = sinf(x * {step}.5f);" for step in range(300))
    long = f"__device__ float helper(float x) {{ {steps} return x; }}"
    inputs = [make(CALLER, "ltoir"), make(long, "ltoir")]

    outcome = nvjitlink.link(inputs, Arch(9, 0), Options(), toolchain, limits=Limits(timeout=0.001))

    assert isinstance(outcome, CompileFailure)
    assert outcome.kind == "timeout"


@pytest.mark.parametrize("kind", ["object", "ptx"])
@pytest.mark.needs_nvcc
def test_input_too_new_for_nvjitlink_is_linked_by_a_newer_nvcc(kind, make, toolchain, toolchain13):
    if toolchain13.nvcc is None or toolchain.nvjitlink.version_pair >= (13, 0):
        pytest.skip("an older nvJitLink and a newer nvcc are needed")
    inputs = [make(CALLER, kind, by=toolchain13), make(LIBRARY, kind, by=toolchain13)]
    assert kernels(linked(inputs, toolchain._replace(nvcc=toolchain13.nvcc))) == {"k"}
    assert "newer toolkit" in failed(inputs, toolchain._replace(nvcc=None)).log
    lto = make(LIBRARY, "ltoir", by=toolchain13)
    assert "'library.ltoir' is LTO-IR from a newer toolkit" in failed([lto], toolchain).log


@pytest.mark.needs_nvcc
def test_nvcc_links_and_names_what_is_missing(make, toolchain):
    if toolchain.nvcc is None:
        pytest.skip("nvcc is needed")
    inputs = [make(PARENT, "object"), make(LIBRARY, "object")]
    outcome = nvcc.link(inputs, Arch(9, 0), toolchain, limits=Limits())
    assert isinstance(outcome, Compiled)
    assert {"k", "_Z5childPf"} <= kernels(outcome.code)
    failure = nvcc.link([make(CALLER, "object")], Arch(9, 0), toolchain, limits=Limits())
    assert isinstance(failure, CompileFailure)
    assert (failure.kind, "_Z6helperf" in failure.log) == ("link", True)

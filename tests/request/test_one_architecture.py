"""Each request is for one architecture and kind of code: it is rejected if `arch=` and the options differ."""

from collections.abc import Callable

import pytest

import rtcompile
from rtcompile import Arch, CompileRequest, InvalidRequest
from rtcompile.cli import bundling
from rtcompile.extras.record.recording import RecordedBuild
from tests.tables import from_table

SOURCE = 'extern "C" __global__ void g() {}'

DOORS: list[Callable[..., object]] = [
    pytest.param(lambda **given: rtcompile.compile(SOURCE, **given), id="compile"),
    pytest.param(lambda **given: CompileRequest(SOURCE, **given), id="request"),
    pytest.param(lambda **given: rtcompile.RawModule(code=SOURCE, **given), id="module"),
    pytest.param(lambda **given: rtcompile.RawKernel(SOURCE, "g", **given), id="kernel"),
    pytest.param(
        lambda arch, options: CompileRequest(SOURCE, options=options).replace(arch=arch),
        id="replace",
    ),
]
OPTIONS = [
    ("-arch=sm_80",),
    ("-arch", "sm_80"),
    "--gpu-architecture=sm_80",
    ("-gencode=arch=compute_80,code=sm_80",),
    ("--generate-code", "arch=compute_80,code=compute_80"),
]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_another_architecture_in_the_options_is_rejected_by_both_names(door, options):
    for arch in ("sm_90a", Arch(9, 0, "a")):
        with pytest.raises(InvalidRequest, match=r"sm_90a .* and the options name (sm|compute)_80"):
            door(arch=arch, options=options)
    with pytest.raises(
        InvalidRequest, match=r"sm_75 \(cubin\) and the options name"
    ):  # an older one
        door(arch="sm_75", options=options)


@pytest.mark.needs_compiler
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("options", OPTIONS[:-1], ids=str)
def test_the_same_architecture_twice_is_one(door, options, monkeypatch):
    assert door(arch="sm_80", options=options)


@pytest.mark.needs_compiler
def test_one_of_several_architecture_options_is_chosen():
    options = ("-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90")
    assert str(rtcompile.compile(SOURCE, arch="sm_80", options=options).arch) == "sm_80"


def test_cupys_own_architecture_with_another_one_is_kept():
    CompileRequest(SOURCE, options=("-arch=sm_80",), arch=Arch(9, 0), allow_fixups=False)


def test_an_architecture_option_is_passed_over_when_a_module_is_linked():
    request = CompileRequest(SOURCE, options=("-arch=sm_80",), may_pass_over_arch=True)
    assert request.replace(arch=Arch(9, 0)).arch == Arch(9, 0)


@pytest.mark.needs_compiler
@from_table
def test_a_virtual_architecture_means_ptx_everywhere(given):
    code = rtcompile.compile(SOURCE, **given)
    assert (code.kind, str(code.arch)) == ("ptx", "sm_80")
    assert b".target sm_80" in code.code
    module = rtcompile.RawModule(code=SOURCE, arch="compute_80")
    requests = [CompileRequest(SOURCE, **given), module]
    assert {code.kind for code in rtcompile.compile_many(requests, progress=False)} == {"ptx"}


def test_machine_code_and_ptx_at_once_are_rejected():
    with pytest.raises(InvalidRequest, match=r"sm_80 \(cubin\) and the options name compute_80"):
        CompileRequest(SOURCE, arch="sm_80", options=("-arch=compute_80",))


def test_other_targets_are_kept():
    assert CompileRequest(SOURCE, arch="compute_80", target="ltoir").target == "ltoir"
    with pytest.raises(InvalidRequest, match="target='ltoir'"):
        CompileRequest(SOURCE, arch="lto_80")


def test_a_bundle_has_ptx_for_a_virtual_architecture(tmp_path, monkeypatch):
    works = bundling.works([CompileRequest(SOURCE)], ["sm_80", "compute_80"])
    assert [(str(w.request.arch), w.request.target) for w in works] == [
        ("sm_80", "cubin"),
        ("sm_80", "ptx"),
    ]


def recorded(*options: str, arch: str | None = None) -> RecordedBuild:
    code = rtcompile.compile(SOURCE, options=options, arch=arch)
    return RecordedBuild.of(CompileRequest(SOURCE, options=options), code)


@pytest.mark.needs_compiler
def test_a_record_keeps_its_kind_of_code_and_the_architecture_of_its_options():
    [again] = recorded("-arch=compute_80").repeated()
    assert again.target == "ptx"
    [again] = recorded("-arch=sm_80").repeated(["sm_90a", "sm_75"])
    assert again.arch == Arch(8, 0)
    with pytest.raises(InvalidRequest, match="give a device's architecture, sm_90"):
        recorded(arch="sm_80").repeated(["compute_90"])

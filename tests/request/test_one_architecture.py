"""Each request is for one architecture and kind of code: it is rejected if `arch=` and the options differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import rtcompile
from rtcompile import Arch, CompileRequest, InvalidRequest
from rtcompile.cli import bundling

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
@pytest.mark.parametrize("arch", ["sm_90a", Arch(9, 0, "a")], ids=str)
def test_another_architecture_in_the_options_is_rejected_by_both_names(door, options, arch) -> None:
    with pytest.raises(InvalidRequest, match=r"sm_90a .* and the options name (sm|compute)_80"):
        door(arch=arch, options=options)


@pytest.mark.needs_compiler
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("options", OPTIONS[:-1], ids=str)
def test_the_same_architecture_twice_is_one(door, options, monkeypatch) -> None:
    assert door(arch="sm_80", options=options)


@pytest.mark.needs_compiler
def test_one_of_several_architecture_options_is_chosen() -> None:
    options = ("-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90")
    assert str(rtcompile.compile(SOURCE, arch="sm_80", options=options).arch) == "sm_80"


def test_cupys_own_architecture_with_another_one_is_kept() -> None:
    CompileRequest(SOURCE, options=("-arch=sm_80",), arch=Arch(9, 0), allow_fixups=False)


def test_an_architecture_option_is_passed_over_when_a_module_is_linked() -> None:
    request = CompileRequest(SOURCE, options=("-arch=sm_80",), may_pass_over_arch=True)
    assert request.replace(arch=Arch(9, 0)).arch == Arch(9, 0)


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    "given",
    [
        {"arch": "compute_80"},
        {"arch": "COMPUTE_80", "target": "cubin"},
        {"options": ("-arch=compute_80",)},
        {"options": ("-gencode=arch=compute_80,code=compute_80",), "target": "cubin"},
        {"arch": "compute_80", "options": ("-arch=compute_80",)},
    ],
    ids=str,
)
def test_a_virtual_architecture_means_ptx_everywhere(given) -> None:
    code = rtcompile.compile(SOURCE, **given)
    assert (code.kind, str(code.arch)) == ("ptx", "sm_80")
    assert b".target sm_80" in code.code
    many = rtcompile.compile_many([CompileRequest(SOURCE, **given)], progress=False)
    assert many[0].kind == "ptx"


@pytest.mark.needs_compiler
def test_a_modules_virtual_architecture_means_ptx() -> None:
    pytest.importorskip("cupy")
    assert rtcompile.RawModule(code=SOURCE, arch="compute_80").object_code.kind == "ptx"


def test_a_newer_architecture_in_the_options_is_rejected_too() -> None:
    with pytest.raises(InvalidRequest, match=r"sm_80 \(cubin\) and the options name sm_90"):
        CompileRequest(SOURCE, arch="sm_80", options=("-arch=sm_90",))


def test_machine_code_and_ptx_at_once_are_rejected() -> None:
    with pytest.raises(InvalidRequest, match=r"sm_80 \(cubin\) and the options name compute_80"):
        CompileRequest(SOURCE, arch="sm_80", options=("-arch=compute_80",))


def test_other_targets_are_kept() -> None:
    assert CompileRequest(SOURCE, arch="compute_80", target="ltoir").target == "ltoir"
    with pytest.raises(InvalidRequest, match="target='ltoir'"):
        CompileRequest(SOURCE, arch="lto_80")


def test_a_bundle_has_ptx_for_a_virtual_architecture(tmp_path: Path, monkeypatch) -> None:
    works = bundling.works([CompileRequest(SOURCE)], ["sm_80", "compute_80"])
    assert [(str(w.request.arch), w.request.target) for w in works] == [
        ("sm_80", "cubin"),
        ("sm_80", "ptx"),
    ]


@pytest.mark.needs_compiler
def test_a_record_of_ptx_is_built_again_as_ptx() -> None:
    request = CompileRequest(SOURCE, options=("-arch=compute_80",))
    code = rtcompile.compile(SOURCE, options=("-arch=compute_80",))
    [again] = rtcompile.types.RecordedBuild.of(request, code).requests()
    assert again.target == "ptx"


@pytest.mark.needs_compiler
def test_a_record_is_warmed_for_devices_and_not_for_ptx() -> None:
    request = CompileRequest(SOURCE)
    recorded = rtcompile.types.RecordedBuild.of(request, rtcompile.compile(SOURCE, arch="sm_80"))
    with pytest.raises(InvalidRequest, match="give a device's architecture, sm_90"):
        recorded.requests(["compute_90"])


@pytest.mark.needs_compiler
def test_a_record_whose_options_name_an_architecture_keeps_it() -> None:
    request = CompileRequest(SOURCE, options=("-arch=sm_80",))
    code = rtcompile.compile(SOURCE, options=("-arch=sm_80",))
    [again] = rtcompile.types.RecordedBuild.of(request, code).requests(["sm_90a", "sm_75"])
    assert again.arch == Arch(8, 0)

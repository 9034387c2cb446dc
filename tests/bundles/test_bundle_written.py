"""Tests of writing bundles: targets, architectures and keys; the same builds give the same bytes."""

import os

import pytest

import rtcompile
from rtcompile.cli import bundling
from rtcompile.compilers import nvrtc
from rtcompile.errors import BatchError, InvalidRequest
from rtcompile.lookup import bundles
from rtcompile.lookup.bundles import Bundle
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.request.values import Arch
from tests.packages import PLAIN, edit_header, forget_process
from tests.tables import from_table

# --- writing -------------------------------------------------------------------------------------


@pytest.mark.needs_compiler
def test_the_same_builds_make_the_same_bytes(bundled, tmp_path, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "another"))
    again = tmp_path / "again.rtcb"
    for name in ("scale.cu", "common.cuh"):
        os.utime(bundled.folder / name, (1, 1))
    bundled.load()
    bundling.bundle([bundled.name], again, archs=("compute_80", "sm_90a", "sm_80"))
    assert again.read_bytes() == bundled.bundle.read_bytes()
    assert again.stat().st_mode & 0o777 == 0o644  # other users may use an installed package


@pytest.mark.needs_compiler
def test_an_update_keeps_existing_builds(bundled):
    bundled.load()
    bundling.bundle([bundled.name], bundled.bundle, archs=("sm_86",), update=True)
    archs = {(str(row.arch), row.kind) for row in Bundle(str(bundled.bundle)).rows()}
    assert archs == {("sm_80", "cubin"), ("sm_86", "cubin"), ("sm_90a", "cubin"), ("sm_80", "ptx")}


@pytest.mark.needs_compiler
def test_a_file_that_is_not_a_bundle_is_not_updated(tmp_path):
    path = tmp_path / "k.rtcb"
    path.write_text("not a bundle")
    with pytest.raises(InvalidRequest, match="cannot be used: it is no bundle"):
        bundling.bundle([CompileRequest(PLAIN)], path, archs=("sm_80",), update=True)
    assert path.read_text() == "not a bundle"


@pytest.mark.needs_compiler
def test_a_bundle_is_not_built_from_a_bundle(bundled, tmp_path):
    bundled.load().module.use_bundle()
    edit_header(bundled)
    built = bundling.bundle([bundled.name], tmp_path / "new.rtcb", archs=("sm_80",))
    assert built[0][1].build.hit is None


@pytest.mark.needs_compiler
def test_a_target_with_its_own_architecture_is_built_only_for_it(tmp_path):
    requests = [
        CompileRequest(PLAIN, arch="sm_80", name="by_argument.cu"),
        CompileRequest(PLAIN, options=("-arch=sm_86",), name="by_option.cu"),
        CompileRequest(PLAIN, name="any.cu"),
    ]
    built = bundling.bundle(requests, tmp_path / "k.rtcb", archs=("sm_90a", "sm_120a"))
    assert [(request.name, str(code.arch)) for request, code in built] == [
        ("by_argument.cu", "sm_80"),
        ("by_option.cu", "sm_86"),
        ("any.cu", "sm_90a"),
        ("any.cu", "sm_120a"),
    ]


@pytest.mark.needs_compiler
@pytest.mark.parametrize("more", [{"fallback": "never"}, {}], ids=["checked", "of plain words"])
def test_modules_of_cupys_kind_are_built_with_their_own_arguments(tmp_path, more):
    pytest.importorskip("cupy")
    module = rtcompile.RawModule(code=PLAIN, options=("-DN=1",), **more)
    path = tmp_path / "k.rtcb"
    bundling.bundle([module], path, archs=("sm_80",))
    forget_process()
    bundles.use_bundle(path)
    again = rtcompile.RawModule(code=PLAIN, options=("-DN=1",), arch="sm_80")
    assert again.build.hit == "bundle"


@pytest.mark.needs_compiler
@from_table
def test_a_target_that_cannot_be_bundled_is_reported(package, tmp_path, target, message):
    package.load()
    with pytest.raises(InvalidRequest, match=message):
        bundling.bundle([target], tmp_path / "k.rtcb", archs=("sm_80",), skip_unbundleable=True)
    assert not (tmp_path / "k.rtcb").exists()


@pytest.mark.parametrize(
    ("archs", "name", "message"),
    [
        ((), "k.rtcb", "no architecture"),
        (("sm_eighty",), "k.rtcb", "is not an architecture"),
        (("sm_80",), ".", "is a folder"),
    ],
)
def test_invalid_architectures_and_paths_are_reported(tmp_path, archs, name, message):
    with pytest.raises(InvalidRequest, match=message):
        bundling.bundle([CompileRequest(PLAIN)], tmp_path / name, archs=archs)


@pytest.mark.needs_compiler
def test_a_header_that_is_edited_while_the_compiler_runs_is_not_in_a_bundle(tmp_path, monkeypatch):
    (tmp_path / "own.cuh").write_text("#define OWN 1\n")

    def edited(*arguments, **more):
        outcome = compile(*arguments, **more)
        (tmp_path / "own.cuh").write_text("#define OWN 2\n")
        return outcome

    compile = nvrtc.compile
    monkeypatch.setattr(nvrtc, "compile", edited)
    request = CompileRequest('#include "own.cuh"\n' + PLAIN, options=(f"-I{tmp_path}",))
    with pytest.raises(InvalidRequest, match="a header changed while it was bundled"):
        bundling.bundle([request], tmp_path / "k.rtcb", archs=("sm_80",))


@pytest.mark.needs_compiler
def test_a_failing_build_leaves_the_bundle_unchanged(bundled):
    before = bundled.bundle.read_bytes()
    requests = [CompileRequest(PLAIN), CompileRequest("nonsense")]
    with pytest.raises(BatchError, match="1 of 2 builds failed"):
        bundling.bundle(requests, bundled.bundle, archs=("sm_80",))
    assert bundled.bundle.read_bytes() == before


# --- the key -------------------------------------------------------------------------------------


def test_the_key_of_bundled_builds_does_not_change():
    """Published wheels contain these keys: a change of the key must raise its number."""
    request = CompileRequest(
        PLAIN,
        options=("-I", "/a", "-DN=1", "-O3", "-lineinfo", "--use_fast_math", "-Xptxas=-v"),
        name_expressions=("f<int>",),
    )
    key, _ = bundles.key_of(request, debug=False)
    assert key == "8ce6b335858769c616b2abd295be08f9c529ce190e94d31420649b1ed6839153"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"arch": Arch(8, 0)}, id="architecture"),
        pytest.param({"target": "ptx"}, id="kind"),
        pytest.param({"backend": "nvrtc"}, id="backend"),
        pytest.param({"options": ("-I/other",)}, id="paths"),
        pytest.param({"may_pass_over_arch": True, "allow_fixups": False}, id="CuPy's classes"),
    ],
)
def test_fields_stored_with_a_build_are_not_in_the_key(change):
    base = {"source": PLAIN, "options": ("-I/a",)}
    one, other = (CompileRequest(**given) for given in (base, {**base, **change}))
    assert bundles.key_of(one, debug=False)[0] == bundles.key_of(other, debug=False)[0]


@pytest.mark.parametrize(
    "change",
    [
        {"source": PLAIN + " "},
        {"options": ("-I/a", "-DN=2")},
        {"options": ("-I/a/b", "-I/a")},
        {"options": ("-I/a", "-include", "/a/first.h")},
        {"name": "other.cu"},
        {"name": "/a/kernel.cu"},
        {"name_expressions": ("k",)},
        {"headers": {"a.h": "1"}},
        {"link": (ObjectCode(b"1", "object", Arch(8, 0)),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_a_package_decides_is_in_the_key(change):
    base = {"source": PLAIN, "options": ("-I/a", "-I/b")}
    one, other = (CompileRequest(**given) for given in (base, {**base, **change}))
    assert bundles.key_of(one, debug=False)[0] != bundles.key_of(other, debug=False)[0]
    assert bundles.key_of(one, debug=False)[0] != bundles.key_of(one, debug=True)[0]

"""Tests of bundles: a package's builds are found on any machine and verified; others are compiled."""

import os
import re
import sys
import warnings
from pathlib import Path

import pytest

import rtcompile
from rtcompile import toolkit
from rtcompile.cli import bundling
from rtcompile.errors import BatchError, JitDisabled, RtcompileWarning, ToolkitNotFound
from rtcompile.lookup import bundles, environment
from rtcompile.lookup import find as lookup
from rtcompile.lookup.bundles import Bundle, Row, UnusableError
from rtcompile.request.request import CompileRequest
from rtcompile.toolkit.model import Toolchain
from tests.packages import HEADER, PLAIN, SOURCE, Package, edit_header
from tests.toolkits import needs_host_compiler

pytestmark = pytest.mark.needs_compiler


@pytest.fixture
def bare_machine(bundled: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a toolkit and without a writable folder."""
    missing = dict.fromkeys(("nvrtc", "nvcc"), "NVRTC is not here")
    monkeypatch.setattr(toolkit, "current", lambda *_: Toolchain(missing=missing))
    (tmp_path / "no folder").write_text("")
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "no folder/cache"))


def on_device(monkeypatch: pytest.MonkeyPatch, *capability: int) -> None:
    monkeypatch.setattr(lookup, "compute_capability", lambda: capability)


# --- found ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("bare_machine")
def test_a_bundled_build_needs_no_toolkit_and_no_cache(bundled, monkeypatch):
    on_device(monkeypatch, 9, 0)
    module = bundled.load().module
    code = module.compile()
    assert (code.build.hit, str(code.arch)) == ("bundle", "sm_90a")
    assert code.lowered_names["fill"] == "fill"
    assert code.build.compiler.startswith("nvrtc ")
    codes = rtcompile.compile_many([module.request, module.request.replace(arch="sm_80")])
    assert [(str(each.arch), each.kind) for each in codes] == [
        ("sm_90a", "cubin"),
        ("sm_80", "cubin"),
    ]


def test_a_bundled_build_is_the_one_that_would_be_compiled(bundled, monkeypatch):
    found = bundled.load().module.compile("sm_80")
    bundled.bundle.unlink()
    compiled = bundled.load().module.compile("sm_80")
    assert (found.build.hit, compiled.build.hit) == ("bundle", "disk")
    assert found.code == compiled.code


def test_the_packages_own_headers_are_recorded_and_a_new_one_that_comes_first_is_noticed(package):
    package.write("common.cuh", "#include <cuda_fp16.h>\n" + HEADER)
    package.load()
    bundling.bundle([package.name], package.bundle, archs=("sm_80",))
    (header,) = package.load().module.compile("sm_80").build.headers
    assert header.label == "user0"
    assert header.path.startswith(str(package.folder))
    package.write("cuda_fp16.h", "")
    assert package.load().module.compile("sm_80").build.hit is None


@pytest.mark.parametrize(
    "given",
    [
        {"options": ("-Iinc", "-DN=1 -lineinfo")},
        {"options": ("-I inc", "-DN=1"), "name": "sources/k.cu"},
        {"options": ("-isystem", "inc", "-include", "own.cuh")},
        {"options": ("-I", "inc", "-arch=sm_80"), "headers": {"given.cuh": ""}},
    ],
    ids=["relative", "of a file", "parsed", "architecture and header texts"],
)
def test_a_build_is_found_in_any_folder_by_its_own_headers(tmp_path, monkeypatch, given):
    request = CompileRequest('#include "own.cuh"\n' + PLAIN, **given)
    for folder in (tmp_path / "one", tmp_path / "two"):
        (folder / "inc").mkdir(parents=True)
        (folder / "inc/own.cuh").write_text("// nothing\n")
        monkeypatch.chdir(folder)
        if folder.name == "one":
            bundling.bundle([request], tmp_path / "k.rtcb", archs=["sm_80"], progress=False)
    bundles.use_bundle(tmp_path / "k.rtcb")
    on_device(monkeypatch, 8, 0)
    (found,) = rtcompile.compile_many([request], progress=False)
    assert (found.build.hit, str(found.arch)) == ("bundle", "sm_80")
    assert [header.path for header in found.build.headers] == [str(folder / "inc/own.cuh")]
    (folder / "inc/own.cuh").write_text("// edited\n")
    monkeypatch.setenv("RTCOMPILE_JIT", "0")
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "empty"))
    with pytest.raises(BatchError, match=r"two/inc/own\.cuh changed"):
        rtcompile.compile_many([request], progress=False)


def test_a_program_that_links_objects_is_found(tmp_path, monkeypatch):
    part = rtcompile.compile("__device__ int f() { return 1; }", arch="sm_80", target="object")
    (tmp_path / "part.o").write_bytes(part.code)
    source = "__device__ int f(); __global__ void k(int* x) { *x = f(); }"
    request = CompileRequest(source, options=("-dc",), link=[str(tmp_path / "part.o")])
    bundling.bundle([request], tmp_path / "k.rtcb", archs=["sm_80"], progress=False)
    bundles.use_bundle(tmp_path / "k.rtcb")
    again = rtcompile.compile(source, options=("-dc",), link=[part], arch="sm_80")
    assert again.build.hit == "bundle"


# --- not found: compiled instead -----------------------------------------------------------------


def edit_source(package: Package):
    package.write("scale.cu", SOURCE.replace("*=", "+="))


def change_options(package: Package):
    text = (package.folder / "__init__.py").read_text()
    package.write("__init__.py", text.replace("bundle=", 'options=("-DN=1",), bundle='))


def declare_another(package: Package):
    text = (package.folder / "__init__.py").read_text()
    package.write("__init__.py", text.replace('"fill"', '"scale<double>": "", "fill"'))


@needs_host_compiler
def test_a_bundled_build_of_another_compiler_is_not_used(bundled):
    request = bundled.load().module.request.replace(arch="sm_80")
    bundles.use_bundle(bundled.bundle)

    def hit(**arguments):
        return rtcompile.compile(
            request.source,
            options=request.options,
            name_expressions=request.name_expressions,
            name=request.name,
            arch="sm_80",
            **arguments,
        ).build.hit

    assert hit(backend="nvrtc") == "bundle"
    if toolkit.current().nvcc is not None:
        assert hit(fallback="always") is None


# --- where nothing can be compiled ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "built_for"),
    [
        pytest.param((8, 6), ("sm_80", "cubin"), id="machine code of the same generation"),
        pytest.param((12, 0), ("sm_80", "ptx"), id="PTX of an older one"),
    ],
)
@pytest.mark.parametrize("why", ["no toolkit", "no JIT"])
def test_a_build_for_another_device_is_used_if_it_runs(
    bundled, monkeypatch, request, capability, built_for, why
):
    if why == "no toolkit":
        request.getfixturevalue("bare_machine")
    else:
        monkeypatch.setenv("RTCOMPILE_JIT", "0")
    on_device(monkeypatch, *capability)
    code = bundled.load().module.compile()
    assert (str(code.arch), code.kind) == built_for


def test_with_a_toolkit_code_for_the_device_is_compiled(bundled, monkeypatch):
    on_device(monkeypatch, 8, 6)
    code = bundled.load().module.compile()
    assert (str(code.arch), code.build.hit) == ("sm_86", None)


@pytest.mark.parametrize(
    ("change", "arch", "message"),
    [
        pytest.param(
            lambda p: None,
            "sm_86",
            "only has compute_80, sm_80, sm_90a code for it; rebuild the bundle with sm_86",
            id="architecture",
        ),
        pytest.param(edit_source, "sm_80", "built from different source", id="source"),
        pytest.param(edit_header, "sm_80", "common.cuh changed", id="header"),
        pytest.param(change_options, "sm_80", "built with different options", id="options"),
        pytest.param(declare_another, "sm_80", "with different name expressions", id="names"),
        pytest.param(lambda p: p.bundle.unlink(), "sm_80", "it is not there", id="no bundle"),
    ],
)
def test_without_jit_the_error_names_the_missing_build(bundled, monkeypatch, change, arch, message):
    monkeypatch.setenv("RTCOMPILE_JIT", "0")
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(bundled.folder / "cache"))
    change(bundled)
    named = rf"scale.cu \(scale<float>.*\) for {arch} "
    with pytest.raises(JitDisabled, match=f"{named}.*{message}") as caught:
        bundled.load().module.compile(arch)
    assert len(re.findall(r"(?<!/)scale\.cu", str(caught.value))) == 1


def test_a_source_without_a_name_is_not_called_another_version_of_a_bundled_one(
    tmp_path, monkeypatch
):
    path = tmp_path / "k.rtcb"
    bundling.bundle([CompileRequest(PLAIN)], path, archs=("sm_80",), progress=False)
    rtcompile.use_bundle(path)
    monkeypatch.setenv("RTCOMPILE_JIT", "0")
    with pytest.raises(JitDisabled) as caught:
        rtcompile.compile(f"{PLAIN}// another", arch="sm_80")
    assert "contains this program" not in str(caught.value)


@pytest.mark.usefixtures("bare_machine")
def test_without_a_toolkit_the_error_lists_the_bundled_builds(bundled):
    with pytest.raises(
        ToolkitNotFound,
        match=r"^scale.cu \(.*\) for sm_86 cannot be .*NVRTC is not here.* only has compute_80, sm_80, sm_90a code",
    ):
        bundled.load().module.compile("sm_86")


# --- bundles that cannot be used -----------------------------------------------------------------


def flip(at):
    def damage(data: bytes) -> bytes:
        position = at(data)
        return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]

    return damage


DAMAGE = {
    "empty": lambda data: b"",
    "a text": lambda data: b"Not a bundle at all.\n" * 100,
    "another format": lambda data: data.replace(
        b"rtcompile bundle 9\n", b"rtcompile bundle 8\n", 1
    ),
    "cut in the head": lambda data: data[:36],
    "cut in the index": lambda data: data[:300],
    "cut in the builds": lambda data: data[: data.index(b"\x7fELF") + 100],
    "a bit of the index's size": flip(lambda data: 35),
    "a bit of the index": flip(lambda data: 250),
    "a bit of the list of headers": flip(lambda data: data.index(b"rtcompile record") + 60),
    "a bit of the machine code": flip(lambda data: data.index(b"\x7fELF") + 200),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_bundle_is_ignored_with_one_warning(bundled, damage):
    bundled.bundle.write_bytes(damage(bundled.bundle.read_bytes()))
    module = bundled.load().module
    with pytest.warns(RtcompileWarning, match="kernels.rtcb is ignored: it ") as caught:
        codes = [module.compile(arch) for arch in ("sm_80", "sm_90a", "sm_80")]
    assert [code.build.hit for code in codes] == ["disk", "disk", "memory"]
    assert len(caught) == 1
    assert "compiled" not in str(caught[0].message)  # RTCOMPILE_JIT=0 may forbid it


def test_each_changed_byte_of_a_build_is_noticed(bundled):
    bundle = Bundle(str(bundled.bundle))
    row = bundle.rows()[0]
    whole = bundled.bundle.read_bytes()
    assert bundle.blob(row.code) in whole
    for at in range(20):  # the digest of the changed bytes may be the greater or the smaller one
        bundled.bundle.write_bytes(flip(lambda data, at=at: bundle.end_of_index + at)(whole))
        with pytest.raises(UnusableError, match="it is damaged"):
            bundle.blob(row.code)
    bundled.bundle.unlink()
    with pytest.raises(UnusableError, match="No such file"):
        bundle.blob(row.code)
    assert not Bundle(bundle.path).open()
    bundled.bundle.write_bytes(b"\xff" * 100)
    with pytest.raises(UnusableError, match="it is no bundle"):
        Bundle(bundle.path).open()


def test_a_bundle_whose_index_names_no_part_of_the_file_cannot_be_used(bundled):
    texts = Bundle(str(bundled.bundle)).rows()[0].encode().split(b"\0")
    for at, text in (
        (3, b"sm_1000"),
        (5, b"nvrtc"),
        (6, b"x"),
        (7, b"\xc2\xb2"),
        (9, b"\xff"),
        (9, b""),
    ):
        with pytest.raises(UnusableError, match="index cannot be understood"):
            Row.decode(b"\0".join([*texts[:at], text, *texts[at + 1 :]]))
    with pytest.raises(UnusableError, match="index cannot be understood"):
        Row.decode(b"\0".join(texts[:-2]))


def test_a_truncated_bundle_gives_no_wrong_code(bundled):
    whole = bundled.bundle.read_bytes()
    code = bundled.load().module.compile("sm_80").code
    for size in range(0, len(whole), len(whole) // 50):
        bundled.bundle.write_bytes(whole[:size])
        module = bundled.load().module
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert module.compile("sm_80").code == code


def test_a_bundle_replaced_in_use_gives_no_wrong_code(bundled):
    module = bundled.load().module
    assert module.compile("sm_80").build.hit == "bundle"
    with bundles.out_of_use():
        bundling.bundle([CompileRequest(PLAIN)], bundled.bundle, archs=("sm_80",))
    with pytest.warns(RtcompileWarning, match="replaced while in use"):
        assert module.compile("sm_90a").build.hit == "disk"


def test_code_of_an_unused_bundle_is_not_found_in_memory_or_index(bundled, tmp_path, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "another"))
    module = bundled.load().module
    # A header written in the current tick of the clock is read again until the tick is over.
    hits = [module.compile("sm_80").build.hit for _ in range(30)]
    assert (hits[0], hits[-1]) == ("bundle", "memory")
    with bundles.out_of_use():
        made = module.compile("sm_80")
        assert made.build.hit is None, "it was not compiled"
        assert module.compile("sm_80").build.hit == "memory"
        environment.forget()
        assert module.compile("sm_80").build.hit == "disk"
    environment.forget()
    assert module.compile("sm_80").build.hit == "bundle"


def test_a_bundle_of_another_cuda_is_ignored_with_one_warning(bundled, monkeypatch):
    monkeypatch.setattr(bundles, "cuda_major", lambda: 13)
    module = bundled.load().module
    with pytest.warns(RtcompileWarning, match="made with CUDA 12, and this process uses CUDA 13"):
        module.compile("sm_80")
    module.compile("sm_90a")


@pytest.mark.parametrize(
    ("wheel", "major"),
    [("cupy_cuda12x-14.2.0.dist-info", 12), ("cupy_cuda13x-14.2.0.dist-info", 13), ("", None)],
)
def test_the_cuda_version_follows_from_cupys_wheel_if_cupy_is_not_loaded(
    tmp_path, monkeypatch, wheel, major
):
    (tmp_path / wheel).mkdir(exist_ok=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert bundles.cuda_major() == major


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_folder_or_pipe_under_the_bundles_path_is_ignored(package, make):
    make(package.bundle)
    with pytest.warns(RtcompileWarning, match="is ignored: .* is not a regular file"):
        assert package.load().module.compile("sm_80").build.hit is None


def test_a_build_under_another_key_is_not_used(bundled):
    """The index is intact, but names another architecture's object."""
    bundle = Bundle(str(bundled.bundle))
    first, second = [row for row in bundle.rows() if row.kind == "cubin"]
    with pytest.raises(UnusableError, match="another format, or under other keys"):
        bundle.object(first._replace(code=second.code))

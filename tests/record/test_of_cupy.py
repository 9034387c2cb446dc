"""Tests of the package's record of CuPy's kernels, as far as possible without a device."""

import json
import lzma
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

cupy = pytest.importorskip("cupy")

from cupy._core import core  # noqa: E402
from cupy.cuda import compiler  # noqa: E402

import rtcompile  # noqa: E402
from rtcompile.cli import main  # noqa: E402
from rtcompile.extras.record import recording  # noqa: E402
from rtcompile.frontends.cupy_hook import program_name  # noqa: E402
from rtcompile.lookup import environment  # noqa: E402
from rtcompile.request import options as compiler_options  # noqa: E402
from tests.processes import python  # noqa: E402
from tests.programs import CODE, TEMPLATE, without_a_device  # noqa: E402

MINOR = ".".join(cupy.__version__.split(".")[:2])
SMALL = [
    {"name": "twice.cu", "source": CODE, "names": [], "options": []},
    {"name": "f.cu", "source": TEMPLATE, "names": ["f<int>"], "options": ["-std=c++14"]},
]


@pytest.fixture
def kernels() -> list[dict[str, Any]]:
    """The kernels in the package."""
    with lzma.open(recording.KERNELS) as file:
        document = json.loads(file.read())
    return list(document["kernels"])


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that replaces the package's record by one of two kernels."""

    def put(cupys: str = cupy.__version__, **more: Any) -> None:
        document = {"cupy": cupys, "kernels": SMALL, **more}
        for kernel in document["kernels"]:
            kernel["milliseconds"] = 0
        path = tmp_path / "kernels.json.xz"
        path.write_bytes(lzma.compress(json.dumps(document).encode()))
        monkeypatch.setattr(recording, "KERNELS", str(path))

    put()
    return put


def request_as_cupy(monkeypatch: pytest.MonkeyPatch, arch: str, kernel: dict[str, Any]) -> Any:
    """Return a kernel's module as in a new process on such a device, without compiling."""
    without_a_device(monkeypatch)
    monkeypatch.setenv("RTCOMPILE_JIT", "0")
    environment.forget()
    options = core.assemble_cupy_compiler_options(tuple(kernel["options"]))
    with rtcompile.install():
        return compiler._compile_module_with_cache(
            kernel["source"], options, arch=arch, name_expressions=kernel["names"] or None
        )


# --- the package's records ------------------------------------------------------------------------


def test_a_record_has_everyday_kernels_of_each_kind(kernels):
    sources = [kernel["source"] for kernel in kernels]
    for sign in ("#include <cub/", "#define _REDUCE(", "CUPY_FOR("):
        assert sum(sign in source for source in sources) >= 30
    text = "".join(kernel["source"] for kernel in kernels)
    for name in ("cupy_add__float32_float32_float32", "cupy_cub_mean_pass1", "cupy_getitem_mask"):
        assert f" {name}(" in text


def test_a_record_has_no_path_of_a_machine_and_no_text_of_a_header(kernels):
    """Its options run and write nothing, and a kernel has the name by which it is requested."""
    for kernel in kernels:
        assert not any("/" in option for option in kernel["options"])
        assert compiler_options.distrusted(kernel["options"]) == []
        assert kernel["name"] == program_name(kernel["source"])
        assert not re.search(r'#\s*include\s*["<]/|/home/|/opt/|/usr/|/root/', kernel["source"])
    text = "\n".join({line for kernel in kernels for line in kernel["source"].splitlines()})
    headers = Path(core._get_header_dir_path()) / "cupy"
    for name in ("carray.cuh", "complex.cuh", "atomics.cuh", "complex/complex.h"):
        lines = {line.strip() for line in (headers / name).read_text().splitlines()}
        long = [line for line in lines if len(line) > 50]
        assert sum(line in text for line in long) <= len(long) // 20


@pytest.mark.takes_seconds
def test_the_wheel_has_the_record_below_a_megabyte_and_the_license_of_its_sources(rtcompile_wheel):
    with zipfile.ZipFile(rtcompile_wheel) as wheel:
        folder = "rtcompile/extras/record/kernels_of_cupy"
        kernels = wheel.read(f"{folder}/kernels.json.xz")
        assert kernels == Path(recording.KERNELS).read_bytes()
        assert len(kernels) <= 1 << 20
        assert b"Preferred Networks" in wheel.read(f"{folder}/LICENSE.txt")


@pytest.mark.needs_compiler
@pytest.mark.takes_seconds
def test_a_slice_of_the_record_builds_for_two_architectures_and_serves_cupy(kernels, monkeypatch):
    archs = ["sm_80", "sm_120"]
    record = recording.record_of_cupy(archs[0])
    record.builds = [build for build in record.builds if "CUPY_FOR(" in build.request.source]
    record.builds = record.builds[:: len(record.builds) // 2]

    codes = recording.warm(record, archs=archs, progress=False)

    assert [str(code.arch) for code in codes] == archs * len(record.builds)
    first = {"source": record.builds[0].request.source, "options": [], "names": []}
    for arch, code in zip(("80", "120"), codes, strict=False):
        assert request_as_cupy(monkeypatch, arch, first).code == code.code


# --- the commands --------------------------------------------------------------------------------


@pytest.mark.needs_compiler
def test_warm_prints_number_time_and_size(small, capsys, monkeypatch):
    assert main(["warm", "cupy", "--arch", "sm_90", "--json"]) == 0

    [row] = json.loads(capsys.readouterr().out)["records"]
    modules = [request_as_cupy(monkeypatch, "90", kernel) for kernel in SMALL]
    assert row["bytes"] == sum(len(module.code) for module in modules)
    assert (row["builds"], row["built"], row["there already"]) == (2, 2, 0)
    assert 0 < row["seconds"] < 600
    assert modules[1].mapping == {"f<int>": "_Z1fIiEvPT_"}


@pytest.mark.needs_compiler
def test_a_bundle_of_cupys_kernels_serves_a_process_with_an_empty_cache(
    small, tmp_path, monkeypatch
):
    path = str(tmp_path / "cupy.rtcb")
    assert main(["bundle", "--cupy", "--arch", "sm_90", "-o", path]) == 0

    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "another"))
    monkeypatch.setenv("RTCOMPILE_BUNDLES", path)
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import pytest
from tests.record import test_of_cupy as tests
patch = pytest.MonkeyPatch()
print(all(tests.request_as_cupy(patch, "90", kernel).code for kernel in tests.SMALL))
"""
    done = python(code)
    assert done.stdout == "True\n", done.stderr


def test_an_empty_bundle_is_rejected(capsys):
    assert main(["bundle", "-o", "x.rtcb"]) == 2
    assert "--cupy" in capsys.readouterr().err


# --- other versions ------------------------------------------------------------------------------


def test_the_kernels_of_another_minor_version_are_built_with_a_note(small):
    small(f"{MINOR}.99")  # a patch release has the same kernels
    assert not recording.differences(recording.record_of_cupy("sm_90"))
    small("14.77.0")
    [difference] = recording.differences(recording.record_of_cupy("sm_90"))
    assert difference == f"recorded with CuPy 14.77.0, and here is CuPy {cupy.__version__}"


def test_another_major_version_of_cupy_is_an_error_that_names_the_known_ones(small, monkeypatch):
    monkeypatch.setattr(cupy, "__version__", "99.1.0")
    with pytest.raises(
        rtcompile.InvalidRequest, match=rf"CuPy 99.1.0.* CuPy {MINOR}.*: record your"
    ):
        recording.record_of_cupy("sm_90")


def test_without_a_device_the_architecture_is_required(small, monkeypatch, capsys):
    def no_device() -> tuple[int, int]:
        raise rtcompile.UnsupportedArch("no CUDA device; pass --arch")

    monkeypatch.setattr("rtcompile.lookup.find.compute_capability", no_device)
    assert main(["warm", "cupy"]) == 3
    assert "no CUDA device" in capsys.readouterr().err

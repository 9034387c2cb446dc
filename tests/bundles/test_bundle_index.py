"""Tests of a bundle built from a record: the program's requests are found without planning, and checked."""

import shutil
import time
from pathlib import Path

import pytest

cupy = pytest.importorskip("cupy")

from cupy._core import core  # noqa: E402
from cupy.cuda import compiler  # noqa: E402

import rtcompile  # noqa: E402
from rtcompile.build import planned  # noqa: E402
from rtcompile.cli import bundling  # noqa: E402
from rtcompile.cli.bundling import read  # noqa: E402
from rtcompile.extras.record import recording  # noqa: E402
from rtcompile.lookup import bundles as index  # noqa: E402
from rtcompile.lookup import environment  # noqa: E402
from rtcompile.lookup.bundles import Bundle  # noqa: E402
from rtcompile.lookup.find import Query, query_of  # noqa: E402
from rtcompile.request.request import CompileRequest  # noqa: E402
from tests.programs import CODE, TEMPLATE, recorded, without_a_device  # noqa: E402
from tests.tables import from_table  # noqa: E402

pytestmark = pytest.mark.needs_compiler

WITH_HEADER = '#include "scale.cuh"\n__device__ int n = SCALE; __global__ void k() {}'


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(environment, "_environment", None)
    without_a_device(monkeypatch)
    cuda = major()
    monkeypatch.setattr(cupy.cuda.runtime, "runtimeGetVersion", lambda: 1000 * cuda)
    with rtcompile.install():
        yield Program(tmp_path, monkeypatch)


def major() -> int:
    return int(rtcompile.toolkit.current().require_nvrtc().version.partition(".")[0])


class Program:
    """A program with one compile by CuPy, whose source includes ``scale.cuh`` from a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "include"
        self.folder.mkdir()
        self.header = self.folder / "scale.cuh"
        self.header.write_text("#define SCALE 3\n")
        time.sleep(0.02)  # out of the file clock's tick
        self.bundle = folder / "kernels.rtc"
        self._record = str(folder / "kernels.json")
        self.monkeypatch = monkeypatch

    def run(self, source: str = WITH_HEADER, *options: str, **more: object) -> bytes:
        """Compile by CuPy's function; return the code."""
        options = options or (f"-I{self.folder}",)
        found = compiler._compile_module_with_cache(source, options, **more)
        return bytes(found.code)

    def ship(self, *archs: str, source: str = WITH_HEADER) -> bytes:
        """Record a run, bundle it, and use the bundle with an empty cache; return the run's code."""
        codes: list[bytes] = []
        recorded(self._record, lambda: codes.append(self.run(source)))
        with recording.requests(recording.read(self._record), archs) as wanted:
            targets = [bundling.Work(request) for request, _ in wanted]
            bundling.bundle(targets, self.bundle, archs=[], progress=False)
        self.monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(self.folder / "no cache"))
        self.monkeypatch.setenv("RTCOMPILE_BUNDLES", str(self.bundle))
        return codes[0]

    def without_planning(self) -> None:
        self.monkeypatch.setattr(planned, "compile", lambda *_, **__: pytest.fail("it was planned"))


def test_a_recorded_programs_requests_are_found_without_planning(program):
    code = program.ship()
    program.without_planning()

    assert program.run() == code
    assert not (program.folder / "no cache").exists()
    moved = program.folder.rename(program.folder.with_name("moved"))
    assert program.run(WITH_HEADER, f"-I{moved}") == code


def test_a_header_and_its_copy_are_not_a_header_and_its_link(program):
    """``#pragma once`` tells them apart."""
    program.header.write_text(
        "#pragma once\n#ifdef S\n#undef S\n#define S 2\n#else\n#define S 1\n#endif"
    )
    copy = program.folder / "copy.cuh"
    copy.write_text(program.header.read_text())
    source = (
        '#include "scale.cuh"\n#include "copy.cuh"\n__device__ int n = S; __global__ void k() {}'
    )
    code = program.ship(source=source)
    assert program.run(source) == code
    copy.unlink()
    copy.symlink_to("scale.cuh")
    assert program.run(source) != code


def test_listeners_get_objects_that_survive_changes_of_header_and_bundle(program):
    code = program.ship()
    listed: list[rtcompile.ObjectCode] = []
    listeners = [lambda request, code: listed.append(code)]
    program.monkeypatch.setattr("rtcompile.lookup.find.listeners", listeners)
    for _ in range(4):
        program.run()
        environment.forget()
    assert [header.path for header in listed[0].build.headers] == [str(program.header)]
    assert listed[0].build.files.is_unchanged()

    for found, change in zip(
        listed,
        [
            lambda: program.header.write_text("#define SCALE 4\n"),
            program.header.unlink,
            lambda: program.bundle.write_bytes(b"rtcompile"),
            program.bundle.unlink,
        ],
        strict=True,
    ):
        change()
        assert (found.code, str(found.arch), found.build.hit) == (code, "sm_80", "bundle")
        assert isinstance(found.build.headers, tuple)


@pytest.mark.parametrize(
    ("variable", "of_the_bundle"),
    [
        ("CUPY_CUDA_COMPILE_WITH_DEBUG", True),
        ("CUPY_CUDA_COMPILE_WITH_DEBUG", False),
        ("CUPY_COMPILE_WITH_PTX", False),
    ],
)
def test_a_variable_that_changes_the_code_asks_for_another_build(program, variable, of_the_bundle):
    if of_the_bundle:
        program.monkeypatch.setenv(variable, "1")
    program.ship()
    program.monkeypatch.setenv(variable, "0" if of_the_bundle else "1")
    program.without_planning()

    with pytest.raises(pytest.fail.Exception):
        program.run()


def test_cupys_headers_count_as_the_toolkits():
    assert core._get_header_dir_path().startswith(index.folder_of_cupy())


def query(request: CompileRequest, capability=(8, 0)) -> Query:
    return query_of(request, environment.current().settings, capability)


@pytest.mark.parametrize("make", [rtcompile.RawModule, CompileRequest])
def test_a_packages_builds_are_found_for_their_devices(program, make):
    source = "source" if make is CompileRequest else "code"
    target = make(**{source: TEMPLATE}, name_expressions=("f<int>",))
    bundling.bundle(
        [target], program.bundle, archs=["sm_80", "sm_90a", "compute_90"], progress=False
    )
    rtcompile.use_bundle(program.bundle)

    request = CompileRequest(TEMPLATE, name_expressions=("f<int>",))
    found = {cc: index.Search(query(request, cc)).exact() for cc in ((8, 0), (9, 0), (7, 5))}

    assert found[7, 5] is None
    assert found[8, 0].obj.lowered_names == {"f<int>": "_Z1fIiEvPT_"}
    hopper = rtcompile.compile(TEMPLATE, arch="sm_90a", name_expressions=("f<int>",))
    assert found[9, 0].obj.code == hopper.code


def test_ptx_is_found_where_the_driver_is_to_compile_it(program):
    archs = ["sm_90", "compute_90"]
    bundling.bundle([CompileRequest(CODE)], program.bundle, archs=archs, progress=False)
    rtcompile.use_bundle(program.bundle)
    request = CompileRequest(CODE)

    kinds = []
    for given in "01":
        program.monkeypatch.setenv("CUPY_COMPILE_WITH_PTX", given)
        kinds.append(index.Search(query(request, (9, 0))).exact().obj.kind)
    assert kinds == ["cubin", "ptx"]
    lto_ir = CompileRequest(CODE, target="ltoir")
    assert index.Search(query(lto_ir, (9, 0))).exact() is None


@from_table
def test_folders_that_are_nested_in_the_same_way_have_the_same_key(options, others, is_same):
    assert (index.shape_of(options).text == index.shape_of(others).text) is is_same


@from_table
def test_a_shape_has_the_folders_of_the_options(options, folders, is_parsed):
    shape = index.shape_of(options)
    assert (shape.folders, shape.parsed is not None) == (folders, is_parsed)


def test_the_headers_of_one_bundle_are_kept_for_each_folder(program):
    program.monkeypatch.setattr(index, "_known", {})
    program.ship()
    program.run()
    other = program.folder.with_name("other")
    shutil.copytree(program.folder, other)
    program.run(WITH_HEADER, f"-I{other}")
    assert {folders for _, folders in index._known} == {(str(program.folder),), (str(other),)}


def test_a_limited_number_of_shapes_is_kept(monkeypatch):
    monkeypatch.setattr(index, "_shapes", {})
    given = [CompileRequest("", options=(f"-DN={n}",)) for n in range(index._MAX_KNOWN + 1)]
    shapes = [index.key_of(each, debug=False)[1] for each in given[:2]]

    assert index.key_of(given[0], debug=False)[1] is shapes[0]
    for each in given[2:]:
        index.key_of(each, debug=False)
    assert index.key_of(given[0], debug=False)[1] is not shapes[0]


def test_each_way_to_request_one_build_is_found(program):
    """`RawKernel`, `compile` and CuPy's own classes request the same code by different requests."""
    ways = [{}, {"may_pass_over_arch": True}, {"allow_fixups": False}]
    requests = [CompileRequest(CODE, **way) for way in ways]
    bundling.bundle(requests, program.bundle, archs=["sm_80"], progress=False)
    rtcompile.use_bundle(program.bundle)

    assert len(read(Bundle(program.bundle))) < len(requests)
    assert all(index.Search(query(request)).exact() for request in requests)


@from_table
def test_one_string_of_options_equals_a_list(one, other, is_same):
    assert (index.shape_of(one) == index.shape_of(other)) is is_same

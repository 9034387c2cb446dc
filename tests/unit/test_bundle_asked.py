"""A bundle of a record answers what the program asks at once, and is checked as on the full road."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

cupy = pytest.importorskip("cupy")

from cupy.cuda import compiler, function  # noqa: E402

import rtcompile  # noqa: E402
from rtcompile.building import pipeline  # noqa: E402
from rtcompile.bundles import asked  # noqa: E402
from rtcompile.cache import answers, surroundings, words  # noqa: E402
from rtcompile.everywhere import recording, warming  # noqa: E402
from rtcompile.packages import bundling  # noqa: E402
from tests.programs import CODE, TEMPLATE, Module  # noqa: E402

WITH_HEADER = '#include "scale.cuh"\n__device__ int n = SCALE; __global__ void k() {}'


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("rtcompile.bundles._bundles", {})
    monkeypatch.setattr(answers, "_environment", None)
    monkeypatch.setattr(function, "Module", Module)
    monkeypatch.setattr(compiler, "_get_arch", lambda: "80")
    monkeypatch.setattr(
        compiler, "_get_arch_for_options_for_nvrtc", lambda arch: (f"-arch=sm_{arch}", "cubin")
    )
    monkeypatch.setattr(cupy.cuda.runtime, "runtimeGetVersion", lambda: 1000 * major())
    with rtcompile.install():
        yield Program(tmp_path, monkeypatch)


def major() -> int:
    return int(rtcompile.toolkit.current().require_nvrtc().version.partition(".")[0])


class Program:
    """A program of one compile by CuPy, which includes ``scale.cuh`` from a folder."""

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

    def ship(self, *archs: str) -> bytes:
        """Record a run, bundle it, and use the bundle with an empty cache; return the run's code."""
        recorder = recording.Recorder(self._record)
        recorder.start()
        code = self.run()
        recorder.finish()
        with warming.requests(recording.read(self._record), archs) as wanted:
            targets = [
                bundling.Work(w.request, asked=w.asked[0], asked_by=w.asked[1]) for w in wanted
            ]
            bundling.bundle(targets, self.bundle, archs=[], progress=False)
        self.monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(self.folder / "no cache"))
        self.monkeypatch.setenv("RTCOMPILE_BUNDLES", str(self.bundle))
        return code

    def only_the_short_road(self) -> None:
        self.monkeypatch.setattr(
            pipeline, "look", lambda *_: pytest.fail("the full road was taken")
        )


def test_what_a_recorded_program_asks_is_found_on_the_short_road(program):
    code = program.ship()
    program.only_the_short_road()

    assert program.run() == code
    assert not (program.folder / "no cache").exists()


def test_in_other_folders_it_is_found_there_too(program):
    code = program.ship()
    moved = program.folder.rename(program.folder.with_name("elsewhere"))
    program.only_the_short_road()

    assert program.run(WITH_HEADER, f"-I{moved}") == code


def test_it_is_used_without_a_record_of_its_story(program):
    """What the summary of a run tells is what the full road would."""
    told = []
    program.monkeypatch.setattr(answers, "watchers", [lambda said, found: told.append(found)])
    code = program.ship()

    program.run()

    [found] = told
    story = found.object_code()
    assert (story.code, story.build.hit, found.depends_on_files) == (code, "bundle", True)
    assert [header.path for header in story.build.headers] == [str(program.header)]
    assert found.own_files_hold()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda p: p.header.write_text("#define SCALE 4\n"), id="a header"),
        pytest.param(lambda p: p.header.unlink(), id="a header that is gone"),
        pytest.param(lambda p: p.bundle.write_bytes(b"rtcompile"), id="the bundle"),
        pytest.param(lambda p: p.bundle.unlink(), id="a bundle that is gone"),
    ],
)
def test_its_story_is_told_whatever_has_changed_since(program, change):
    told = []
    program.monkeypatch.setattr(answers, "watchers", [lambda said, found: told.append(found)])
    code = program.ship()
    program.run()

    change(program)

    story = told[0].object_code()
    assert (story.code, str(story.arch), story.build.hit) == (code, "sm_80", "bundle")


@pytest.mark.parametrize("variable", ["CUPY_CUDA_COMPILE_WITH_DEBUG", "CUPY_COMPILE_WITH_PTX"])
def test_a_bundle_made_under_a_variable_that_changes_requests_answers_none_without(
    program, variable
):
    program.monkeypatch.setenv(variable, "1")
    program.ship()
    program.monkeypatch.delenv(variable)
    program.only_the_short_road()

    with pytest.raises(pytest.fail.Exception):
        program.run()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda p: p.header.write_text("#define SCALE 4\n"), id="a header"),
        pytest.param(lambda p: p.header.unlink(), id="a header that is gone"),
        pytest.param(
            lambda p: p.monkeypatch.setenv("CUPY_CUDA_COMPILE_WITH_DEBUG", "1"), id="debug"
        ),
        pytest.param(lambda p: p.monkeypatch.setenv("RTCOMPILE_FALLBACK", "never"), id="fallback"),
        pytest.param(
            lambda p: p.monkeypatch.setattr(cupy.cuda.runtime, "runtimeGetVersion", lambda: 11080),
            id="another CUDA",
        ),
        pytest.param(
            lambda p: p.monkeypatch.setattr(surroundings, "__version__", "9"), id="a new version"
        ),
        pytest.param(lambda p: damage(p.bundle), id="damage"),
        pytest.param(lambda p: p.bundle.unlink(), id="no bundle"),
    ],
)
@pytest.mark.filterwarnings("ignore:kernel bundle")
def test_what_is_not_as_it_was_takes_the_full_road(program, change):
    program.ship()
    change(program)
    program.only_the_short_road()

    with pytest.raises(pytest.fail.Exception):
        program.run()


def test_a_variable_of_no_valid_value_is_an_error_as_ever(program):
    program.ship()
    program.monkeypatch.setenv("RTCOMPILE_TIMEOUT", "soon")

    with pytest.raises(rtcompile.InvalidRequest, match="RTCOMPILE_TIMEOUT"):
        program.run()


def damage(bundle: Path) -> None:
    data = bytearray(bundle.read_bytes())
    data[data.index(b"\x7fELF") + 200] ^= 1
    bundle.write_bytes(data)


def test_a_header_that_is_edited_in_use_is_seen_at_once(program):
    code = program.ship()
    assert program.run() == code

    program.header.write_text("#define SCALE 4\n")

    assert program.run() != code


def test_other_options_a_device_or_a_source_are_not_taken_for_it(program):
    program.ship()
    program.only_the_short_road()
    other = (
        lambda: program.run(WITH_HEADER + "// another"),
        lambda: program.run(WITH_HEADER, f"-I{program.folder}", "-DN=1"),
        lambda: program.run(WITH_HEADER, f"-I{program.folder}", name_expressions=["k"]),
        lambda: program.run(WITH_HEADER, f"-I{program.folder}", arch="75"),
        lambda: program.run(WITH_HEADER, f"-I{program.folder}", backend="nvcc"),
    )
    for ask in other:
        with pytest.raises(pytest.fail.Exception):
            ask()


def test_each_architecture_of_a_bundle_is_found(program):
    program.ship("sm_75", "sm_90a")
    program.only_the_short_road()

    codes = [program.run(WITH_HEADER, f"-I{program.folder}", arch=arch) for arch in ("75", "90")]
    assert codes[0] != codes[1]


def test_a_bundle_of_other_words_than_its_build_answers_none(program):
    request = rtcompile.CompileRequest(CODE, arch="sm_80")
    other = words.of_module(CODE + "// another", "kernel.cu", "", (), ())
    work = bundling.Work(request, asked=other, asked_by=(8, 0))
    bundling.bundle([work], program.bundle, archs=[], progress=False)
    rtcompile.use_bundle(program.bundle)

    assert asked.find(other, (8, 0), settled=False) is None


def test_a_raw_kernel_that_a_package_ships_is_found_by_devices_it_was_built_for(program):
    kernel = rtcompile.RawModule(code=TEMPLATE, name_expressions=("f<int>",))
    bundling.bundle(
        [kernel], program.bundle, archs=["sm_80", "sm_90a", "compute_90"], progress=False
    )
    rtcompile.use_bundle(program.bundle)

    said = kernel._build.words
    found = {cc: asked.find(said, cc, settled=False) for cc in ((8, 0), (9, 0), (7, 5))}

    assert found[7, 5] is None
    assert found[8, 0].names == (("f<int>", "_Z1fIiEvPT_"),)
    hopper = rtcompile.compile(TEMPLATE, arch="sm_90a", name_expressions=("f<int>",))
    assert found[9, 0].code == hopper.code


@pytest.mark.parametrize(
    ("options", "others", "alike"),
    [
        (("-I/a", "-I/b"), ("-I/c", "-I/d"), True),
        (("-I/a", "-I/a/b"), ("-I/c", "-I/c/b"), True),
        (("-I/a", "-I/a/b"), ("-I/c", "-I/c/d"), False),
        (("-I/a", "-I/a/b"), ("-I/c", "-I/d"), False),
        (("-I/a/b", "-I/a"), ("-I/a", "-I/a/b"), False),
        (("-DN=1",), ("-DN=2",), False),
        (("-I/a", "-I/a/b", "-I/a/b/c"), ("-I/x/y", "-I/x/y/b", "-I/x/y/b/c"), True),
    ],
)
def test_folders_that_lie_alike_are_the_same_question(options, others, alike):
    one, two = (
        asked.digest_of(words.of_module(CODE, "kernel.cu", "", each, ()), (8, 0))
        for each in (options, others)
    )
    assert (one[0] == two[0]) is alike


@pytest.mark.parametrize(
    "options",
    [("-I/a/",), ("-I/a/../b",), ("-I/a", "-I/a"), ("-I'/a b'",), ("-I/a\\b",), ("-lineinfo",)],
)
def test_folders_that_may_mean_others_take_the_full_road(options):
    assert asked.digest_of(words.of_module(CODE, "kernel.cu", "", options, ()), (8, 0)) is None


def test_an_update_keeps_what_was_asked(program):
    code = program.ship()
    request = rtcompile.CompileRequest(CODE, arch="sm_80")
    bundling.bundle([request], program.bundle, archs=[], update=True, progress=False)
    program.only_the_short_road()

    assert program.run() == code

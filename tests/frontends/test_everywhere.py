"""Tests of compiling all of CuPy by rtcompile, as far as possible without a device."""

import json
import re
import time
from pathlib import Path

import pytest

cupy = pytest.importorskip("cupy")

from cupy._core import core  # noqa: E402
from cupy.cuda import compiler, function  # noqa: E402

import rtcompile  # noqa: E402
from rtcompile import CompileRequest  # noqa: E402
from rtcompile.build import many, pipeline, planned  # noqa: E402
from rtcompile.extras.record import recording  # noqa: E402
from rtcompile.extras.record.program import Recorder, Tally  # noqa: E402
from rtcompile.frontends import cupy_hook  # noqa: E402
from rtcompile.lookup import environment  # noqa: E402
from rtcompile.lookup.find import listeners  # noqa: E402
from rtcompile.settings import Settings  # noqa: E402
from tests import programs  # noqa: E402
from tests.jobs import at_once  # noqa: E402
from tests.programs import CODE, TEMPLATE, without_a_device  # noqa: E402
from tests.toolkits import needs_host_compiler  # noqa: E402

pytestmark = pytest.mark.needs_compiler

ORIGINAL = compiler._compile_module_with_cache


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cupy_hook, "_has_precompiled_cub", True)
    without_a_device(monkeypatch)
    with rtcompile.install():
        yield compiler._compile_module_with_cache
    assert compiler._compile_module_with_cache is ORIGINAL


def test_cupys_compile_gives_rtcompiles_code(installed):
    module = installed(CODE, ("-DN=1",))

    same = rtcompile.compile(CODE, options=("-DN=1",), arch="sm_80", name="twice.cu")
    assert (module.code, module.mapping) == (same.code, None)
    # `compile` may use NVCC or add an option and CuPy's function may not, so their look-ups differ.
    request = CompileRequest(CODE, options=("-DN=1",), arch="sm_80", name="twice.cu")
    request = request.replace(allow_fixups=False, backend="nvrtc")
    assert pipeline.build(request, Settings.from_environ()).build.hit


def test_name_expressions_are_mapped_and_found_without_planning_or_memory(installed, monkeypatch):
    names = ["f<float>", "f<int>"]
    module = installed(TEMPLATE, name_expressions=names)
    again = without_planning(monkeypatch, lambda: installed(TEMPLATE, name_expressions=names))

    assert module.mapping == {"f<float>": "_Z1fIfEvPT_", "f<int>": "_Z1fIiEvPT_"}
    assert (again.code, again.mapping) == (module.code, module.mapping)
    memory = environment.current().memory
    assert memory is None or not memory._found


def test_an_error_has_cupys_type(installed):
    with pytest.raises(compiler.CompileException, match="undefined") as caught:
        installed("__global__ void k() { nothing(); }")

    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


@needs_host_compiler
def test_a_source_for_nvcc_is_rejected_for_cupy(installed):
    source = "#include <vector>\nstd::vector<int> v;\n__global__ void k() {}"
    assert rtcompile.compile(source, arch="sm_80").build.backend == "nvcc"
    with pytest.raises(compiler.CompileException):
        installed(source)


def _no_toolkit(*_: object) -> None:
    raise rtcompile.ToolkitNotFound("there is none")


def test_cupy_compiles_lto_ir_and_without_a_toolkit_all_unless_that_is_forbidden(
    monkeypatch, installed
):
    given = []
    with monkeypatch.context() as patch:
        original = lambda source, options, **more: given.append((options, more))  # noqa: E731
        patch.setattr(cupy_hook, "_original", original)
        installed(CODE, ("-DN=1",), to_ltoir=True)
        assert given.pop()[1]["to_ltoir"] is True
        patch.setattr(planned, "compile", _no_toolkit)
        patch.setattr("rtcompile.frontends.cupy_hook._warned_of_missing_toolkit", True)
        installed(CODE, ("-DN=1",), jitify=True)
        assert given.pop()[0] == ("-DN=1",)
        patch.setenv("RTCOMPILE_JIT", "0")
        with pytest.raises(rtcompile.ToolkitNotFound):
            installed(CODE)
    assert given == []


def test_installing_twice_or_in_many_threads_has_no_further_effect():
    outer = rtcompile.install()
    with rtcompile.install() as inner:
        assert inner.active
    assert compiler._compile_module_with_cache is not ORIGINAL
    rtcompile.uninstall()
    rtcompile.uninstall()
    assert outer.active
    assert compiler._compile_module_with_cache is ORIGINAL
    at_once(*[rtcompile.install] * 16)
    rtcompile.uninstall()
    assert compiler._compile_module_with_cache is ORIGINAL


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda patch: patch.setattr(compiler, "_compile_module_with_cache", lambda s: s),
            id="no options",
        ),
        pytest.param(
            lambda patch: patch.setattr(
                compiler, "_compile_module_with_cache", lambda source, target, options=(): source
            ),
            id="one more to give",
        ),
        *(
            pytest.param(lambda patch, name=name: take_away(patch, compiler, name), id=name)
            for name in cupy_hook.NEEDED
        ),
    ],
)
def test_an_unknown_cupy_is_not_changed(monkeypatch, change):
    change(monkeypatch)
    before = getattr(compiler, "_compile_module_with_cache", None)

    with pytest.warns(rtcompile.RtcompileWarning, match=r"14.0 to 14.2: install one") as warned:
        installation = rtcompile.install()
    assert "CuPy compiles its kernels itself" in str(warned[0].message)

    assert not installation.active
    assert getattr(compiler, "_compile_module_with_cache", None) is before


def of_14_0(source, options=(), arch=None, cache_dir=None, backend="nvrtc", *, log_stream=None):
    return "by CuPy", cache_dir


@pytest.mark.parametrize("version", ["13.6.0", "14.0.1", "15.0.0a1", "99"])
def test_a_cupy_is_recognised_by_its_parameters_and_not_its_version(monkeypatch, version):
    monkeypatch.setattr("cupy._version.__version__", version)
    monkeypatch.setattr(compiler, "_compile_module_with_cache", of_14_0)
    without_a_device(monkeypatch)
    with rtcompile.install() as installation:
        installed = compiler._compile_module_with_cache
        assert installation.active
        assert installed(CODE, ("-DN=1",), "80", None).code
        assert installed(CODE, ("-DN=1",), arch="80", backend="nvrtc").code
        # CuPy handles unknown arguments itself, and gets only its own parameters.
        assert installed(CODE, ("-DN=1",), "80", "/a/cache") == ("by CuPy", "/a/cache")
        assert installed(CODE, (), "80", backend="another") == ("by CuPy", None)
    assert compiler._compile_module_with_cache is of_14_0


class Without:
    """An object without one attribute, possibly a nested one: ``"Module.load"``."""

    def __init__(self, whole, name):
        self.whole, (self.name, _, self.rest) = whole, name.partition(".")

    def __getattr__(self, name):
        found = getattr(self.whole, name)
        if name == self.name:
            if not self.rest:
                raise AttributeError(name)
            return Without(found, self.rest)
        return found


def take_away(patch, module, name):
    first, _, rest = name.partition(".")
    if rest:
        patch.setattr(module, first, Without(getattr(module, first), rest))
    else:
        patch.delattr(module, first)


def test_every_private_name_of_cupy_that_is_used_is_in_the_table():
    from cupy import _environment
    from cupy._core import _accelerator

    cupys = (cupy, core, compiler, function.Module, _accelerator, _environment)
    known = {part for name in cupy_hook.NEEDED for part in name.split(".") if part.startswith("_")}
    used = set()
    for path in Path(rtcompile.__file__).parent.rglob("*.py"):
        text = path.read_text()
        if "cupy" in text:
            used |= {*re.findall(r"(?<!self)(?<!cls)[.](_[a-z]\w+)", text)}
    private = {name for name in used if any(hasattr(each, name) for each in cupys)}
    assert {"_get_arch", "_set_mapping"} <= private <= {*known, "_version"}


# --- record and warm -----------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path: Path, installed, monkeypatch: pytest.MonkeyPatch):
    """Return a function that records the compiles of another function, and empties the cache afterwards."""

    def record_of(act) -> recording.Record:
        programs.recorded(tmp_path / "kernels.json", act)
        monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "another cache"))
        return recording.read(str(tmp_path / "kernels.json"))

    return record_of


def test_a_header_that_was_tampered_with_is_not_built(recorded, header, installed):
    source = '#include "scale.cuh"\n__global__ void k(float* x) { *x = SCALE; }'
    record = recorded(lambda: installed(source, (f"-I{header.parent}",)))
    header.unlink()
    record.headers = dict.fromkeys(record.headers, "")

    with pytest.raises(rtcompile.InvalidRequest, match="lacks the contents of a header"):
        recording.warm(record, progress=False)


def without_planning(monkeypatch: pytest.MonkeyPatch, request_it):
    """Request as a new process that may not plan."""
    environment.forget()
    monkeypatch.setattr(planned, "compile", lambda *_, **__: pytest.fail("it was planned"))
    return request_it()


# A source as CuPy passes it to the compiler, in two passes.
OWN = "".join(f"#include <{header}>\n" for header in core._cupy_header_list)
CUB = OWN + cupy_hook.CUB_INCLUDES + "\n" + CODE
OF_CUB = (
    *core.assemble_cupy_compiler_options(("--std=c++17", "-DCUB_DISABLE_BF16_SUPPORT")),
    "-DFIRST_PASS=1",
)


@pytest.mark.parametrize(
    ("source", "options"),
    [
        pytest.param(CODE, ("-DN=1",), id="options"),
        pytest.param('#include "scale.cuh"\n' + CODE, ("-I{include}",), id="header"),
        pytest.param(CUB, OF_CUB, id="a pass of CUB", marks=pytest.mark.slow),
    ],
)
def test_the_first_run_after_warm_needs_no_planning(
    recorded, installed, header, monkeypatch, source, options
):
    options = tuple(option.format(include=header.parent) for option in options)
    time.sleep(0.02)  # the header is out of the file clock's tick
    built = []
    record = recorded(lambda: built.append(installed(source, options)))

    recording.warm(record, progress=False)

    again = without_planning(monkeypatch, lambda: installed(source, options))
    assert again.code == built[0].code


def test_a_record_warmed_for_another_device_is_found_there(recorded, installed, monkeypatch):
    record = recorded(lambda: installed(CODE))

    [hopper] = recording.warm(record, archs=["sm_90a"], progress=False)

    found = without_planning(monkeypatch, lambda: installed(CODE, arch="90"))
    assert (found.code, str(hopper.arch)) == (hopper.code, "sm_90")
    with pytest.raises(pytest.fail.Exception):
        installed(CODE, arch="80")


@pytest.mark.parametrize(
    "requested",
    [
        [],
        {},
        {"source": "", "options": [1], "headers": [], "link": []},
        {"options": []},
        3,
    ],
    ids=str,
)  # fmt: skip
def test_an_invalid_request_in_a_record_is_damage(recorded, installed, tmp_path, requested):
    recorded(lambda: installed(CODE))
    document = json.loads((tmp_path / "kernels.json").read_text())
    document["builds"][0]["request"] = requested
    (tmp_path / "damaged.json").write_text(json.dumps(document))

    with pytest.raises(rtcompile.InvalidRequest, match="damaged"):
        recording.read(str(tmp_path / "damaged.json"))


def test_the_longest_builds_of_a_record_begin_first_and_its_order_is_kept(
    recorded, installed, monkeypatch
):
    record = recorded(
        lambda: [installed(CODE + f"__device__ int n{n};", (f"-DN={n}",)) for n in range(3)]
    )
    assert all(build.milliseconds > 0 for build in record.builds)
    times = zip(record.builds, (20, 3000, 100), strict=True)
    record.builds = [build._replace(milliseconds=milliseconds) for build, milliseconds in times]
    begun = []
    compile_many = many.compile_many

    def noted(requests, **more):
        begun.extend(request.options[0] for request in requests)
        return compile_many(requests, **more)

    monkeypatch.setattr(rtcompile, "compile_many", noted)
    codes = recording.warm(record, progress=False)

    assert begun == ["-DN=1", "-DN=2", "-DN=0"]
    assert [f"n{i}".encode() in code.code for i, code in enumerate(codes)] == [True] * 3


def test_a_build_of_a_record_that_fails_is_named_by_its_position(recorded, installed):
    record = recorded(lambda: (installed(CODE), installed(TEMPLATE, name_expressions=["f<int>"])))
    wrong = record.builds[0].request.replace(source="nothing")
    record.builds[0] = record.builds[0]._replace(request=wrong, milliseconds=0)

    with pytest.raises(rtcompile.BatchError, match=r"\[0\] twice\.cu") as caught:
        recording.warm(record, progress=False)

    assert [code is None for code in caught.value.results] == [True, False]


def test_other_architectures_apply_to_builds_for_the_device(recorded, installed):
    of_75 = {"arch": "sm_75", "name_expressions": ["f<int>"]}
    record = recorded(lambda: (installed(CODE), rtcompile.compile(TEMPLATE, **of_75)))

    with recording.requests(record, ["sm_90a", "sm_100a"]) as requests:
        assert [str(request.arch) for request, _ in requests] == ["sm_90", "sm_100", "sm_75"]


def test_the_time_saved_by_the_cache_is_reported(tmp_path, installed):
    installed(CODE)
    log = tmp_path / "log"
    log.touch()
    recorder = Recorder(str(log))
    recorder.start()
    installed(CODE)
    listeners.remove(recorder.note)

    tally = Tally.read(str(log))
    assert tally.builds[0]["saved"] > 0
    assert tally.line().startswith("1 kernel: 1 from the cache, 0 built")

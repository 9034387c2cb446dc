"""An architecture among a project's options is ignored, as with CuPy, if the device cannot run it."""

import warnings

import pytest

import rtcompile
from rtcompile.build import plan as plans
from rtcompile.errors import RtcompileWarning, UnsupportedArch
from rtcompile.lookup import find as lookup
from rtcompile.request.values import Arch
from tests.tables import from_table

lazy_code = pytest.importorskip("rtcompile.frontends.lazy_code")

pytestmark = pytest.mark.needs_compiler
SOURCE = 'extern "C" __global__ void k(float* x) { *x = 1; }'


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "compute_capability", lambda: (9, 0))
    monkeypatch.setattr(lazy_code, "current_device", lambda: 0)
    monkeypatch.setattr(plans, "_warned_ignored_arch", set())


@from_table
def test_an_architecture_that_the_device_cannot_run_is_ignored_with_one_warning(options):
    with pytest.warns(
        RtcompileWarning, match=r"kernel\.cu is compiled for sm_90a instead"
    ) as printed:
        codes = [rtcompile.RawModule(code=SOURCE, options=options).object_code for _ in range(2)]
    assert [code.arch for code in codes] == [Arch(9, 0, "a")] * 2
    assert len(printed) == 1


def test_a_batch_of_modules_ignores_such_options_too():
    module = rtcompile.RawModule(code=SOURCE, options=("-arch=sm_70",))
    with pytest.warns(
        RtcompileWarning, match="which a device of compute capability 9.0 cannot run"
    ):
        (code,) = rtcompile.compile_many([module], progress=False)
    assert code.arch == Arch(9, 0, "a")


def test_an_architecture_that_the_device_runs_is_used():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = rtcompile.RawModule(code=SOURCE, options=("-arch=compute_80",))
        assert (module.object_code.arch, module.object_code.kind) == (Arch(8, 0), "ptx")


def test_arch_and_the_options_of_compile_are_never_ignored():
    assert rtcompile.RawModule(code=SOURCE, arch="sm_80").object_code.arch == Arch(8, 0)
    with pytest.raises(UnsupportedArch):
        _ = rtcompile.RawModule(code=SOURCE, arch="sm_30").object_code
    with pytest.raises(UnsupportedArch, match="cannot run"):
        rtcompile.compile(SOURCE, options=("-arch=sm_70",))

"""The provoked messages on other NVRTCs: each is explained by the same row, or the compiler words it otherwise."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rtcompile.cubin import check_code
from rtcompile.request.values import Arch
from rtcompile.toolkit.model import Toolchain
from rtcompile.toolkit.search import find
from tests.provoked import BY_NVRTC, SHARED_80000, Provoked
from tests.provoked.bench import Bench, first_explained


def _wheels(version: str) -> tuple[str, ...]:
    """Return the requirements of one CUDA's compiler and headers."""
    suffix, exact = "-cu12" if version.startswith("12") else "", f"=={version}.*"
    parts = ("nvrtc", "runtime", "cccl", "nvcc" if suffix else "crt")
    return *(f"nvidia-cuda-{part}{suffix}{exact}" for part in parts), f"nvidia-curand{suffix}"


_VERSIONS = [
    *(
        pytest.param(_wheels(v), id=v, marks=pytest.mark.slow)
        for v in ("12.4", "12.6", "12.8", "13.0", "13.1", "13.2")
    ),
    pytest.param(None, id="the folder of CUDA 13"),
]
_CASES = [
    case
    for case in BY_NVRTC
    if not case.values[1].plain
    and case.values[1].toolkit == "12"
    and "cutlass" not in case.values[1].headers  # it goes with few CUDAs without the shims
]


@pytest.fixture(scope="session", params=_VERSIONS)
def other(request: pytest.FixtureRequest, wheels: Callable[[Sequence[str]], Path]) -> Toolchain:
    """Return the compiler and the headers of another CUDA."""
    folder = wheels(request.param) if request.param else request.getfixturevalue("cuda13_prefix")
    return find({}, [str(folder)], usual_roots=())


@pytest.mark.needs_compiler
def test_static_shared_memory_that_ptxas_allows_is_not_warned_of(other, wheels, tmp_path):
    """NVRTC 13.5 compiles 80000 bytes for sm_90; an H200 with driver 580 has run such a cubin."""
    version = tuple(map(int, other.versions["nvrtc"].split(".")[:2]))
    how = Provoked("", (), SHARED_80000, arch="sm_90", plain=True)
    log, _ = Bench(lambda _: other, wheels, tmp_path).failure(how, "nvrtc")
    code = tmp_path / "kernel.cubin"
    if version >= (13, 5):
        assert check_code(code.read_bytes(), Arch(9, 0)) == (), log
    elif version > (12, 6):  # before, NVRTC let it pass in silence
        assert "uses too much shared data" in log


@pytest.mark.needs_compiler
@pytest.mark.some(25)
@pytest.mark.parametrize(("row", "how"), _CASES)
def test_every_nvrtc_gives_the_same_hint(row, how, other, toolchain, wheels, tmp_path):
    bench = Bench(lambda name: other if name == "12" else toolchain(name), wheels, tmp_path)
    log, context = bench.failure(how, "nvrtc")
    if how.message not in log:
        pytest.skip("this compiler does not say so")
    explained = first_explained(log, context)
    assert explained is not None, log
    assert explained[0].id == row, log

"""Tests of the architecture chosen for each device and NVRTC, and of the tables against real compilers."""

import itertools
from collections.abc import Iterator

import pytest

from rtcompile.errors import UnsupportedArch
from rtcompile.request import arch as archs
from rtcompile.request.arch import NEWEST_MEASURED, check, choose, learn, runs_on, supported
from rtcompile.request.values import Arch
from tests.tables import from_table

VERSIONS = [(12, 0), (12, 8), (12, 9), (13, 0), (13, 5)]

# Release: the architectures that it began to compile for, and those that it stopped to compile for.
CHANGES = {
    (12, 0): ("50 52 53 60 61 62 70 72 75 80 86 87 89 90 90a", ""),
    (12, 1): ("", ""),
    (12, 7): ("", ""),
    (12, 8): ("100 100a 101 101a 120 120a", ""),
    (12, 9): ("100f 101f 103 103a 103f 120f 121 121a 121f", ""),
    (13, 0): ("88 110 110a 110f", "50 52 53 60 61 62 70 72 101 101a 101f"),
    (13, 3): ("", ""),
    (13, 4): ("107 107a 107f", ""),
    (13, 5): ("", ""),
}


@pytest.mark.parametrize("text", ["sm_90a", "compute_90a", "lto_90a", "90a", "9.0a", " SM_90A "])
def test_every_spelling_of_an_architecture_is_read(text):
    assert Arch.parse(text) == Arch(9, 0, "a")


@pytest.mark.parametrize("text", ["", "sm_", "sm_9", "sm_90b", "native", "sm_1234", "90,80"])
def test_anything_else_is_rejected_by_name(text):
    with pytest.raises(ValueError, match="not an architecture"):
        Arch.parse(text)


@from_table
def test_a_device_gets_the_best_architecture_that_its_compiler_knows(capability, expected):
    for nvrtc, name in zip(VERSIONS, expected, strict=True):
        if name is None:
            with pytest.raises(UnsupportedArch, match=r"NVRTC 12\.[08] to 12\.9 does"):
                choose(capability, nvrtc)
            continue
        choice = choose(capability, nvrtc)
        target = "cubin" if name.startswith("sm_") else "ptx"
        assert (choice.arch, choice.target) == (Arch.parse(name), target), nvrtc
        assert runs_on(choice.arch, choice.target, capability)
        check(choice.arch, choice.target, nvrtc)


def test_each_release_adds_and_drops_architectures():
    before: list[str] = []
    for release, (added, dropped) in CHANGES.items():
        listed = [str(arch)[3:] for arch in supported(release)]
        assert {*listed} == ({*before} | {*added.split()}) - {*dropped.split()}, release
        assert listed == sorted(listed, key=lambda name: (int(name.rstrip("af")), name))
        before = listed


def test_ptx_on_request_keeps_the_architecture():
    choice = choose((9, 0), (12, 9), virtual=True)
    assert (choice.arch, choice.target) == (Arch(9, 0, "a"), "ptx")


@from_table
def test_what_no_compiler_here_could_make_is_an_error_that_names_the_versions(arch, nvrtc, message):
    with pytest.raises(UnsupportedArch, match=message):
        choose(arch, nvrtc) if isinstance(arch, tuple) else check(Arch.parse(arch), "cubin", nvrtc)


def test_a_release_newer_than_the_table_is_not_checked():
    check(Arch(14, 0), "cubin", (13, 6))
    with pytest.raises(UnsupportedArch, match=r"NVRTC 13\.5 .* for compute_140,"):
        check(Arch(14, 0), "ptx", (13, 5))
    assert choose((8, 0), (14, 0)).arch == Arch(8, 0)


@from_table
def test_which_code_runs_on_which_device(arch, target, capability, expected):
    assert runs_on(Arch.parse(arch), target, capability) is expected


@pytest.mark.needs_compiler
def test_the_table_is_what_this_nvrtc_compiles_for(nvrtc):
    known = supported(nvrtc.version)
    assert [arch.number for arch in known if not arch.suffix] == nvrtc.architectures()
    for number, suffix in itertools.product((90, 100, 103, 110, 120, 121), "af"):
        compiles = nvrtc.compile("", f"-arch=compute_{number}{suffix}", kind="PTX").code is not None
        assert compiles == (Arch.parse(f"{number}{suffix}") in known), f"{number}{suffix}"


@pytest.fixture
def newer() -> Iterator[tuple[int, int]]:
    """A release newer than the table; it reports the architectures that it compiles for."""
    version = (NEWEST_MEASURED[0], NEWEST_MEASURED[1] + 1)
    learn(version, (75, 90, 100, 130))
    yield version
    archs.learned.clear()
    supported.cache_clear()
    choose.cache_clear()


def test_architectures_reported_by_a_newer_release_are_used(newer):
    listed = " ".join(str(arch)[3:] for arch in supported(newer))
    assert listed == "75 90 90a 100 100a 100f 130 130a 130f"
    assert choose((13, 0), newer).arch == Arch(13, 0, "a")
    check(Arch(13, 0, "a"), "cubin", newer)
    with pytest.raises(UnsupportedArch, match="does not compile for sm_80"):
        check(Arch(8, 0), "cubin", newer)


def test_reported_architectures_get_the_suffixes_of_measured_ones():
    for version in ((12, 9), (13, 0), (13, 4)):
        numbers = [arch.number for arch in supported(version) if not arch.suffix]
        own = [arch for number in numbers for arch in archs.variants(number)]
        assert sorted(own) == list(supported(version))

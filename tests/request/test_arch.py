"""Tests of the architecture chosen for each device and NVRTC, and of the tables against real compilers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from rtcompile.errors import UnsupportedArch
from rtcompile.request import arch as archs
from rtcompile.request.arch import NEWEST_MEASURED, check, choose, learn, runs_on, supported
from rtcompile.request.values import Arch

VERSIONS = [(12, 0), (12, 8), (12, 9), (13, 0), (13, 5)]

# Device: what NVRTC 12.0, 12.8, 12.9, 13.0, 13.5 compile for it. None: an error.
CHOICES = {
    (5, 0): ("sm_50", "sm_50", "sm_50", None, None),
    (5, 2): ("sm_52", "sm_52", "sm_52", None, None),
    (5, 3): ("sm_53", "sm_53", "sm_53", None, None),
    (6, 0): ("sm_60", "sm_60", "sm_60", None, None),
    (6, 1): ("sm_61", "sm_61", "sm_61", None, None),
    (6, 2): ("sm_62", "sm_62", "sm_62", None, None),
    (7, 0): ("sm_70", "sm_70", "sm_70", None, None),
    (7, 2): ("sm_72", "sm_72", "sm_72", None, None),
    (7, 5): ("sm_75", "sm_75", "sm_75", "sm_75", "sm_75"),
    (8, 0): ("sm_80", "sm_80", "sm_80", "sm_80", "sm_80"),
    (8, 6): ("sm_86", "sm_86", "sm_86", "sm_86", "sm_86"),
    (8, 7): ("sm_87", "sm_87", "sm_87", "sm_87", "sm_87"),
    (8, 8): ("compute_87", "compute_87", "compute_87", "sm_88", "sm_88"),
    (8, 9): ("sm_89", "sm_89", "sm_89", "sm_89", "sm_89"),
    (9, 0): ("sm_90a", "sm_90a", "sm_90a", "sm_90a", "sm_90a"),
    (10, 0): ("compute_90", "sm_100a", "sm_100a", "sm_100a", "sm_100a"),
    (10, 1): ("compute_90", "sm_101a", "sm_101a", None, None),
    (10, 3): ("compute_90", "sm_100", "sm_103a", "sm_103a", "sm_103a"),
    (10, 7): ("compute_90", "sm_100", "sm_103f", "sm_103f", "sm_107a"),
    (11, 0): ("compute_90", "compute_101", "compute_103", "sm_110a", "sm_110a"),
    (12, 0): ("compute_90", "sm_120a", "sm_120a", "sm_120a", "sm_120a"),
    (11, 2): ("compute_90", "compute_101", "compute_103", "compute_110", "compute_110"),
    (12, 1): ("compute_90", "sm_120", "sm_121a", "sm_121a", "sm_121a"),
    (14, 0): ("compute_90", "compute_120", "compute_121", "compute_121", "compute_121"),
}  # fmt: skip


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
FIRST_RELEASES = {
    (7, 5): (12, 0), (8, 0): (12, 0), (8, 6): (12, 0), (8, 7): (12, 0), (8, 8): (13, 0), (8, 9): (12, 0),
    (9, 0): (12, 0), (10, 0): (12, 8), (10, 3): (12, 9), (10, 7): (13, 4), (11, 0): (12, 8),
    (12, 0): (12, 8), (12, 1): (12, 9),
}  # fmt: skip


@pytest.mark.parametrize("text", ["sm_90a", "compute_90a", "lto_90a", "90a", "9.0a", " SM_90A "])
def test_every_spelling_of_an_architecture_is_read(text):
    assert Arch.parse(text) == Arch(9, 0, "a")


@pytest.mark.parametrize("text", ["", "sm_", "sm_9", "sm_90b", "native", "sm_1234", "90,80"])
def test_anything_else_is_rejected_by_name(text):
    with pytest.raises(ValueError, match="not an architecture"):
        Arch.parse(text)


@pytest.mark.parametrize("capability", CHOICES)
@pytest.mark.parametrize("column", range(len(VERSIONS)))
def test_a_device_gets_the_best_architecture_that_its_compiler_knows(capability, column):
    nvrtc, expected = VERSIONS[column], CHOICES[capability][column]
    if expected is None:
        with pytest.raises(UnsupportedArch, match=r"NVRTC 12\.[08] to 12\.9 does"):
            choose(capability, nvrtc)
        return
    choice = choose(capability, nvrtc)
    target = "cubin" if expected.startswith("sm_") else "ptx"
    assert (choice.arch, choice.target) == (Arch.parse(expected), target)
    assert runs_on(choice.arch, choice.target, capability)
    check(choice.arch, choice.target, nvrtc)


def test_each_release_adds_and_drops_architectures():
    before: list[str] = []
    for release, (added, dropped) in CHANGES.items():
        listed = [str(arch)[3:] for arch in supported(release)]
        assert {*listed} == ({*before} | {*added.split()}) - {*dropped.split()}, release
        assert listed == sorted(listed, key=lambda name: (int(name.rstrip("af")), name))
        before = listed


def test_the_first_release_for_each_device_is_known_under_its_old_name_too():
    first = {capability: archs.first_release(capability) for capability in archs.generations()}
    assert first == FIRST_RELEASES
    assert archs.first_release((14, 0)) == NEWEST_MEASURED


def test_ptx_on_request_keeps_the_architecture():
    choice = choose((9, 0), (12, 9), virtual=True)
    assert (choice.arch, choice.target) == (Arch(9, 0, "a"), "ptx")


@pytest.mark.parametrize(
    ("arch", "nvrtc", "message"),
    [
        pytest.param((3, 5), (13, 0), r"begin at 5\.0", id="a device older than every NVRTC"),
        pytest.param((8, 0), (11, 8), r"11\.8 is too old", id="an NVRTC before 12"),
        pytest.param("sm_110", (12, 9), r"NVRTC 13\.0 or newer does.*sm_101 there", id="too-new"),
        pytest.param("sm_101f", (13, 0), r"NVRTC 12\.9 does\..*sm_110f there", id="renamed"),
        pytest.param("sm_70", (13, 0), r"NVRTC 12\.0 to 12\.9 does", id="dropped"),
        pytest.param("sm_100f", (12, 8), r"NVRTC 12\.9 or newer does", id="suffix-too-new"),
        pytest.param("sm_80a", (12, 9), r"any other.*It knows sm_80, sm_86, sm_87, sm_89$", id="a"),
        pytest.param(
            "sm_40", (12, 9), r"neither does any other.* sm_50, sm_52.* sm_121f$", id="40"
        ),
        pytest.param("sm_101f", (12, 8), r"NVRTC 12\.9 does\. \(CUDA 13 renamed", id="one-release"),
    ],
)
def test_what_no_compiler_here_could_make_is_an_error_that_names_the_versions(arch, nvrtc, message):
    with pytest.raises(UnsupportedArch, match=message):
        choose(arch, nvrtc) if isinstance(arch, tuple) else check(Arch.parse(arch), "cubin", nvrtc)


def test_a_release_newer_than_the_table_is_not_checked():
    check(Arch(14, 0), "cubin", (13, 6))
    with pytest.raises(UnsupportedArch, match=r"NVRTC 13\.5 .* for compute_140,"):
        check(Arch(14, 0), "ptx", (13, 5))
    assert choose((8, 0), (14, 0)).arch == Arch(8, 0)


@pytest.mark.parametrize(
    ("arch", "target", "capability", "expected"),
    [
        pytest.param("sm_80", "cubin", (8, 6), True, id="newer-minor"),
        pytest.param("sm_86", "cubin", (8, 0), False, id="older-minor"),
        pytest.param("sm_80", "cubin", (9, 0), False, id="other-major"),
        pytest.param("sm_80", "ptx", (12, 0), True, id="ptx-is-forward"),
        pytest.param("sm_90", "ptx", (8, 0), False, id="ptx-is-not-backward"),
        pytest.param("sm_90a", "cubin", (9, 0), True, id="a-same-device"),
        pytest.param("sm_100a", "cubin", (10, 3), False, id="a-other-device"),
        pytest.param("sm_90a", "ptx", (10, 0), False, id="a-ptx-other-device"),
        pytest.param("sm_100f", "cubin", (10, 3), True, id="f-in-family"),
        pytest.param("sm_100f", "ptx", (12, 0), False, id="f-outside"),
        pytest.param("sm_100f", "ptx", (10, 1), False, id="10.1-is-not-in-10.0s-family"),
        pytest.param("sm_101", "cubin", (10, 3), False, id="10.1-is-not-of-10.0s-generation"),
        pytest.param("sm_101f", "ptx", (11, 0), True, id="10.1-became-11.0"),
        pytest.param("sm_87", "cubin", (8, 9), True, id="integrated-left-to-the-driver"),
    ],
)
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

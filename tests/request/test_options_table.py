"""Tests of the table of options: which compiler and release gets each, and the limits of what is read."""

import pytest

from rtcompile.errors import InvalidRequest
from rtcompile.request import option_table
from rtcompile.request.option_table import SPECS, Spec, dropped
from rtcompile.request.options import Options, distrusted, name_and_value, parse, unquoted
from rtcompile.request.values import Arch
from tests.tables import from_table

SM_80 = Arch(8, 0)
# All other options of NVRTC are accepted since 12.0. An older NVRTC gets another option for -Werror.
SINCE = {
    "split-compile": (12, 6), "device-stack-protector": (12, 6), "Ofast-compile": (12, 6),
    "device-float128": (12, 6), "frandom-seed": (12, 9), "no-cache": (12, 9),
}  # fmt: skip
ONLY_NVRTC = [
    "device-as-default-execution-space", "device-int128", "device-float128", "minimal", "no-source-include",
    "modify-stack-limit", "builtin-move-forward", "builtin-initializer-list", "no-cache",
]  # fmt: skip
ONLY_NVCC = [
    "expt-relaxed-constexpr", "extended-lambda", "compiler-options", "compiler-bindir",
    "allow-unsupported-compiler", "debug", "profile", "no-exceptions", "m64", "default-stream",
    "forward-unknown-to-host-compiler", "Wno-deprecated-gpu-targets", "Wno-deprecated-declarations", "threads",
    "optimize",
]  # fmt: skip
NEITHER = [
    "time", "fdevice-time-trace", "pch", "create-pch", "use-pch", "pch-dir", "pch-messages", "pch-verbose",
    "instantiate-templates-in-pch", "cubin", "ptx", "fatbin", "ltoir", "compile", "linker-options",
    "archive-options", "cudart", "cudadevrt", "lcudadevrt", "library", "library-path",
]  # fmt: skip
FLAGS = [spec for spec in SPECS if spec.takes not in ("path", "macro")]
VALUES = {"boolean": "true", "number": "8", "value": "c++17", "values": "reorder"}


def flag(spec: Spec) -> Options:
    return Options(flags=((spec.name, VALUES.get(spec.takes, "")),))


def nvrtc_gets(spec: Spec, release: tuple[int, int]) -> bool:
    line = option_table.for_nvrtc(flag(spec), SM_80, "ltoir", release, ())
    return any(word.lstrip("-").partition("=")[0] == spec.name for word in line)


@pytest.mark.parametrize(
    "spec", [s for s in FLAGS if s.name not in (*ONLY_NVCC, *NEITHER)], ids=lambda spec: spec.name
)
def test_nvrtc_gets_an_option_from_its_first_release_on(spec):
    first = (13, 3) if spec.name == "Werror" else SINCE.get(spec.name, (12, 0))
    assert nvrtc_gets(spec, first)
    if spec.name == "Werror":
        assert not nvrtc_gets(spec, (13, 2))
    elif first > (12, 0):
        needed = rf"--{spec.name} needs NVRTC 12\.{first[1]} or newer; this is 12\.{first[1] - 1}"
        with pytest.raises(InvalidRequest, match=needed):
            nvrtc_gets(spec, (12, first[1] - 1))


@pytest.mark.parametrize("name", [*ONLY_NVCC, *NEITHER])
def test_nvrtc_never_gets_options_of_nvcc(name):
    spec = option_table.BY_NAME[name]
    assert not nvrtc_gets(spec, (13, 5))
    assert f"--{name} is not passed on: {spec.why}" in dropped(flag(spec).flags, "nvrtc")


@pytest.mark.parametrize("spec", FLAGS, ids=lambda spec: spec.name)
def test_nvcc_gets_all_options_but_those_of_nvrtc(spec):
    line = option_table.for_nvcc(flag(spec), SM_80, "ltoir", (13, 0), ())
    given = any(word.lstrip("-").partition("=")[0] == spec.name for word in line)
    # `code=lto_80` means the same as -dlto.
    assert given == (spec.name not in (*ONLY_NVRTC, *NEITHER, "dlink-time-opt"))
    notes = dropped(flag(spec).flags, "nvcc")
    assert bool(notes) == (spec.name in (*ONLY_NVRTC[2:], *NEITHER))


@from_table
def test_a_value_that_may_be_left_out_is_implied(options, expected):
    assert parse(options).get("Werror") == expected
    assert parse(["-pch-messages", "-w"]).get("pch-messages") == "true"


def test_quotes_around_a_whole_macro_are_removed_and_others_are_its_own():
    options = ['-D"X=a b"', "-D'Y=\"c\"'", '-DZ="d"', "-UW"]
    assert parse(options).macros == (("D", "X=a b"), ("D", 'Y="c"'), ("D", 'Z="d"'), ("U", "W"))


def test_the_numbers_of_words_and_directories_have_limits():
    assert len(parse(["-x"] * 20_000).unknown) == len(parse(["-x -y"] * 10_000).unknown) == 20_000
    (macro,) = parse(["-DX=" + "a " * 40_000]).macros  # many words that are one
    assert macro == ("D", "X=" + "a " * 39_999 + "a")
    for many in (["-x"] * 20_001, ["-x " * 20_001], ["-DX=" + "a " * 40_001]):
        with pytest.raises(InvalidRequest, match="more than 20,000 words"):
            parse(many)
    paths = [*(f"-I/{number}" for number in range(999)), "-include=/a.h"]
    assert len(parse(paths).include_dirs) == 999
    for kind in ("-I", "-idirafter=", "-include="):
        with pytest.raises(InvalidRequest, match="options name 1,001 directories"):
            parse([*paths, f"{kind}/more"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((f"{q}{inner}{q}", inner) for q in "\"'" for inner in ("", "a b", "'\"'")),
        *((text, text) for text in ("", "a", "'", '"a', "'a\"", "\"a'", "a'", "aba")),
        (" 'a ' ", "a "),
    ],
)
def test_only_equal_quotes_around_a_text_are_removed(text, expected):
    assert unquoted(text) == expected


@from_table
def test_a_word_is_split_into_a_name_and_a_value(word, expected):
    assert name_and_value(word) == expected


@from_table
def test_an_untrusted_option_is_reported_with_what_it_does(option, reason):
    (found,) = distrusted(["-w", "-Xcudafe=--diag_suppress=1,--diag_error=2,", option])
    assert reason in found
    harmless = "-DX -I/x -G --source-in-ptx --compress-mode=size -Xptxas=-v +x x"
    assert distrusted(harmless.split(" ")) == []


def test_nvjitlink_skips_tuning_that_it_does_not_know_yet():
    options = parse(["-split-compile=2", "-jtd=101", "-fmad=false", "-G"])
    since = ("-split-compile=2", "-jump-table-density=101")
    for release, tuning in (((12, 3), ()), ((12, 4), since[::-1])):
        line = option_table.for_nvjitlink(options, SM_80, release, lto=False)
        assert {*line} == {"-arch=sm_80", "-fma=0", "-g", *tuning}


@from_table
def test_each_kind_of_code_has_its_architecture(target, nvrtc, nvcc):
    line = option_table.for_nvrtc(Options(), SM_80, target, (12, 9), ())
    assert line[0] == f"--gpu-architecture={nvrtc}"
    line = option_table.for_nvcc(Options(), SM_80, target, (12, 9), ())
    assert line[0] == f"--generate-code=arch=compute_80,code={nvcc}"

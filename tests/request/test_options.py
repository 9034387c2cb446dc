"""Tests of every spelling of every option, and of the flags that real compilers accept."""

from collections.abc import Sequence

import pytest

from rtcompile.errors import InvalidRequest, UnsupportedArch
from rtcompile.request import option_table
from rtcompile.request.option_table import dropped
from rtcompile.request.options import ArchOption, parse, with_directories
from rtcompile.request.values import Arch
from tests.tables import from_table

SM_80 = Arch(8, 0)
NVRTC = (12, 9)
NO_WARNINGS = "--disable-warnings"


def nvrtc_line(
    *options: str, nvrtc: tuple[int, int] = NVRTC, target: str = "cubin"
) -> Sequence[str]:
    """Return the flags for NVRTC, without the architecture."""
    parsed = parse(options)
    return option_table.for_nvrtc(parsed, SM_80, target, nvrtc, parsed.include_dirs)[1:]


@from_table
def test_all_spellings_are_one_option(spellings, expected):
    for spelling in spellings:
        assert nvrtc_line(*spelling) == tuple(expected), spelling


@from_table
def test_one_element_may_contain_several_words(elements, expected):
    assert nvrtc_line(*elements) == tuple(expected)


@from_table
def test_an_option_that_reads_a_file_unnoticed_is_rejected(options):
    with pytest.raises(InvalidRequest, match="go unnoticed"):
        parse(options)


@pytest.mark.parametrize("option", ["-Wparentheses", "-march=native", "-openmp", "-Bsymbolic"])
def test_other_options_of_the_host_compiler_are_passed_on(option):
    assert parse(["-Xcompiler", option]).get("compiler-options") == option


def test_order_is_kept_where_it_means_something():
    assert nvrtc_line("-I/b", "-isystem", "/c", "-I/a", "-I/b") == ("-I/b", "-I/a", "-I/c")
    assert parse(["-DA", "-DB=2"]).key_fields == parse(["-DB=2", "-DA"]).key_fields
    assert parse(["-G", "-w"]) == parse(["-w", "-G"])


@from_table
def test_every_spelling_of_an_architecture_is_read_from_options(options, expected):
    parsed = parse(options)
    assert [str(option) for option in parsed.arch] == expected
    assert "arch" not in str(nvrtc_line(*options))


def test_the_architecture_that_the_device_runs_is_picked():
    parsed = parse(["-gencode=arch=compute_80,code=[sm_80,sm_86,compute_80]"])
    assert parsed.arch_for((8, 6)) == ArchOption(Arch(8, 6))
    assert parsed.arch_for((9, 0)) == ArchOption(Arch(8, 0), virtual=True)
    assert parsed.arch_for(None) == ArchOption(Arch(8, 0), virtual=True)
    assert parse([]).arch_for((9, 0)) is None
    assert parse(["-arch=sm_90a"]).arch_for(None) == ArchOption(Arch(9, 0, "a"))
    with pytest.raises(UnsupportedArch, match=r"options name sm_90a.* 8\.0 cannot run"):
        parse(["-arch=sm_90a"]).arch_for((8, 0))


@from_table
def test_impossible_options_are_rejected(options, message):
    with pytest.raises(InvalidRequest, match=message):
        parse(options)


def test_defaults_are_cupys_and_yield_to_the_user():
    line = option_table.for_nvrtc(parse([]).with_defaults(), SM_80, "cubin", NVRTC, ())
    ours = "--gpu-architecture=sm_80 --device-as-default-execution-space --ftz=true --std=c++17"
    assert line == tuple(ours.split())
    theirs = [("device-as-default-execution-space", ""), ("ftz", "false"), ("std", "c++14")]
    given = parse(["-ftz=false", "-std=c++14", "-default-device"])
    assert given.with_defaults().flags == tuple(theirs)
    assert parse([]).with_defaults(debug=True).writes_paths
    # Fast math implies -ftz, unless it is rejected.
    assert parse(["--use_fast_math"]).with_defaults().get("ftz") is None
    assert parse(["--use_fast_math", "-ftz=false"]).with_defaults().get("ftz") == "false"


def test_lto_is_emitted_when_lto_ir_is_made_and_only_then():
    assert [nvrtc_line("-dlto", target=kind) for kind in ("cubin", "ptx", "object")] == [()] * 3
    assert nvrtc_line("-dlto", target="ltoir") == ("--dlink-time-opt",)
    assert nvrtc_line(target="ltoir") == ("--dlink-time-opt",)
    assert parse(["-arch=lto_80"]).lto


def test_options_added_later_win():
    first = ["-DX=1", "-DY", "-rdc=false", "-I/a", "-diag-suppress=177,550", "-Xcompiler=-w,-g"]
    added = parse([*first, "-arch=sm_80"]).adding(
        "-DX=2", "-rdc=true", "-I/b", "-diag-suppress=1,177"
    )
    second = ["-DX=2", "-DY", "-rdc=true", "-I/a", "-I/b", "-diag-suppress=177,550,1"]
    assert added == parse([*second, "-Xcompiler=-w,-g", "-arch=sm_80"])
    assert added.adding("-arch=sm_90").arch == (ArchOption(Arch(9, 0)),)
    assert [parse(o).rdc for o in (["-rdc=true"], ["-rdc=false"], [])] == [True, False, False]


def test_an_option_that_a_compiler_does_not_accept_is_dropped_with_a_reason():
    parsed = parse(["-O3", "-Xcompiler", "-fPIC", "--extended-lambda", "-minimal", "--pch", "-ptx"])
    assert option_table.for_nvrtc(parsed, SM_80, "cubin", NVRTC, ())[1:] == ("--minimal",)
    line = option_table.for_nvcc(parsed, SM_80, "cubin", (13, 0), ())
    assert line[1:] == ("--compiler-options=-fPIC", "--extended-lambda", "--optimize=3")
    assert len(dropped(parsed.flags, "nvrtc")) == 5
    notes = dropped(parsed.flags, "nvcc")
    assert [note.split()[0] for note in notes] == ["--minimal", "--pch", "--ptx"]
    assert dropped(parse(["-default-device"]).flags, "nvcc") == ()


def test_a_gnu_dialect_is_noted():
    (note,) = parse(["-std=gnu++17"]).notes
    assert "became c++17" in note


def test_the_key_has_every_option_and_no_directory():
    given = ["-I/home/u", "-include", "/home/u/pre.h", "-DA", "-Xptxas=-v", "-fX"]
    fields = [("D", "A"), ("pre-include", "pre.h"), ("ptxas", "-v"), ("unknown", "-fX")]
    assert parse(given).key_fields == tuple(fields)
    assert parse(["--pch", "--pch-dir=/x"]).key_fields == parse([]).key_fields == ()
    for option in (
        "-G",
        "-DA",
        "-UA",
        "-w",
        "-Xptxas=-O1",
        "-x",
        "-include=a.h",
        "-O3",
        "-minimal",
    ):
        assert parse([option]).key_fields, option


def test_directories_are_replaced_in_each_spelling_and_nothing_else_is():
    given = ["-Iinc -DX=inc", "-I", "a b", '--include-path="c d"', "-isystem inc", "-idirafter=."]
    given += ["-DPLACE=inc", "--std=c++17", "-D", "Y=1."]
    whole, before = parse(with_directories(given, lambda path: f"/new/{path}")), parse(given)
    assert whole.include_dirs == ("/new/inc", "/new/a b", "/new/c d")
    assert whole.last_dirs == ("/new/.",)
    whole, before = (each._replace(include_dirs=(), last_dirs=()) for each in (whole, before))
    assert whole == before


@pytest.mark.parametrize(("version", "given"), [((13, 2), False), ((13, 3), True), ((13, 5), True)])
def test_a_compiler_that_would_omit_tile_kernels_raises_an_error(version, given):
    for line in (option_table.for_nvrtc, option_table.for_nvcc):
        assert ("--diag-error=20360" in line(parse([]), SM_80, "cubin", version, ())) == given


@pytest.mark.parametrize("std", ["c++03", "c++11", "c++14", "c++17", "c++20", "c++98", "C++26"])
def test_the_compiler_decides_which_standards_exist(std):
    assert f"--std={std.lower()}" in nvrtc_line(f"-std={std}", nvrtc=(12, 0))


def test_warnings_as_errors_are_the_front_ends_where_nvrtc_lacks_the_option():
    assert "-Xcudafe=--promote_warnings" in nvrtc_line("-Werror=all-warnings", nvrtc=(12, 9))
    assert "-Xcudafe=--promote_warnings" not in nvrtc_line("-Werror=reorder", nvrtc=(12, 9))
    assert "-Werror=reorder" in nvrtc_line("-Werror=reorder", nvrtc=(13, 3))


def test_an_option_of_another_compiler_is_read_unchecked():
    assert dict(parse(("--threads=4",)).flags) == {"threads": "4"}

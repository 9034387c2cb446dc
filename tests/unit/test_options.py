"""Every spelling of every option, and the flags that real compilers take."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rtcompile.core import command_lines
from rtcompile.core.arch import Arch
from rtcompile.core.option_table import SPECS, dropped
from rtcompile.core.options import ArchOption, Options, parse
from rtcompile.errors import InvalidRequest, UnsupportedArch

SM_80 = Arch(8, 0)
NVRTC = (12, 9)


def nvrtc_line(
    *options: str, nvrtc: tuple[int, int] = NVRTC, target: str = "cubin"
) -> Sequence[str]:
    """What NVRTC is given, without the architecture."""
    parsed = parse(options)
    return command_lines.for_nvrtc(parsed, SM_80, target, nvrtc, parsed.include_dirs)[1:]


@pytest.mark.parametrize(
    ("spellings", "expected"),
    [
        pytest.param(
            [["-I/x"], ["-I", "/x"], ["-I /x"], ["-I=/x"], ["--include-path=/x"],
             ["--include-path", "/x"], ['-I "/x"'], ["-isystem", "/x"]],
            ["-I/x"], id="include-path",
        ),
        pytest.param(
            [["-DX=1"], ["-D", "X=1"], ["-D X=1"], ["-D=X=1"], ["--define-macro=X=1"],
             ["--define-macro X=1"], ["-DX=0", "-DX=1"], ["-UX", "-DX=1"]],
            ["-DX=1"], id="define",
        ),
        pytest.param([["-UX"], ["-U X"], ["--undefine-macro=X"], ["-DX", "-UX"]], ["-UX"], id="undefine"),
        pytest.param(
            [["-std=c++20"], ["--std=c++20"], ["-std", "c++20"], ["--std c++20"],
             ["-std=c++14", "--std=c++20"], ["-std=gnu++20"]],
            ["--std=c++20"], id="std",
        ),
        pytest.param(
            [["-include=a.h"], ["-include", "a.h"], ["-include a.h"], ["--pre-include=a.h"]],
            ["--pre-include=a.h"], id="pre-include",
        ),
        pytest.param([["-G"], ["--device-debug"], ["-G", "-G"]], ["--device-debug"], id="debug"),
        pytest.param(
            [["-lineinfo"], ["--generate-line-info"]], ["--generate-line-info"], id="lineinfo"
        ),
        pytest.param(
            [["-maxrregcount=32"], ["--maxrregcount", "32"], ["--maxrregcount 32"],
             ["-maxrregcount=64", "--maxrregcount=32"]],
            ["--maxrregcount=32"], id="registers",
        ),
        pytest.param(
            [["-Xptxas", "-v", "-Xptxas", "-O2"], ["-Xptxas=-v,-O2"], ["--ptxas-options=-v", "-Xptxas -O2"],
             ["-Xptxas -v,-O2"], ["-Xptxas=-v,-O2", "-Xptxas=-v"], ["--resource-usage", "-Xptxas", "-O2"]],
            ["--ptxas-options=-v", "--ptxas-options=-O2"], id="ptxas",
        ),
        pytest.param(
            [["-dc"], ["--device-c"], ["-rdc=true"], ["-rdc true"],
             ["--relocatable-device-code=true"], ["-rdc=false", "-dc"]],
            ["--relocatable-device-code=true"], id="rdc",
        ),
        pytest.param([["-ftz=false"], ["--ftz false"], ["-ftz=true", "-ftz=false"]], ["--ftz=false"], id="ftz"),
        pytest.param(
            [["-diag-suppress=177,550"], ["--diag-suppress", "177", "-diag-suppress=550"]],
            ["--diag-suppress=177,550"], id="diag",
        ),
        pytest.param(
            [["-default-device"], ["--device-as-default-execution-space"]],
            ["--device-as-default-execution-space"], id="default-device",
        ),
        pytest.param([["-w"], ["--disable-warnings"]], ["--disable-warnings"], id="no-warnings"),
        pytest.param([["-foo", "bar", "--baz=1"]], ["-foo", "bar", "--baz=1"], id="unknown"),
        pytest.param([[""], ["  "], []], [], id="nothing"),
    ],
)  # fmt: skip
def test_all_spellings_are_one_option(spellings: list[list[str]], expected: list[str]) -> None:
    for spelling in spellings:
        assert nvrtc_line(*spelling) == tuple(expected), spelling


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        pytest.param("-DX=1 -DY=2", ["-DX=1", "-DY=2"], id="two-defines"),
        pytest.param('-DFOO="a b"', ['-DFOO="a b"'], id="quotes-are-the-define's"),
        pytest.param("-DT=unsigned int", ["-DT=unsigned int"], id="define-with-space"),
        pytest.param("-DN=(x -1)", ["-DN=(x -1)"], id="minus-inside-a-define"),
        pytest.param("-DT=unsigned int -w", ["--disable-warnings", "-DT=unsigned int"], id="then-a-flag"),
        pytest.param('-DS="a -G b"', ['-DS="a -G b"'], id="option-inside-quotes"),
        pytest.param("-I /path with space", ["-I/path with space"], id="path-with-space"),
        pytest.param('-I "/a b" -I/c', ["-I/a b", "-I/c"], id="quoted-path"),
        pytest.param("--std c++20  -w\n", ["--disable-warnings", "--std=c++20"], id="value-apart"),
        pytest.param("-w --strange", ["--disable-warnings", "--strange"], id="unknown-after-flag"),
    ],
)  # fmt: skip
def test_one_element_may_hold_several_words(element: str, expected: list[str]) -> None:
    assert nvrtc_line(element) == tuple(expected)


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        pytest.param(["-I", "/a b"], ["-I/a b"], id="directory"),
        pytest.param(["-include", "/a b.h", "-w"], ["--disable-warnings", "--pre-include=/a b.h"], id="header"),
        pytest.param(["-D", "T=unsigned int"], ["-DT=unsigned int"], id="define"),
        pytest.param(["-w -I", "/a b -G"], ["--disable-warnings", "-I/a b -G"], id="after-another"),
    ],
)  # fmt: skip
def test_an_element_after_an_option_without_its_value_is_the_value(
    elements: list[str], expected: list[str]
) -> None:
    assert nvrtc_line(*elements) == tuple(expected)


def test_what_the_host_compilers_preprocessor_obeys_is_the_programs_own() -> None:
    through = parse(["-Xcompiler=-I/a,-DX=1,-fPIC", "-Xcompiler", "-include h.h -isystem /b -U Y"])
    assert through == parse(
        ["-I/a", "-DX=1", "-Xcompiler=-fPIC", "-include=h.h", "-isystem=/b", "-UY"]
    )


@pytest.mark.parametrize(
    "options",
    [
        ["--options-file=x"], ["-optf", "x"], ["@x"],
        ["-Xptxas", "--options-file=x"], ["-Xptxas=-v,-optf=x"], ["-Xptxas=-optf,x"],
        ["-Xcicc=--options-file=x"], ["-Xcompiler", "@x"], ["-Xcompiler=-MF,x"],
        ["-Xcompiler", "-Wp,-MD,x"], ["-Xcompiler=-iquote,x"], ["-Xcompiler=--sysroot=x"],
        ["-Xcompiler=-specs=x"], ["-Xcompiler=-B/x"], ["-iquote", "x"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_file_that_a_compiler_would_read_unnoticed_is_refused(options: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="go unnoticed"):
        parse(options)


@pytest.mark.parametrize("option", ["-Wparentheses", "-march=native", "-openmp", "-Bsymbolic"])
def test_other_options_of_the_host_compiler_are_passed_on(option: str) -> None:
    assert parse(["-Xcompiler", option]).get("compiler-options") == option


def test_order_is_kept_where_it_means_something() -> None:
    assert nvrtc_line("-I/b", "-isystem", "/c", "-I/a", "-I/b") == ("-I/b", "-I/a", "-I/c")
    assert parse(["-DA", "-DB=2"]).key_fields() == parse(["-DB=2", "-DA"]).key_fields()
    assert parse(["-G", "-w"]) == parse(["-w", "-G"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(["-arch=sm_90a"], ["sm_90a"], id="arch"),
        pytest.param(["-arch", "sm_90a"], ["sm_90a"], id="two-words"),
        pytest.param(["--gpu-architecture=compute_90"], ["compute_90"], id="virtual"),
        pytest.param(["-arch=sm_80", "--gpu-architecture sm_90a"], ["sm_90a"], id="last-wins"),
        pytest.param(["-arch=sm_80,compute_80"], ["sm_80", "compute_80"], id="list"),
        pytest.param(["-arch=compute_80", "-code=sm_86"], ["sm_86"], id="code"),
        pytest.param(["-gencode", "arch=compute_80,code=sm_80"], ["sm_80"], id="gencode"),
        pytest.param(
            ["-gencode=arch=compute_80,code=[sm_80,compute_80]",
             "--generate-code arch=compute_90a,code=sm_90a"],
            ["sm_80", "compute_80", "sm_90a"], id="several",
        ),
        pytest.param(["-arch=sm_80", "-arch=native"], [], id="native"),
    ],
)  # fmt: skip
def test_every_spelling_of_an_architecture_is_heeded(
    options: list[str], expected: list[str]
) -> None:
    parsed = parse(options)
    assert [str(option) for option in parsed.arch] == expected
    assert not [
        word
        for word in command_lines.for_nvrtc(parsed, SM_80, "cubin", NVRTC, ())[1:]
        if "arch" in word
    ]


def test_the_architecture_that_the_device_runs_is_picked() -> None:
    parsed = parse(["-gencode=arch=compute_80,code=[sm_80,sm_86,compute_80]"])
    assert parsed.arch_for((8, 6)) == ArchOption(Arch(8, 6))
    assert parsed.arch_for((9, 0)) == ArchOption(Arch(8, 0), virtual=True)
    assert parse([]).arch_for((9, 0)) is None
    assert parse(["-arch=sm_90a"]).arch_for(None) == ArchOption(Arch(9, 0, "a"))
    with pytest.raises(UnsupportedArch, match=r"ask for sm_90a.* 8\.0 cannot run"):
        parse(["-arch=sm_90a"]).arch_for((8, 0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(["-I"], "'-I' needs a value", id="no-value"),
        pytest.param(["-ftz=1"], "true or false", id="boolean"),
        pytest.param(["-maxrregcount=many"], "takes a number", id="number"),
        pytest.param(["-G=1"], "takes no value", id="flag-with-value"),
        pytest.param(["-std=c++98"], r"expected one of c\+\+03, c\+\+11", id="std"),
        pytest.param(["-arch=sm_x"], "expected one like 'sm_90a'", id="arch"),
        pytest.param(["-arch=all"], "for one architecture", id="all"),
        pytest.param(["-gencode", "sm_80"], "expected arch=compute_80,code=sm_80", id="gencode"),
        pytest.param(["-D", "=1"], "names no macro", id="nameless-define"),
        pytest.param(["-o", "x"], "rtcompile's to decide", id="output"),
        pytest.param(["-E"], "rtcompile's to decide", id="preprocess"),
    ],
)
def test_impossible_options_are_refused(options: list[str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse(options)


@pytest.mark.parametrize(
    ("option", "nvrtc", "message"),
    [
        pytest.param("-std=c++23", (13, 0), r"NVRTC 13\.0 takes c\+\+03, .*c\+\+20$", id="std"),
        pytest.param("-Ofc=max", (12, 4), r"needs NVRTC 12\.6 or newer; this is 12\.4", id="flag"),
    ],
)
def test_an_option_that_this_release_has_not_yet_names_the_one_that_has(
    option: str, nvrtc: tuple[int, int], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        nvrtc_line(option, nvrtc=nvrtc)


def test_defaults_are_cupys_and_yield_to_the_user() -> None:
    assert command_lines.for_nvrtc(parse([]).with_defaults(), SM_80, "cubin", NVRTC, ()) == (
        "--gpu-architecture=sm_80",
        "--device-as-default-execution-space",
        "--ftz=true",
        "--std=c++17",
    )
    assert parse(["-ftz=false", "-std=c++14", "-default-device"]).with_defaults().flags == (
        ("device-as-default-execution-space", ""),
        ("ftz", "false"),
        ("std", "c++14"),
    )
    debug = parse([]).with_defaults(debug=True)
    assert debug.debug
    assert debug.lineinfo


def test_fast_math_implies_ftz_unless_it_is_refused() -> None:
    assert parse(["--use_fast_math"]).with_defaults().get("ftz") is None
    assert parse(["--use_fast_math", "-ftz=false"]).with_defaults().get("ftz") == "false"


def test_lto_is_emitted_when_lto_ir_is_made_and_only_then() -> None:
    assert nvrtc_line("-dlto") == ()
    assert nvrtc_line("-dlto", target="ltoir") == ("--dlink-time-opt",)
    assert nvrtc_line(target="ltoir") == ("--dlink-time-opt",)
    assert parse(["-arch=lto_80"]).lto


def test_options_added_later_win() -> None:
    added = parse(["-DX=1", "-DY", "-rdc=false", "-I/a"]).adding("-DX=2", "-rdc=true", "-I/b")
    assert added == parse(["-DX=2", "-DY", "-rdc=true", "-I/a", "-I/b"])


def test_what_a_compiler_does_not_take_is_dropped_with_a_reason() -> None:
    parsed = parse(["-O3", "-Xcompiler", "-fPIC", "--extended-lambda", "-minimal", "--pch", "-ptx"])
    assert command_lines.for_nvrtc(parsed, SM_80, "cubin", NVRTC, ())[1:] == ("--minimal",)
    assert command_lines.for_nvcc(parsed, SM_80, "cubin", (13, 0), ())[1:] == (
        "--compiler-options=-fPIC",
        "--extended-lambda",
        "--optimize=3",
    )
    assert len(dropped(parsed.flags, "nvrtc")) == 5
    assert [note.split()[0] for note in dropped(parsed.flags, "nvcc")] == [
        "--minimal",
        "--pch",
        "--ptx",
    ]
    assert dropped(parse(["-default-device"]).flags, "nvcc") == ()


def test_a_gnu_dialect_is_noted() -> None:
    (note,) = parse(["-std=gnu++17"]).notes
    assert "became c++17" in note


def test_the_key_holds_no_directory() -> None:
    fields = parse(
        ["-I/home/u", "-include", "/home/u/pre.h", "-DA", "-Xptxas=-v", "-fX"]
    ).key_fields()
    assert fields == (
        ("D", "A"),
        ("pre-include", "pre.h"),
        ("ptxas", "-v"),
        ("unknown", "-fX"),
    )
    assert parse(["--pch", "--pch-dir=/x"]).key_fields() == ()


@pytest.mark.parametrize(
    "options", [["-G"], ["-DA"], ["-UA"], ["-w"], ["-Xptxas=-O1"], ["-x"], ["-include", "a.h"]]
)
def test_the_key_tells_options_apart(options: list[str]) -> None:
    assert parse(options).key_fields() != parse([]).key_fields()


VALUES = {
    "std": "c++17",
    "maxrregcount": "64",
    "dopt": "on",
    "optimization-info": "inline",
    "diag-suppress": "177",
    "diag-error": "178",
    "diag-warn": "550",
    "Werror": "reorder",
    "split-compile": "1",
    "jump-table-density": "101",
    "Ofast-compile": "0",
    "frandom-seed": "seed",
    "optimize": "3",
    "compiler-options": "-fPIC",
    "compiler-bindir": "g++",
    "default-stream": "legacy",
    "threads": "1",
}
CONFLICTING = {"extensible-whole-program", "no-display-error-number", "fdevice-syntax-only"}


def everything(compiler: str, folder: Path, *, but: set[str]) -> Options:
    """Every row of the table that this compiler takes, with a value that it takes."""
    words = [f"-I{folder}", "-DA=1", "-UB", f"-include={folder / 'pre.h'}", "-Xptxas=-v,-O2"]
    (folder / "pre.h").touch()
    for spec in SPECS:
        taken = spec.nvrtc is not None if compiler == "nvrtc" else spec.nvcc
        if not taken or spec.name in but | CONFLICTING:
            continue
        default = {"nothing": "", "boolean": "true"}.get(spec.takes, str(folder / spec.name))
        value = VALUES.get(spec.name, default)
        words.append(f"--{spec.name}={value}" if value else f"--{spec.name}")
    return parse(words)


def test_nvrtc_takes_every_flag_that_is_emitted(nvrtc: Any, tmp_path: Path) -> None:
    # 12.9 cannot write a time trace: it adds ".json" twice and then fails. NVRTC never turns
    # optimization-info off again: it would show in the log of every later compile of this process.
    options = everything("nvrtc", tmp_path, but={"fdevice-time-trace", "optimization-info"})
    line = command_lines.for_nvrtc(
        options, Arch(10, 0), "cubin", nvrtc.version, options.include_dirs
    )
    outcome = nvrtc.compile("__global__ void kernel() {}", *line)
    assert outcome.code is not None, outcome.log
    assert len(line) > 35


def test_warnings_become_errors_in_releases_without_the_option(nvrtc: Any) -> None:
    line = nvrtc_line("-Werror", "all-warnings", nvrtc=nvrtc.version)
    outcome = nvrtc.compile("__global__ void kernel() { int unused; }", *line)
    assert "error #177-D" in outcome.log


def test_a_refused_ftz_wins_over_fast_math_in_nvrtc(nvrtc: Any) -> None:
    source = "__global__ void kernel(float* p) { p[0] += p[1]; }"
    for refused in ([], ["-ftz=false"]):
        line = command_lines.for_nvrtc(
            parse(["--use_fast_math", *refused]), SM_80, "ptx", nvrtc.version, ()
        )
        ptx = nvrtc.compile(source, *line, kind="PTX").code
        assert (b"add.ftz.f32" in ptx) == (not refused)


@pytest.fixture(scope="module")
def nvcc() -> str:
    found = shutil.which("nvcc")
    if found is None:
        pytest.skip("nvcc is not on PATH")
    return found


def dry_run(nvcc: str, line: Sequence[str], folder: Path, make: str = "--cubin") -> str:
    (folder / "kernel.cu").write_text("__global__ void kernel() {}\n")
    command = [nvcc, "--dryrun", make, *line, "kernel.cu", "-o", "out"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_nvcc_takes_every_flag_that_is_emitted(nvcc: str, tmp_path: Path) -> None:
    options = everything("nvcc", tmp_path, but={"profile", "forward-unknown-to-host-compiler"})
    line = command_lines.for_nvcc(options, SM_80, "cubin", (13, 0), options.include_dirs)
    said = dry_run(nvcc, line, tmp_path)
    assert "-arch=sm_80" in said
    assert "warning" not in said


@pytest.mark.parametrize(
    ("target", "make", "expected"),
    [
        pytest.param("cubin", "--cubin", "ptxas -arch=sm_90a", id="cubin"),
        pytest.param("ptx", "--ptx", "-arch compute_90a", id="ptx"),
        pytest.param("ltoir", "--ltoir", "-arch compute_90a", id="ltoir"),
    ],
)
def test_nvcc_makes_each_target(
    nvcc: str, tmp_path: Path, target: str, make: str, expected: str
) -> None:
    line = command_lines.for_nvcc(parse([]), Arch(9, 0, "a"), target, (13, 0), ())
    assert expected in dry_run(nvcc, line, tmp_path, make)


DEFINITIONS = [
    pytest.param("$HOME", id="dollar"),
    pytest.param("`id`", id="backtick"),
    pytest.param('"$(id)"', id="substitution"),
    pytest.param("f(1,2)", id="comma"),
    pytest.param('"a b, c"', id="quotes"),
    pytest.param('"a\\n\\"b\\""', id="backslashes"),
]


@pytest.mark.parametrize("text", DEFINITIONS)
def test_nvccs_shell_sees_nothing_of_a_definition(nvcc: str, tmp_path: Path, text: str) -> None:
    line = command_lines.for_nvcc(parse([f"-DX={text}"]), SM_80, "ptx", (13, 0), ())
    (tmp_path / "kernel.cu").write_text("#ifdef SHOW\nX\n#endif\n")
    command = [nvcc, "-E", *line, "-DSHOW", "kernel.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().splitlines()[-1] == text


# Each plants a file when a shell reads it, in one way of quoting or another.
ATTACKS = [
    f"{before}{text}{after}"
    for before, after in (("", ""), ('"', '"'), ("'", "'"), ("\\", ""), ("\\\\", ""), ('";', ';"'))
    for text in (
        ";touch planted;", "`touch planted`", "$(touch planted)", "|touch planted|", ">planted",
        "&touch planted&", "\ntouch planted\n", "${x:-$(touch planted)}", "<(touch planted)",
    )
]  # fmt: skip
PLACES = {
    "seed": "--frandom-seed={}",
    "ptxas": "-Xptxas={}",
    "host": "-Xcompiler={}",
    "define": "-DX={}",
    "directory": "-I{}",
    "last directory": "-idirafter={}",
    "pre-include": "-include={}",
    "unknown": "-Xcudafe={}",
}


@pytest.mark.parametrize("place", PLACES)
def test_no_shell_of_nvccs_acts_on_an_option(nvcc: str, tmp_path: Path, place: str) -> None:
    (tmp_path / "kernel.cu").write_text("#if 0\n#endif\n")
    (tmp_path / "kernel.ptx").write_text(".version 7.0\n.target sm_80\n.address_size 64\n")
    for attack in ATTACKS:
        try:
            options = parse([PLACES[place].format(attack)])
            line = command_lines.for_nvcc(options, SM_80, "cubin", (13, 0), options.include_dirs)
        except InvalidRequest:
            continue
        step = ["--cubin", "kernel.ptx"] if place == "ptxas" else ["-E", "kernel.cu"]
        command = [nvcc, *line, *step, "-o", "out"]
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=60)
        assert not (tmp_path / "planted").exists(), attack


@pytest.mark.parametrize("character", ";`$|&<>(){}*?[]!~# '\"\\\n\t")
def test_what_nvcc_does_not_quote_holds_nothing_that_means_something_to_a_shell(
    character: str,
) -> None:
    for options in (
        Options(unknown=(f"-x{character}y",)),
        Options(ptxas=(f"-x{character}y",)),
        Options(flags=(("frandom-seed", f"x{character}y"),)),
        Options(flags=(("compiler-options", f"-x{character}y"),)),
    ):
        with pytest.raises(InvalidRequest, match="hands it to a shell unquoted"):
            command_lines.for_nvcc(options, SM_80, "cubin", (13, 0), ())


def test_nvcc_takes_a_directory_with_a_comma_and_is_kept_from_one_that_its_shell_expands(
    nvcc: str, tmp_path: Path
) -> None:
    assert re.search(
        r'-I"/a,b"',
        dry_run(
            nvcc, command_lines.for_nvcc(parse([]), SM_80, "cubin", (13, 0), ["/a,b"]), tmp_path
        ),
    )
    with pytest.raises(InvalidRequest, match="its shell would expand"):
        command_lines.for_nvcc(parse([]), SM_80, "cubin", (13, 0), ["/$HOME"])


def test_lto_ir_of_either_nvrtc_comes_from_the_virtual_architecture(nvrtc: Any) -> None:
    line = command_lines.for_nvrtc(parse([]), Arch(9, 0, "a"), "ltoir", nvrtc.version, ())
    assert line[0] == "--gpu-architecture=compute_90a"
    assert nvrtc.compile("__global__ void kernel() {}", *line, kind="LTOIR").code


FOR_THE_LINKER = (
    "-dlto --use_fast_math -prec-div=true -lineinfo -G -maxrregcount=32 -DX -Xptxas=-v "
    "-jtd=101 -split-compile=2"
)


def test_nvjitlink_is_given_what_still_means_something() -> None:
    assert command_lines.for_nvjitlink(parse([FOR_THE_LINKER]), Arch(9, 0, "a"), (12, 0)) == (
        "-arch=sm_90a",
        "-lto",
        "-ftz=1",
        "-prec-div=1",
        "-prec-sqrt=0",
        "-fma=1",
        "-g",
        "-lineinfo",
        "-maxrregcount=32",
        "-Xptxas=-v",
    )


def test_nvjitlink_takes_every_option_that_is_emitted() -> None:
    nvjitlink = pytest.importorskip("cuda.bindings.nvjitlink")
    options = command_lines.for_nvjitlink(
        parse([FOR_THE_LINKER]), Arch(9, 0, "a"), nvjitlink.version()
    )
    assert len(options) == 12
    nvjitlink.destroy(nvjitlink.create(len(options), list(options)))

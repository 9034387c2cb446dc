"""NVRTC, NVCC with its shell, and nvJitLink accept every flag that rtcompile emits."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from rtcompile.errors import InvalidRequest
from rtcompile.request import option_table
from rtcompile.request.option_table import SPECS
from rtcompile.request.options import Options, parse
from rtcompile.request.values import Arch
from tests.processes import ran
from tests.request.test_options import SM_80, nvrtc_line

pytestmark = pytest.mark.needs_compiler

_VALUES = (
    "std=c++17 maxrregcount=64 dopt=on optimization-info=inline diag-suppress=177 diag-error=178 "
    "diag-warn=550 Werror=reorder split-compile=1 jump-table-density=101 Ofast-compile=0 optimize=3 "
    "frandom-seed=seed compiler-options=-fPIC compiler-bindir=g++ default-stream=legacy threads=1"
)
VALUES = dict(word.split("=") for word in _VALUES.split())
CONFLICTING = {"extensible-whole-program", "no-display-error-number", "fdevice-syntax-only"}
# These are passed differently, or by other arguments.
PASSED_DIFFERENTLY = {
    *("define-macro", "undefine-macro", "include-path", "system-include", "idirafter"),
    *("pre-include", "ptxas-options", "gpu-architecture", "gpu-code", "generate-code"),
}


def everything(compiler: str, folder: Path, *, but: set[str]) -> Options:
    """Return every option of the table that this compiler accepts, with a valid value."""
    words = [f"-I{folder}", "-DA=1", "-UB", f"-include={folder / 'pre.h'}", "-Xptxas=-v,-O2"]
    (folder / "pre.h").touch()
    for spec in SPECS:
        taken = spec.nvrtc is not None if compiler == "nvrtc" else spec.nvcc
        if not taken or spec.name in but | CONFLICTING | PASSED_DIFFERENTLY:
            continue
        default = {"nothing": "", "boolean": "true"}.get(spec.takes, str(folder / spec.name))
        value = VALUES.get(spec.name, default)
        words.append(f"--{spec.name}={value}" if value else f"--{spec.name}")
    return parse(words)


def test_nvrtc_takes_every_flag_that_is_emitted(nvrtc, tmp_path):
    # 12.9 cannot write a time trace: it adds ".json" twice and then fails. NVRTC never turns
    # optimization-info off again, so it would appear in the log of every later compile of this process.
    options = everything("nvrtc", tmp_path, but={"fdevice-time-trace", "optimization-info"})
    given = options, Arch(10, 0), "cubin", nvrtc.version, options.include_dirs
    line = option_table.for_nvrtc(*given)
    outcome = nvrtc.compile("__global__ void kernel() {}", *line)
    assert outcome.code is not None, outcome.log
    assert len(line) > 35


def test_warnings_become_errors_in_releases_without_the_option(nvrtc):
    line = nvrtc_line("-Werror", "all-warnings", nvrtc=nvrtc.version)
    outcome = nvrtc.compile("__global__ void kernel() { int unused; }", *line)
    assert "error #177-D" in outcome.log


def test_a_rejected_ftz_wins_over_fast_math_in_nvrtc(nvrtc):
    source = "__global__ void kernel(float* p) { p[0] += p[1]; }"
    for rejected in ([], ["-ftz=false"]):
        options = parse(["--use_fast_math", *rejected])
        line = option_table.for_nvrtc(options, SM_80, "ptx", nvrtc.version, ())
        ptx = nvrtc.compile(source, *line, kind="PTX").code
        assert (b"add.ftz.f32" in ptx) == (not rejected)


@pytest.fixture(scope="module")
def nvcc() -> str:
    found = shutil.which("nvcc")
    if found is None:
        pytest.skip("nvcc is not on PATH")
    return found


def dry_run(nvcc: str, line: Sequence[str], folder: Path, make: str = "--cubin") -> str:
    (folder / "kernel.cu").write_text("__global__ void kernel() {}\n")
    command = [nvcc, "--dryrun", make, *line, "kernel.cu", "-o", "out"]
    done = ran(*command, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_nvcc_takes_every_flag_that_is_emitted(nvcc, tmp_path):
    options = everything("nvcc", tmp_path, but={"profile", "forward-unknown-to-host-compiler"})
    line = option_table.for_nvcc(options, SM_80, "cubin", (13, 0), options.include_dirs)
    stderr = dry_run(nvcc, line, tmp_path)
    assert "-arch=sm_80" in stderr
    assert "warning" not in stderr


@pytest.mark.parametrize(
    ("target", "make", "expected"),
    [
        pytest.param("cubin", "--cubin", "ptxas -arch=sm_90a", id="cubin"),
        pytest.param("ptx", "--ptx", "-arch compute_90a", id="ptx"),
        pytest.param("ltoir", "--ltoir", "-arch compute_90a", id="ltoir"),
    ],
)
def test_nvcc_makes_each_target(nvcc, tmp_path, target, make, expected):
    line = option_table.for_nvcc(parse([]), Arch(9, 0, "a"), target, (13, 0), ())
    assert expected in dry_run(nvcc, line, tmp_path, make)


DEFINITIONS = [
    pytest.param("$HOME", id="dollar"),
    pytest.param("`id`", id="backtick"),
    pytest.param('"$(id)"', id="substitution"),
    pytest.param("f(1,2)", id="comma"),
    pytest.param('"a b, c"', id="quotes"),
    pytest.param('"a\\n\\"b\\""', id="backslashes"),
    pytest.param("a\\\\b", id="two backslashes"),
    pytest.param("a\\", id="a last backslash"),
]


@pytest.mark.parametrize("text", DEFINITIONS)
def test_nvccs_shell_changes_no_definition(nvcc, tmp_path, text):
    line = option_table.for_nvcc(parse([f"-DX={text}"]), SM_80, "ptx", (13, 0), ())
    (tmp_path / "kernel.cu").write_text("#ifdef SHOW\nX\n#endif\n")
    done = ran(nvcc, "-E", *line, "-DSHOW", "kernel.cu", cwd=tmp_path, check=True)
    assert done.stdout.rstrip().splitlines()[-1] == text


# Each creates a file if a shell reads it; the rows differ in their quoting.
ATTACKS = [
    f"{before}{text}{after}"
    for before, after in (("", ""), ('"', '"'), ("'", "'"), ("\\", ""), ("\\\\", ""), ('";', ';"'))
    for text in (
        ";touch planted;", "`touch planted`", "$(touch planted)", "|touch planted|", ">planted",
        "&touch planted&", "\ntouch planted\n", "${x:-$(touch planted)}", "<(touch planted)",
    )
]  # fmt: skip
FORMS = {
    "seed": "--frandom-seed={}",
    "ptxas": "-Xptxas={}",
    "host": "-Xcompiler={}",
    "define": "-DX={}",
    "directory": "-I{}",
    "last directory": "-idirafter={}",
    "pre-include": "-include={}",
    "unknown": "-Xcudafe={}",
}


@pytest.mark.some
@pytest.mark.parametrize("part", range(6))
@pytest.mark.parametrize("form", FORMS)
def test_no_shell_of_nvccs_acts_on_an_option(nvcc, tmp_path, form, part):
    (tmp_path / "kernel.cu").write_text("#if 0\n#endif\n")
    (tmp_path / "kernel.ptx").write_text(".version 7.0\n.target sm_80\n.address_size 64\n")
    for attack in ATTACKS[part::6]:
        try:
            options = parse([FORMS[form].format(attack)])
            line = option_table.for_nvcc(options, SM_80, "cubin", (13, 0), options.include_dirs)
        except InvalidRequest:
            continue
        step = ["--cubin", "kernel.ptx"] if form == "ptxas" else ["-E", "kernel.cu"]
        ran(nvcc, *line, *step, "-o", "out", cwd=tmp_path, text=False, timeout=60)
        assert not (tmp_path / "planted").exists(), attack


@pytest.mark.parametrize("character", ";`$|&<>(){}*?[]!~# '\"\\\n\t")
def test_options_that_nvcc_does_not_quote_contain_no_shell_characters(character):
    for options in (
        Options(unknown=(f"-x{character}y",)),
        Options(ptxas=(f"-x{character}y",)),
        Options(flags=(("frandom-seed", f"x{character}y"),)),
        Options(flags=(("compiler-options", f"-x{character}y"),)),
    ):
        with pytest.raises(InvalidRequest, match="passes it to a shell unquoted"):
            option_table.for_nvcc(options, SM_80, "cubin", (13, 0), ())


def test_nvcc_gets_a_directory_with_a_comma_but_none_that_its_shell_would_expand(nvcc, tmp_path):
    line = option_table.for_nvcc(parse([]), SM_80, "cubin", (13, 0), ["/a,b"])
    assert '-I"/a,b"' in dry_run(nvcc, line, tmp_path)
    with pytest.raises(InvalidRequest, match="its shell would expand"):
        option_table.for_nvcc(parse([]), SM_80, "cubin", (13, 0), ["/$HOME"])


def test_lto_ir_of_either_nvrtc_comes_from_the_virtual_architecture(nvrtc):
    line = option_table.for_nvrtc(parse([]), Arch(9, 0, "a"), "ltoir", nvrtc.version, ())
    assert line[0] == "--gpu-architecture=compute_90a"
    assert nvrtc.compile("__global__ void kernel() {}", *line, kind="LTOIR").code


FOR_THE_LINKER = (
    "-dlto --use_fast_math -prec-div=true -lineinfo -G -maxrregcount=32 -DX -Xptxas=-v "
    "-jtd=101 -split-compile=2"
)


def test_nvjitlink_gets_the_options_that_affect_linking():
    line = option_table.for_nvjitlink(parse([FOR_THE_LINKER]), Arch(9, 0, "a"), (12, 0), lto=True)
    assert " ".join(line) == (
        "-arch=sm_90a -lto -ftz=1 -prec-div=1 -prec-sqrt=0 -fma=1 -g -lineinfo -maxrregcount=32 "
        "-Xptxas=-v"
    )


def test_nvjitlink_takes_every_option_that_is_emitted():
    nvjitlink = pytest.importorskip("cuda.bindings.nvjitlink")
    given = parse([FOR_THE_LINKER]), Arch(9, 0, "a"), nvjitlink.version()
    options = option_table.for_nvjitlink(*given, lto=True)
    assert len(options) == 12
    nvjitlink.destroy(nvjitlink.create(len(options), list(options)))

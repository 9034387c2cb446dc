"""Tests of the command's smaller verbs, and of help, terminals, pipes and exit codes for all verbs."""

import re
import shlex
import sys
import traceback
from pathlib import Path

import pytest

import rtcompile
from rtcompile import CompileError, __version__
from rtcompile.cli import main, output, parser
from tests.processes import command, python, ran
from tests.tables import from_table

# --- explain --------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "code", "message"),
    [
        ("CUDA_ERROR_NOT_FOUND", 0, "name_expressions="),
        ("cp-async-in-cute", 0, "UniversalCopy"),
        ("my hovercraft is full of eels", 1, "Nothing is known"),
    ],
)
def test_explain_accepts_names_and_messages(what, code, message, capsys):
    assert main(["explain", what]) == code
    assert message in capsys.readouterr().out


TRACEBACK = """Traceback (most recent call last):
  File "/home/me/x.py", line 12, in <module>
    k((1,), (32,), (x,))
  File "cupy/_core/raw.pyx", line 95, in cupy._core.raw.RawKernel.__call__
cupy_backends.cuda.api.driver.CUDADriverError: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access
"""
IN_JUPYTER = """\x1b[0;31m--------------------------------------------------\x1b[0m
\x1b[0;31mNVRTCError\x1b[0m                      Traceback (most recent call last)
\x1b[0;31mNVRTCError\x1b[0m: NVRTC_ERROR_COMPILATION (6)

During handling of the above exception, another exception occurred:

\x1b[0;31mCompileException\x1b[0m                Traceback (most recent call last)
Cell \x1b[0;32mIn[3], line 1\x1b[0m
\x1b[0;32m----> 1\x1b[0m k((1,),(1,),())

\x1b[0;31mCompileException\x1b[0m: /tmp/x.cubin.cu(3): error: identifier "uint32_t" is undefined
    uint32_t x;
    ^

1 error detected in the compilation of "/tmp/x.cubin.cu".
"""


@pytest.mark.takes_seconds
@pytest.mark.parametrize(
    ("pasted", "first", "hint"),
    [
        (TRACEBACK, "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access", "compute-sanitizer"),
        (IN_JUPYTER, '/tmp/x.cubin.cu:3:3: error: identifier "uint32_t" is und', "<cstdint>"),
    ],
    ids=["python", "jupyter in colours"],
)
def test_explain_finds_the_error_in_a_pasted_traceback(pasted, first, hint):
    done = command("explain", input=pasted)
    assert done.stdout.startswith(first)
    assert hint in done.stdout


@pytest.mark.needs_compiler
def test_explain_reads_the_compilers_log_in_a_traceback_of_rtcompile():
    with pytest.raises(CompileError) as caught:
        rtcompile.compile("__global__ void k() { uint32_t x; nope(); }", arch="sm_80")
    pasted = "".join(traceback.format_exception(caught.value))
    lines = command("explain", input=pasted).stdout.splitlines()
    assert lines[0] == 'kernel.cu:1:23: error: identifier "uint32_t" is undefined'
    assert sum("hint: " in line for line in lines) == 1
    assert lines[-1] == '  also: kernel.cu:1:35: error: identifier "nope" is undefined'


@pytest.mark.takes_seconds
def test_explain_survives_garbage():
    done = command("explain", input=bytes(range(256)) * 1000, text=False)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr


# --- the command itself -----------------------------------------------------------------


def verbs() -> list[str]:
    (actions,) = (a for a in parser()._actions if a.dest == "==SUPPRESS==" and a.choices)
    return list(actions.choices)  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_has_help_with_an_example_and_takes_json(verb, capsys):
    with pytest.raises(SystemExit) as left:
        main([verb, "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert f"example:\n  {'' if verb == 'explain' else 'rtcompile ' + verb}" in text
    assert "--json" in text or verb == "cache"  # whose actions take it


@pytest.mark.takes_seconds
def test_without_a_verb_the_help_is_shown():
    done = command()
    assert done.returncode == 0
    assert "usage: rtcompile" in done.stdout
    assert "exit codes:" in done.stdout
    assert "ACTION" in command("cache").stdout


@from_table
def test_a_mistyped_argument_gets_a_suggestion(argv, message, capsys):
    with pytest.raises(SystemExit) as left:
        main(argv.split())
    assert left.value.code == 2
    first, second = capsys.readouterr().err.splitlines()
    assert message in first
    assert second.endswith("--help shows what it takes")


@pytest.mark.parametrize("argv", [[], ["compile", "--help"], ["bundle", "--help"]], ids=" ".join)
def test_help_fits_a_narrow_terminal(argv, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        main(argv)
    text = capsys.readouterr().out.partition("example:\n")[0]
    wide = [line for line in text.splitlines() if len(line) > 60]
    assert all(line.startswith("  ") for line in wide), "only the table of exit codes"


@pytest.mark.needs_compiler
def test_output_to_stdout_is_only_the_code(source):
    done = command("compile", "k.cu", "--arch", "sm_80", "-o", "-", text=False)
    assert done.stdout.startswith(b"\x7fELF")
    assert b"k.cu for sm_80" in done.stderr
    assert not Path("-").exists()


def test_machine_code_is_not_written_to_a_terminal(source, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["compile", "k.cu", "--arch", "sm_80", "-o", "-"]) == 2
    assert "a cubin is binary and cannot go to a terminal" in capsys.readouterr().err


@pytest.mark.needs_compiler
def test_compile_reports_a_module_without_kernels(source, capsys, run_json):
    Path("t.cu").write_text("template <class T> __global__ void t(T* x) {}\n")
    assert main(["compile", "t.cu", "--arch", "sm_80"]) == 0
    assert "contains no kernel" in capsys.readouterr().out
    assert run_json("compile", "t.cu", "--arch", "sm_80")[1]["results"][0]["kernels"] == []
    assert main(["inspect", "t.cu", "--arch", "sm_80"]) == 0
    assert "sm_80, 0 kernels\nno kernel is in it" in capsys.readouterr().out
    assert main(["compile", "t.cu", "--arch", "sm_80", "-n", "t<int>"]) == 0
    assert "contains no kernel" not in capsys.readouterr().out


@pytest.mark.needs_compiler
def test_compile_reports_options_that_were_not_passed_on(source, capsys):
    assert main(["compile", "k.cu", "--arch", "sm_80", "--", "-Xcompiler", "-Wall"]) == 0
    assert "    --compiler-options is not passed on: it concerns host" in capsys.readouterr().out


@pytest.mark.needs_compiler
def test_a_warning_is_one_line_without_a_python_location(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "k.cu").write_text('extern "C" __global__ void k() {}')
    arguments = ("compile", "k.cu", "--arch", "sm_80", "-o", "k.cubin")
    cache = {"RTCOMPILE_CACHE_DIR": tmp_path / "file"}
    done = command(*arguments, cwd=tmp_path, environ=cache)
    assert done.returncode == 0
    assert f"rtcompile: warning: kernel cache {tmp_path}/file" in done.stderr
    assert ".py" not in done.stderr


@pytest.mark.some(1)
@pytest.mark.takes_seconds
@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_an_encoding_without_check_marks_is_not_an_error(encoding):
    done = command("doctor", "--no-probes", environ={"PYTHONIOENCODING": encoding}, text=False)
    assert b"Traceback" not in done.stderr
    assert b"\n\\u2713 " in b"\n" + done.stdout


@pytest.mark.some
@pytest.mark.takes_seconds
@from_table
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_unwritable_stdout_causes_no_traceback(redirected, code, message, unbuffered):
    script = f"{shlex.quote(sys.executable)} -m rtcompile {redirected}"
    done = ran("bash", "-c", script, environ={"PYTHONUNBUFFERED": unbuffered})
    assert (done.returncode, done.stderr) == (code, message)


@pytest.mark.takes_seconds
def test_doctor_fits_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setattr(output, "terminal_width", lambda *_: 60)
    main(["doctor", "--no-probes"])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 60 or " " not in line.strip() for line in lines), lines


@pytest.mark.takes_seconds
def test_starting_loads_no_compiler_and_neither_cupy_nor_numpy():
    code = "import sys, rtcompile.cli as c; c.parse(['doctor']); print(*sys.modules)"
    loaded = set(python(code, check=True).stdout.split())
    assert not loaded & {"cupy", "numpy", "rtcompile.build.pipeline", "rtcompile.workers.pool"}


@pytest.mark.takes_seconds
@pytest.mark.parametrize("argv", ["explain crash", "--help", "compile no.cu --json"])
def test_a_closed_pipe_is_not_an_error(argv):
    begin = f"{shlex.quote(sys.executable)} -m rtcompile {argv}"
    done = ran("bash", "-c", f"(sleep .3; {begin}) | true; echo ${{PIPESTATUS[0]}}")
    assert done.stdout.strip() == "0"
    assert done.stderr == ""


# --- habits: options before the verb, and a compiler's own -------------------------------------


def test_the_version_has_a_short_option(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["-V"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"rtcompile {__version__}\n")


@pytest.mark.needs_compiler
@pytest.mark.parametrize("option", ["--ptx", "--cubin", "--fatbin"])
def test_a_compilers_output_option_is_rejected_with_the_commands_option(option, source, capsys):
    assert main(["compile", "k.cu", "--arch", "sm_80", "--", option]) == 0
    assert f"--target {option[2:]} selects it" in capsys.readouterr().out


@pytest.mark.needs_compiler
def test_the_output_of_ptxas_is_shown(source, capsys):
    words = ["compile", "k.cu", "--arch", "sm_80", "-n", "f<float>"]
    main([*words, "--", "-Xptxas", "-v"])
    assert re.search(r"ptxas info +: Used \d+ registers", capsys.readouterr().out)
    main(words)
    assert "ptxas" not in capsys.readouterr().out

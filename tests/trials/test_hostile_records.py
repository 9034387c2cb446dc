"""No foreign record runs a program, writes a file of its choice, or fills the memory."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

import rtcompile
from rtcompile import toolkit
from rtcompile.cli import main
from rtcompile.extras.record import recording
from rtcompile.files.sealed import content_digest
from tests.programs import CODE, written_record
from tests.trials.record import tally

# {0}: a program that leaves a mark; {1}: a file that must not be written.
OPTIONS: tuple[tuple[str, ...], ...] = (
    ("-ccbin {0}",), ("-ccbin", "{0}"), ("-ccbin={0}",), ("--ccbin={0}",), ("--compiler-bindir={0}",),
    ("--compiler-bindir", "{0}"), ("-compiler-bindir {0}",), ("-DX=1 -ccbin {0}",), ("-O3", "-ccbin={0}"),
    ("--time={1}",), ("-time {1}",), ("-time", "{1}"), ("-fdevice-time-trace={1}",),
    ("--fdevice-time-trace {1}",), ("-Xcompiler=-o{1}",), ("-Xcompiler", "-o,{1}"), ("-Xcompiler -march=native",),
    ("--compiler-options=-wrapper,{0}",), ("--compiler-options", "-fplugin={0}"), ("-Xcompiler=-fdump-tree-all={1}",),
    ("-Xcompiler=-B{0}",), ("--dependency-output={1}", "-MD"), ("-MF={1}", "-MMD"), ("-MF", "{1}"),
    ("--generate-dependencies-with-compile", "--dependency-output", "{1}"), ("-keep", "--keep-dir={1}"),
    ("-keep-dir {1}",), ("-odir={1}",), ("--output-directory", "{1}"), ("-o{1}",), ("-o", "{1}"),
    ("--output-file={1}",), ("-arbin={0}",), ("--run", "--run-args={1}"), ("--clean-targets",),
    ("-Xcudafe --error_output={1}",), ("-Xcudafe", "--list={1}"), ("-Xcudafe=--error_output=relative",),
    ("-Xptxas=-o,{1}",), ("-Xptxas", "--output-file={1}"), ("--forward-unknown-to-host-compiler", "-wrapper={0}"),
    ("-forward-unknown-opts",), ("--options-file={2}",), ("-optf", "{2}"), ("@{2}",), ("-hls=gen-lcs",),
    ("--qpp-config=x",), ("-Xcicc=-o,{1}",), ("--save-temps",), ("another.cu", "--no-such-option"),
)  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a record of one build, as another user could."""

    return functools.partial(written_record, tmp_path / "kernels.json")


@pytest.fixture
def traps(tmp_path: Path) -> tuple[str, str, str]:
    """Return a program, a file that compilers must not write, and an options file."""
    program, options = tmp_path / "evil.sh", tmp_path / "options"
    program.write_text(f'#!/bin/sh\ntouch {tmp_path}/planted\nexec gcc "$@"\n')
    program.chmod(0o755)
    options.write_text(f"-ccbin {program}\n")
    return str(program), f"{tmp_path}/planted", str(options)


def planted(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith("planted")]


@pytest.mark.parametrize("verb", [("warm",), ("bundle", "-o", "made.rtcb")], ids=lambda v: v[0])
def test_no_record_makes_a_compiler_run_programs_or_write_files(
    write, traps, tmp_path, monkeypatch, capsys, verb
):
    monkeypatch.chdir(tmp_path)
    with tally("record of another's, whose options run a program or write a file") as trial:
        for options in OPTIONS:
            given = [option.format(*traps) for option in options]
            for backend in ("auto", "nvcc"):
                record = write(options=given, backend=backend)
                with trial():
                    assert main([verb[0], str(record), *verb[1:]]) == 2, options
                    assert not planted(tmp_path), options
                    assert "Traceback" not in capsys.readouterr().err


def test_the_options_of_link_inputs_are_checked_too(write, traps, capsys):
    item = {"source": CODE, "options": ["-ccbin", traps[0]], "name": "other.cu"}

    assert main(["warm", str(write(link=[item]))]) == 2
    assert "--compiler-bindir runs a program that the option chooses" in capsys.readouterr().err


def test_a_trusted_record_is_built_with_all_its_options(write, traps, tmp_path):
    found = toolkit.current()
    if found.nvcc is None or found.host_compiler is None:
        pytest.skip("nvcc and a host compiler are needed")
    record = write(options=["-ccbin", traps[0]], backend="nvcc")

    assert main(["warm", "--trust-options", str(record)]) == 0
    assert planted(tmp_path)


HARMLESS = (
    "-O3 -lineinfo -Xptxas=-v --maxrregcount=32 -Xcudafe --diag_suppress=177 -DX=1 "
    "-Xcudafe=--diag_suppress=20012,--display_error_number -ftemplate-depth 100 "
    "--keep-device-functions -arch=sm_80"
)


def test_options_that_only_change_code_and_messages_need_no_trust(write):
    assert recording.read(str(write(options=HARMLESS.split()))).builds


@pytest.mark.some
@pytest.mark.parametrize("backend", ["nvrtc", "nvcc"])
@pytest.mark.parametrize("options", [o for o in OPTIONS if "{1}" in "".join(o)], ids=" ".join)
def test_the_users_own_options_write_no_file_either(tmp_path, traps, options, backend):
    given = [option.format(*traps) for option in options]
    try:
        code = rtcompile.compile(CODE, options=given, arch="sm_80", backend=backend)
    except rtcompile.InvalidRequest:
        code = None
    assert code is None or "rtcompile profile" in " ".join((*code.build.notes, code.build.log))
    assert not planted(tmp_path)


@pytest.mark.parametrize(
    "headers",
    [
        [["user0", "x.h", "/proc/kcore", "0" * 64]],
        [["user0", "x.h", "{}/a", "{digest}"], ["user0", "y.h", "{}/a/y.h", "{digest}"]],
        [["user0", "x.h", "{}/a/../../../../../../{}/planted", "{digest}"]],
    ],
    ids=["a file without end", "one below another", "a path that leads out"],
)
def test_a_header_is_written_only_into_rtcompiles_folder(write, tmp_path, headers, capsys):
    text = b"#define X 1\n"
    digest = content_digest(text)
    contents = {digest: text.decode(), "0" * 64: "\ud800"}
    headers = [
        [part.replace("{}", str(tmp_path)).replace("{digest}", digest) for part in header]
        for header in headers
    ]

    main(["warm", str(write(headers, contents))])
    assert not planted(tmp_path)
    assert "Traceback" not in capsys.readouterr().err

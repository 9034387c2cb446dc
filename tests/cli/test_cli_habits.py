"""Tests of habitual arguments: help, -V, -q, options before the verb, a compiler's own options."""

from __future__ import annotations

import json
import re

import pytest

from rtcompile._version import __version__
from rtcompile.cli import main


def exits(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    printed = capsys.readouterr()
    return ended.value.code, printed.out + printed.err


@pytest.mark.parametrize("verb", ["compile", "cache", "doctor"])
def test_help_is_also_a_verb(verb, capsys):
    assert exits(capsys, "help", verb) == exits(capsys, verb, "--help")
    assert exits(capsys, "help") == exits(capsys, "--help")
    assert exits(capsys, "help", "doktor")[0] == 2


def test_the_version_has_a_short_option(capsys):
    assert exits(capsys, "-V") == (0, f"rtcompile {__version__}\n")


@pytest.mark.parametrize(
    "before", [["--json"], ["--cache-dir", "own", "--json"], ["--cache-dir=own", "--json"]]
)
@pytest.mark.parametrize("action", ["info", "clear"])
def test_common_options_may_precede_the_verb(before, action, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "given"))
    assert main([*before, "cache", action]) == 0
    wanted = tmp_path / ("own" if len(before) > 1 else "given")
    assert json.loads(capsys.readouterr().out)["directory"] == str(wanted)


@pytest.mark.needs_compiler
def test_quiet_prints_errors_only(source, capsys):
    assert main(["-q", "compile", "k.cu", "--arch", "sm_80", "-n", "f<float>"]) == 0
    assert capsys.readouterr() == ("", "")
    assert source.with_name("k.sm_80.cubin").exists()
    assert main(["compile", "gone.cu", "--arch", "sm_80", "--quiet"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "gone.cu" in printed.err


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

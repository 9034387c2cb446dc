"""Any command line ends with an exit code and a message, never a traceback. Nothing is compiled."""

import random
import traceback

import pytest

from rtcompile import cli
from tests.trials.odd_values import OPTIONS, WORDS
from tests.trials.record import record, times

CHUNKS = 8
LINES = times(25, 625)  # of each chunk: 200, 5,000

# `run` runs programs; `doctor` and `profile` run compilers despite RTCOMPILE_JIT=0.
VERBS = sorted({*cli.parser().verbs()} - {"run", "doctor", "profile"})
ENDLESS = ("-h", "--help")  # help ends the command
FILES = ["k.cu", "k.cubin", "odd.cu", "empty", "folder", "k.json", "k.rtcb", "k.log"]
VALUES = [
    *WORDS,
    *FILES,
    "compute_90",
    "sm_90a,compute_80",
    "sm_90,",
    "1e999",
    "\u0663",
    "a=b",
    "=",
]


class Lines:
    """Creates command lines: a verb, its own and other options, and values of every kind."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.verbs = cli.parser().verbs()

    def make(self) -> list[str]:
        verb = self.chance.choice(VERBS)
        parser = self.verbs[verb]
        line = [verb]
        if verb == "cache":
            line.append(self.chance.choice([*parser.verbs()]))
            parser = parser.verbs()[line[-1]]
        elif self.chance.random() < 0.8:  # most verbs take a file first
            line.append(self.chance.choice(FILES))
        own = [name for name in parser._option_string_actions if name not in ENDLESS]
        for _ in range(self.chance.randint(0, 4)):
            if self.chance.random() < 0.3:
                line.append(self.chance.choice(VALUES))
                continue
            name = self.chance.choice(own)
            value = self.chance.choice(VALUES)
            takes_none = parser._option_string_actions[name].nargs == 0
            if takes_none and self.chance.random() < 0.9:
                line.append(name)
            elif name.startswith("--") and self.chance.random() < 0.5:
                line.append(f"{name}={value}")
            else:
                line += [name, value]
        if self.chance.random() < 0.2:
            line += ["--", *self.chance.choices(OPTIONS, k=self.chance.randint(0, 3))]
        if self.chance.random() < 0.03:
            self.chance.shuffle(line)
        return line if line[:1] != ["run"] else ["compile", *line]


def outcome(line: list[str]) -> str:
    """Run a line; return "" if it ends with an exit code of the command."""
    try:
        code = cli.main(line)
    except SystemExit as end:  # argparse's
        code = end.code or 0
    except BaseException:
        return traceback.format_exc(limit=-3)
    return "" if code in range(5) else f"exit code {code!r}"


def test_two_dashes_are_not_a_value(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["clangd", "--root=--"])
    assert end.value.code == 2
    assert "'--' is no value of an option" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")  # a warning is a line on stderr
@pytest.mark.parametrize("seed", range(CHUNKS))
def test_a_command_line_ends_without_a_traceback(seed, tmp_path, monkeypatch, capfd):
    lines = Lines(seed)
    (tmp_path / "k.cu").write_text('extern "C" __global__ void g() {}\n')
    (tmp_path / "odd.cu").write_bytes(b"\xff\xfe\0")
    (tmp_path / "folder").mkdir()
    for name, data in (("k.cubin", b"\x7fELF\2"), ("k.rtcb", b"RTCB"), ("empty", b"")):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "k.json").write_text('{"format": 1, "builds": [{}]}')
    (tmp_path / "k.log").write_text("k.cu(1): error: mistake\n")
    monkeypatch.chdir(tmp_path)
    bad = []
    for _ in range(LINES):
        line = lines.make()
        monkeypatch.setenv("RTCOMPILE_JIT", "0")
        problem = outcome(line)
        stderr = capfd.readouterr().err
        if not problem and "Traceback (most recent call last)" in stderr:
            problem = stderr[-1000:]
        if problem:
            bad.append(f"{[word[:60] for word in line]}: {problem}")
    record("command line of random words", LINES, len(bad))
    assert not bad, "\n".join(bad[:8])

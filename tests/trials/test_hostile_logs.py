"""Reading, explaining and showing any log raises no error."""

import random

import pytest

from rtcompile import styling
from rtcompile.files.headers import SearchDir
from rtcompile.messages import catalogue, diagnostics, rendering
from rtcompile.messages.facts import BuildContext
from rtcompile.request.values import Arch
from tests.provoked import AS_REPORTED, BY_NVCC, BY_NVJITLINK, BY_NVRTC
from tests.trials.record import record, times

ROUNDS = times(400, 2500)
PIECES = [
    *(f"kernel.cu(3): error: {param.values[1].message}\n  x = 1\n  ^\n" for param in (*BY_NVRTC, *BY_NVCC)),
    *(f"ptxas fatal   : {message}\n" for _, message, *_ in BY_NVJITLINK),
    *(f"{text}\n" for text, *_ in AS_REPORTED),
    "          detected during:\n            instantiation of \"f\" at line 3 of k.cu\n",
    "In file included from a.h:2,\n                 from b.cu:1:\n",
    *("'", '"', "(", "{", "}", "{0}", "%s", "\n", "\0", "\033[2J", "\ud800", "é", "  ^\n"),
    *("9" * 5000, "0x" + "f" * 5000, "_Z99999f", "sm_", "tmpxft_", "/include/", "::", "<", ">"),
]  # fmt: skip
CONTEXTS = [
    BuildContext(),
    BuildContext(
        Arch(9, 0),
        capability=(12, 0),
        backend="nvcc",
        options=("-DT=3", "-std=c++14", "-minimal"),
        versions={"nvrtc": "12.9.86", "cccl": "unknown"},
        search=(SearchDir("user0", "/usr/include"), SearchDir("cudart", "/cuda")),
        source="#include <cute/tensor.hpp>",
    ),
]


@pytest.mark.parametrize("seed", range(4))
def test_a_log_of_random_pieces_is_read_explained_and_shown(seed):
    chance = random.Random(seed)
    bad = []
    for _ in range(ROUNDS):
        pieces = chance.choices(PIECES, k=chance.randint(1, 12))
        log = "".join(
            piece[chance.randrange(len(piece)) :] if chance.random() < 0.3 else piece
            for piece in pieces
        )
        try:
            show(log, chance)
        except Exception as error:
            bad.append((error, log))
    record("compiler log of random pieces", ROUNDS, len(bad))
    assert not bad


def show(log: str, chance: random.Random) -> None:
    found = catalogue.annotate(diagnostics.parse(log), chance.choice(CONTEXTS))
    source = chance.choice(["", "a\nb\nc", log])
    width = chance.choice([1, 40, 200])
    pieces = rendering.render(found, source=source, name="kernel.cu", width=width)
    styling.as_ansi(pieces)
    styling.as_html(pieces)

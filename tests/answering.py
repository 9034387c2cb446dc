"""Builds on the full road, and the answers that a process finds which starts anew."""

from __future__ import annotations

from rtcompile.building import pipeline
from rtcompile.cache import answers
from rtcompile.core.request import CompileRequest
from rtcompile.settings import Settings

CODE = 'extern "C" __global__ void k(float* x) { *x = %s; }'
WITH_HEADER = '#include "value.h"\n' + CODE % "VALUE"
CAPABILITY = (8, 0)


def build(code: str, *options: str) -> tuple[str, ...]:
    """Build on the full road; return the words that were asked."""
    words = (code, *options)
    pipeline.build(CompileRequest(code, options=options), Settings.from_environ(), words)
    return words


def found(words: tuple[str, ...]) -> answers.Answer | None:
    """Look as a process does that starts anew."""
    answers._environment = None
    return answers.find(words, CAPABILITY)

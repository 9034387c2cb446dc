"""Tests that each section of the catalogue rests on facts: it is silent without those that it needs."""

import dataclasses
import re

import pytest

from rtcompile.diagnostic import Diagnostic
from rtcompile.files.headers import SearchDir
from rtcompile.messages import catalogue, facts
from rtcompile.messages.catalogue import MESSAGES
from rtcompile.messages.diagnostics import Attempts
from rtcompile.messages.facts import BuildContext
from rtcompile.request.values import Arch

_KNOWN = BuildContext(
    arch=Arch(8, 0),
    backend="nvcc",
    options=("-std=c++14", "-arch=sm_80", "-minimal", "-DN=0"),
    versions={"nvrtc": "12.4.0"},
    search=(SearchDir("cudart", "/nowhere"),),
    source="#include <cute/tensor.hpp>",
    error=Diagnostic("error", "wrong", line=1, excerpt="#include <cute/tensor.hpp>\n^"),
    attempts=Attempts(lambda *_: None, "", (), 0),
)


@pytest.mark.parametrize("known", [known for known in MESSAGES if known.needs], ids=lambda k: k.id)
def test_a_section_is_silent_without_the_facts_that_it_needs(known):
    section = dataclasses.replace(known, values=None, cause="", fix="says")
    match = re.search("", "")
    assert match is not None
    assert section.hint(match, _KNOWN) == "says"
    for name in known.needs:
        lacks = {"error": Diagnostic("error", "wrong")} if name == "line" else {name: None}
        assert section.hint(match, dataclasses.replace(_KNOWN, **lacks)) == "", name


@pytest.mark.parametrize("known", MESSAGES, ids=lambda known: known.id)
def test_a_section_without_a_look_up_fills_in_the_compilers_words_only(known):
    """Without a function, a name in braces is a group of the pattern or the build's own description."""
    names = set(re.findall(r"(?<!{){(\w+)}", f"{known.cause} {known.fix}"))
    ours = names - set(known.pattern.groupindex) - set(facts.of_build(BuildContext()))
    ours -= {"lines"} if known.lines else set()
    assert known.values is not None or not ours


@pytest.mark.parametrize(
    ("message", "source", "said", "not_said"),
    [
        # A name of OpenCL's and NumPy's that the source itself declares.
        ('identifier "barrier" is undefined', "namespace my { int barrier(int); }", "my::barrier", "OpenCL"),
        ('identifier "float16" is undefined', "namespace my { struct float16 {}; }", "my::float16", "NumPy"),
        # Headers that the source includes, and that declare the name under a newer standard only.
        ('namespace "std" has no member "span"', "#include <span>", "-std", "does not include"),
        ('namespace "std" has no member "span"', "#include <span>", "-std", "does not exist"),
        ('identifier "CUDART_INF_F" is undefined', "#include <math_constants.h>", "No declaration", "declared in"),
        # Nothing shows that this name is the runtime's, or that a class has no more members.
        ('identifier "cudaNoSuchThing" is undefined', "", "No declaration", "runtime API"),
        ('class "S" has no member "y"', "struct S { int f() { int y; } };", "declares no y", "declares f"),
    ],
)  # fmt: skip
def test_a_hint_says_nothing_that_the_source_contradicts(message, source, said, not_said):
    hint = catalogue.hint_for(message, BuildContext(source=source))

    assert said in hint
    assert not_said not in hint

"""Tests that each section of the catalogue rests on facts: it is given what it names, and is silent without."""

import collections
import dataclasses
import re

import pytest

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
    line=1,
    excerpt="#include <cute/tensor.hpp>\n^",
    attempts=Attempts(lambda *_: None, "", (), 0),
)
_FIELDS = {field.name for field in dataclasses.fields(BuildContext)}


def _required(facts: str) -> list[str]:
    return [name for name in facts.split() if name != "words" and not name.endswith("?")]


@pytest.mark.parametrize("known", MESSAGES, ids=lambda known: known.id)
def test_a_section_rests_on_facts_that_it_names_and_is_silent_without_them(known):
    """Every section is asked for its facts: it is given no others, and says nothing where one is not known."""
    named = {name.rstrip("?") for name in known.facts.split()} - {"words"}
    assert known.facts
    assert named <= _FIELDS
    asked: list[BuildContext] = []

    def values(_: re.Match[str], context: BuildContext) -> dict[str, str]:
        asked.append(context)
        return collections.defaultdict(str)

    section = dataclasses.replace(known, values=values, cause="", fix="says")
    match = re.search("", "")
    assert match is not None
    assert section.hint(match, _KNOWN) == "says"
    given = {name for name in _FIELDS if getattr(asked[0], name) != getattr(BuildContext(), name)}
    assert given <= named | ({"excerpt"} if "line" in named else set())
    for name in _required(known.facts):
        assert section.hint(match, dataclasses.replace(_KNOWN, **{name: None})) == "", name


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

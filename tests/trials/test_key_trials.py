"""Two requests that differ in one separator, in any field, share no entry of the cache."""

import random

import pytest

import rtcompile
from rtcompile.errors import InvalidRequest
from rtcompile.files.headers import SearchDir
from rtcompile.lookup.find import query_of
from rtcompile.request.request import CompileRequest
from rtcompile.settings import Settings
from tests.key_inputs import make_key_inputs
from tests.trials.record import record, times

PAIRS = times(300, 12_500)  # of each of the seeds and kinds
WORDS = [
    "a",
    "b.h",
    "-DA",
    "-DA=1",
    "-I/x",
    "7",
    "k<int>",
    "source",
    "name",
    "6:source=1:a;",
    "x\\",
]
SEPARATORS = [" ", "\n", "\0", "\t", "\r", ",", ";", ":", "=", "/", "|", "'", '"', "\x1f", "4:"]

Fields = list[list[str]]


class Pairs:
    """Creates fields of random texts, and others that differ from them in one separator."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def text(self) -> str:
        words = self.chance.choices([*WORDS, *SEPARATORS], k=self.chance.randint(1, 5))
        return "".join(words).replace("\0", "")

    def fields(self, number: int) -> Fields:
        return [[self.text() for _ in range(self.chance.randint(1, 3))] for _ in range(number)]

    def other(self, fields: Fields) -> Fields:
        """Return fields with an added, removed or moved separator."""
        other = [[*field] for field in fields]
        field = self.chance.choice(other)
        at = self.chance.randrange(len(field))
        text, separator = field[at], self.chance.choice(SEPARATORS)
        position = self.chance.randint(0, len(text))
        way = self.chance.randrange(6)
        if way == 0:
            field[at] = text[:position] + separator + text[position:]
        elif way == 1:
            field[at] = text[:position] + separator + text[position + 1 :]
        elif way == 2:  # one text becomes two
            field[at : at + 1] = [text[:position], text[position:]]
        elif way == 3 and len(field) > 1:  # two become one
            field[:2] = [separator.join(field[:2])]
        elif way == 4:  # the end of a field becomes the beginning of the next
            following = other[(other.index(field) + 1) % len(other)]
            following[0], field[at] = text[position:] + following[0], text[:position]
        else:
            other[0], other[-1] = other[-1], other[0]
        return other


def index_name(fields: Fields) -> tuple[str, object]:
    """Return the index entry's name of a request with these texts ("" if it is rejected), and the request."""
    source, options, names, headers = fields
    try:
        request = CompileRequest(
            "".join(source[:1]),
            options=options,
            name_expressions=names,
            name="".join(source[1:]) or "k.cu",
            headers={f"{at}.h": text for at, text in enumerate(headers)},
            arch="sm_80",
        )
    except InvalidRequest:
        return "", None
    query = query_of(request, Settings.from_environ())
    assert query.name()
    return query.name(), request


def lookup_key(fields: Fields) -> tuple[str, object]:
    source, options, names, folders = fields
    inputs = make_key_inputs(
        source=source[0],
        name="/".join(source[1:]) or "k.cu",
        options=tuple((f"o{at}", text) for at, text in enumerate(options)),
        name_expressions=tuple(names),
        search=tuple(SearchDir(f"user{at}", f"/{text}") for at, text in enumerate(folders)),
        links=tuple(options[1:]),
    )
    texts = inputs.source, inputs.name, inputs.options, inputs.search, inputs.links
    return inputs.lookup_key, (*texts, {*names})


@pytest.mark.needs_compiler
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("key", [index_name, lookup_key], ids=["index", "lookup"])
def test_requests_that_differ_in_one_separator_share_no_entry(key, seed):
    rtcompile.compile("", arch="sm_80")  # so the toolchain is known, which index entries need
    pairs, bad = Pairs(seed), []
    for _ in range(PAIRS):
        one = pairs.fields(4)
        other = pairs.other(one)
        (name, first), (another, second) = key(one), key(other)
        if name == another and first != second:
            bad.append((one, other))
    record("pair of requests that differ in one separator, newline or NUL", PAIRS, len(bad))
    assert not bad, bad[:3]
